#!/usr/bin/env bash
# import_ndjson.sh FILE...: imports sessions, one a file, as session_export or sqlite_to_ndjson.py wrote them.
# psql's environment (PGHOST, PGDATABASE, PGUSER and so on) says where to.
set -euo pipefail

for file; do
    export file
    psql -XqAt -v ON_ERROR_STOP=1 <<'SQL'
\set lines `paste -sd, "$file"`
select session_id, next_position from agent_sessions.session_import(('[' || :'lines' || ']')::json);
SQL
done
