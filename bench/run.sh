#!/usr/bin/env bash
# run.sh MAJOR MODULE [ARG...]: a Python module with its arguments, ready to use PostgreSQL MAJOR.
# `benchmark` runs the comparisons (--help lists its arguments), `unittest` the benchmark's own tests.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/../scripts/workspace.sh"

major=${1:?major version of PostgreSQL}
shift

# Two runs in one clone would stop each other's server.
mkdir -p "$target/bench"
exec {lock}>"$target/bench/lock"
flock --nonblock "$lock" || die 'another make bench runs in this clone'

"$root/bench/setup.sh" "$major"
"$root/scripts/install.sh" "$major"
cd "$root/bench"
AGENT_SESSIONS_PG=$major exec "$target/bench/venv/bin/python" -m "$@"
