#!/usr/bin/env bash
# install.sh MAJOR [in-backend]: builds the extension and installs it into the private server tree.
# The in-backend variant is a development build that also contains the #[pg_test] functions.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

major=${1:?major version of PostgreSQL}
variant=${2-}
tree=$(server_tree "$major${variant:+-$variant}")

case $variant in
    '') build=(--release --features "pg$major") ;;
    in-backend) build=(--features "pg$major pg_test") ;;
    *) die "install.sh: in-backend or nothing, not '$variant'" ;;
esac

"$root/scripts/server_tree.sh" "$major" "$variant"
cargo_pgrx=$("$root/scripts/cargo_pgrx.sh")
cd "$root"
say "Building and installing agent_sessions for PostgreSQL $major${variant:+ ($variant)}"
PGRX_HOME=$target/pgrx/$major "$cargo_pgrx" pgrx install --no-default-features "${build[@]}" --pg-config "$tree/bin/pg_config"
