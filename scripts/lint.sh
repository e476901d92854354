#!/usr/bin/env bash
# lint.sh MAJOR: rustfmt and clippy, with every warning denied.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

major=${1:?major version of PostgreSQL}
"$root/scripts/setup.sh" build "$major"
"$root/scripts/server_tree.sh" "$major"
cd "$root"
cargo fmt --all --check
cargo clippy -p agent_sessions_core -p agent_sessions_tests --all-targets -- -D warnings
PGRX_HOME=$target/pgrx/$major cargo clippy -p agent_sessions --no-default-features --features "pg$major pg_test" -- -D warnings
