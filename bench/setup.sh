#!/usr/bin/env bash
# setup.sh MAJOR: makes this machine ready for the benchmark, in target/bench. Installs only what is missing.
# A package that cannot be had costs its peer alone: that row of the results says so.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/../scripts/workspace.sh"

major=${1:?major version of PostgreSQL}
venv=$target/bench/venv
node=$target/bench/node

"$root/scripts/setup.sh" test "$major"
mkdir -p "$node"
[ -x "$venv/bin/pip" ] || python3 -m venv --clear "$venv"

pip_install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$1"; }
npm_into() { npm install --prefix "$1" --no-audit --no-fund --loglevel=error "${@:2}" </dev/null; }
# noetaris asks for a package that is not published, of which it needs the types alone. Where such a package has been installed,
# npm refuses every later one: so it gets a folder of its own.
npm_install() { npm_into "$node" "$1" || npm_into "$node/alone" --legacy-peer-deps "$1"; }

# install_missing HOW NOTES < PACKAGES: one by one; NOTES lists what is installed.
install_missing() {
    local how=$1 notes=$2 package
    touch "$notes"
    while IFS= read -r package; do
        ! grep -qxF "$package" "$notes" || continue
        say "Installing $package into target/bench"
        if "$how" "$package" >&2; then echo "$package" >>"$notes"; else say "$package cannot be installed"; fi
    done
}

sed -E 's/[[:space:]]*#.*//; /^$/d' "$root/bench/requirements.txt" | install_missing pip_install "$venv/installed.txt"
node -p 'Object.entries(require(process.argv[1]).dependencies).map(([name, version]) => `${name}@${version}`).join("\n")' \
    "$root/bench/package.json" | install_missing npm_install "$node/installed.txt"
