#!/usr/bin/env bash
# test.sh MAJOR: does the benchmark run? Its numbers do not matter, and its results stay as they are.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/../scripts/workspace.sh"

major=${1:?major version of PostgreSQL}

"$root/bench/setup.sh" "$major"
"$root/scripts/install.sh" "$major"
cd "$root/bench"
AGENT_SESSIONS_PG=$major exec "$target/bench/venv/bin/python" -m unittest discover --start-directory tests --top-level-directory .
