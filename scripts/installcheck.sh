#!/usr/bin/env bash
# installcheck.sh PG_CONFIG: the tests that need no cluster of their own, against a running server into which
# make install has installed the extension: PGHOST, PGPORT and PGUSER (a superuser), trusted for every role.
# The in-backend tests are left out, since the installed library does not contain them.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

pg_config=${1:?pg_config}
AGENT_SESSIONS_BIN=$("$pg_config" --bindir)
AGENT_SESSIONS_PG=$(major_of "$pg_config")
export AGENT_SESSIONS_BIN AGENT_SESSIONS_PG
export AGENT_SESSIONS_HOST=${PGHOST:-/var/run/postgresql} AGENT_SESSIONS_PORT=${PGPORT:-5432}
AGENT_SESSIONS_SUPERUSER=${PGUSER:-$(id -un)}
export AGENT_SESSIONS_SUPERUSER

installed=$("$AGENT_SESSIONS_BIN/psql" -XAtq -v ON_ERROR_STOP=1 -h "$AGENT_SESSIONS_HOST" -p "$AGENT_SESSIONS_PORT" \
    -U "$AGENT_SESSIONS_SUPERUSER" -d postgres \
    -c "select count(*) from pg_available_extensions where name = 'agent_sessions'")
[ "$installed" = 1 ] || die "the server at $AGENT_SESSIONS_HOST:$AGENT_SESSIONS_PORT does not have agent_sessions: make install first"

"$root/scripts/setup.sh" test "$AGENT_SESSIONS_PG"
exec "$root/scripts/run_tests.sh" --skip in_backend
