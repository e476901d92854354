#!/usr/bin/env bash
# test.sh MAJOR [FILTER...]: every test there is, on PostgreSQL MAJOR; a FILTER goes to the test runner.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

major=${1:?major version of PostgreSQL}
shift
scripts=$root/scripts

# Two runs in one clone would stop each other's servers. The servers must not inherit the lock.
mkdir -p "$target"
exec {lock}>"$target/test.lock"
flock --nonblock "$lock" || {
    say 'Waiting for another make test in this clone'
    flock "$lock"
}
cluster() { "$scripts/cluster.sh" "$@" {lock}>&-; }
remove_clusters() {
    cluster remove test
    cluster remove in-backend
}

"$scripts/setup.sh" test "$major"
"$scripts/install.sh" "$major"
"$scripts/install.sh" "$major" in-backend
older=$(older_server "$major")
[ -z "$older" ] || "$scripts/install.sh" "$older"

# make sends a second signal after the first; it must not end the clean-up.
trap 'trap "" INT TERM HUP; remove_clusters' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
remove_clusters
cluster start test "$major"
cluster start in-backend "$major"

eval "$(cluster env in-backend)"
export AGENT_SESSIONS_IN_BACKEND_PORT=$PGPORT
eval "$(cluster env test)"
export AGENT_SESSIONS_HOST=$PGHOST AGENT_SESSIONS_PORT=$PGPORT AGENT_SESSIONS_SUPERUSER=$PGUSER
export AGENT_SESSIONS_PG=$major
AGENT_SESSIONS_BIN=$(server_tree "$major")/bin
export AGENT_SESSIONS_BIN
# The tests that come from an older major version say so when there is none.
export AGENT_SESSIONS_OLDER_BIN=${older:+$(server_tree "$older")/bin}
# The tests name the server they mean; nothing may fall back to these.
unset PGHOST PGPORT PGUSER
"$scripts/run_tests.sh" "$@"
