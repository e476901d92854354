#!/usr/bin/env bash
# run.sh MAJOR [ARG...]: every comparison on PostgreSQL MAJOR; the arguments go to the benchmark (--help lists them).
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
exec "$target/bench/venv/bin/python" -m benchmark --major "$major" "$@"
