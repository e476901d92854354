#!/usr/bin/env bash
# package.sh build PG_CONFIG    builds the extension for that server; the files wait under target/package
# package.sh install PG_CONFIG  copies them to the server's directories (below DESTDIR); needs no Rust when they are up to date
# package.sh debian PG_CONFIG   makes a .deb of them under target/package, for a server of Debian's or of apt.postgresql.org
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

command=${1:?build, install or debian}
pg_config=$(command -v "${2:?pg_config}") || die "there is no $2: name the server's pg_config with PG_CONFIG="
pg_config=$(cd "$(dirname "$pg_config")" && pwd)/${pg_config##*/}
major=$(major_of "$pg_config")
case $major in 15 | 16 | 17 | 18) ;; *) die "$pg_config is of PostgreSQL $major; 15 to 18 are supported" ;; esac
package=$target/package/pg$major
library=$("$pg_config" --pkglibdir)/agent_sessions.so
extension=$("$pg_config" --sharedir)/extension

build() {
    local cargo_pgrx
    cargo_pgrx=$("$root/scripts/cargo_pgrx.sh")
    rm -rf "$package"
    cd "$root"
    # The names of source files are part of the library: with these, not where they were.
    export RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$root=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    # pgrx has its bindings formatted, which nobody reads.
    command -v rustfmt >/dev/null || export RUSTFMT=true
    PGRX_PG_CONFIG_PATH=$pg_config "$cargo_pgrx" pgrx package --no-default-features --features "pg$major" \
        --pg-config "$pg_config" --out-dir "$package"
}

is_current() {
    [ -e "$package$extension/agent_sessions.control" ] || return 1
    local newer
    newer=$(cd "$root" && find Cargo.toml Cargo.lock agent_sessions.control src sql core -type f -newer "$package$extension/agent_sessions.control")
    [ -z "$newer" ]
}

install_files() {
    is_current || build
    install -d "${DESTDIR-}${library%/*}" "${DESTDIR-}$extension"
    install -m 755 "$package$library" "${DESTDIR-}$library"
    install -m 644 "$package$extension"/agent_sessions* "${DESTDIR-}$extension"
}

make_debian_package() {
    [ "$library" = "/usr/lib/postgresql/$major/lib/agent_sessions.so" ] || die "$pg_config is not of a Debian package"
    DESTDIR=$(mktemp -d)
    trap 'rm -rf "$DESTDIR"' EXIT
    install_files
    "$root/scripts/debian_package.sh" "$major" "$DESTDIR" "$target/package"
}

case $command in
    build) build ;;
    install)
        install_files
        say "Installed agent_sessions for PostgreSQL $major into ${DESTDIR-}${library%/*} and ${DESTDIR-}$extension"
        ;;
    debian) make_debian_package ;;
    *) die "package.sh: build, install or debian, not '$command'" ;;
esac
