#!/usr/bin/env bash
# freeze.sh SCRIPT: freezes the version of Cargo.toml, for a release. SCRIPT is the agent_sessions--VERSION.sql that has been
# installed: a copy goes to sql/released, and its checksum, with that of the update from the release before, to the list there.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

script=${1:?the installed script}
version=$(sed -n '/^\[package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' "$root/Cargo.toml")
[ "${script##*/}" = "agent_sessions--$version.sql" ] || die "$script is not the script of version $version"

cd "$root/sql"
frozen=released/agent_sessions--$version.sql
[ ! -e "$frozen" ] || die "$version is released already: give Cargo.toml a new version"
# The lines that say where in the sources a statement stands change without the script.
sed '/^-- src\/.*:[0-9]*$/d' "$script" >"$frozen"
for file in "$frozen" agent_sessions--*--"$version".sql; do
    [ ! -e "$file" ] || sha256sum "$file" >>released/SHA256SUMS
done
say "Froze $version: commit sql/released"
