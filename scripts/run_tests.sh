#!/usr/bin/env bash
# run_tests.sh [ARG...]: the test runner, for a server that AGENT_SESSIONS_HOST and the variables beside it describe.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

export AGENT_SESSIONS_PYTHON=$target/venv/bin/python
export AGENT_SESSIONS_NODE_MODULES=$target/node/node_modules
if [ -z "${AGENT_SESSIONS_TRANSCRIPTS-}" ]; then
    if [ -d "$root/../shared/transcripts" ]; then
        AGENT_SESSIONS_TRANSCRIPTS=$(cd "$root/../shared/transcripts" && pwd)
    else
        AGENT_SESSIONS_TRANSCRIPTS=$root/examples
    fi
    export AGENT_SESSIONS_TRANSCRIPTS
fi

cd "$root"
say "Running the tests on PostgreSQL $AGENT_SESSIONS_PG (transcripts: $AGENT_SESSIONS_TRANSCRIPTS)"
cargo test -p agent_sessions_core -p agent_sessions_tests --no-fail-fast -- "$@"
