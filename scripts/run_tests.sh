#!/usr/bin/env bash
# run_tests.sh [ARG...]: the test runner, for a server that AGENT_SESSIONS_HOST and the variables beside it describe.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

export AGENT_SESSIONS_PYTHON=$target/venv/bin/python
export AGENT_SESSIONS_NODE_MODULES=$target/node/node_modules

cd "$root"
say "Running the tests on PostgreSQL $AGENT_SESSIONS_PG"
cargo test -p agent_sessions_core -p agent_sessions_tests --no-fail-fast -- "$@"
