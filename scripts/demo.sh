#!/usr/bin/env bash
# demo.sh MAJOR: builds, starts the demo cluster, and plays the sample conversation through the extension.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

major=${1:?major version of PostgreSQL}
conversation=examples/incident-triage.ndjson
session=incident-4127

"$root/scripts/setup.sh" build "$major"
"$root/scripts/install.sh" "$major"
"$root/scripts/cluster.sh" start demo "$major"
eval "$("$root/scripts/cluster.sh" env demo)"

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
heading() { printf '\n%s%s%s\n\n' "$bold" "$1" "$plain"; }

# sql ROLE DATABASE [ARG...]: runs standard input and stops at the first error.
sql() {
    local role=$1 database=$2
    shift 2
    "$(server_tree "$major")/bin/psql" -X -q -v ON_ERROR_STOP=1 -v SHOW_CONTEXT=never -P footer=off \
        -U "$role" -d "$database" -v session="$session" "$@"
}
as_agent() { sql demo_agent demo "$@"; }

# refused SQLSTATE: runs standard input, shows it and the error, and fails unless the error is that one.
refused() {
    local answer
    answer=$(as_agent -e -v ON_ERROR_STOP=0 2>&1 < <(cat && printf '%s\n' '\echo SQLSTATE: :LAST_ERROR_SQLSTATE'))
    printf '%s\n' "$answer"
    [ "${answer##*SQLSTATE: }" = "$1" ] || die "expected SQLSTATE $1"
}

heading "Install, as the database's owner, who is not a superuser"
sql "$PGUSER" postgres <<'SQL'
set client_min_messages = warning;
drop database if exists demo with (force);
drop role if exists demo_agent, demo_owner;
create role demo_owner login;
create role demo_agent login;
create database demo owner demo_owner;
SQL
sql demo_owner demo -e <<'SQL'
create extension agent_sessions;
\o /dev/null
select agent_sessions.access_grant('demo_agent', 'writer');
alter database demo set search_path = public, agent_sessions;
SQL

heading "Play $conversation, as demo_agent: one transaction a message"
as_agent -e <<'SQL'
select session_id, title, revision, next_position
from session_create(session_id => :'session', title => 'Slow checkout');
SQL
append='select session_append(session_id => :'\''session'\'', payload => :'\''message'\''::text::json,
                      author => :'\''author'\'', item_id => :'\''item_id'\'');'
printf '%s\n\n' "$append"
count=0
while IFS= read -r message; do
    [[ $message =~ \"role\"[[:space:]]*:[[:space:]]*\"([a-z]+)\" ]] || die "line $((count + 1)) of $conversation has no role"
    position=$(as_agent -At -v message="$message" -v author="${BASH_REMATCH[1]}" -v item_id="message-$count" <<<"$append")
    [ "$position" = "$count" ] || die "message $count was appended at position $position"
    count=$((count + 1))
done <"$root/$conversation"
echo "$count messages are at the positions 0 to $((count - 1))."

heading 'History'
as_agent <<'SQL'
select position, author, left(payload::text, 55) as "payload (its beginning)"
from session_history(session_id => :'session');
SQL
[ "$(as_agent -At <<<"select payload::text from session_history(session_id => :'session')")" = "$(<"$root/$conversation")" ] ||
    die 'the history differs from the file'
echo 'Every payload is byte for byte the line of the file.'

heading 'A stale write is refused'
refused SE007 <<SQL
select session_append(session_id => '$session', payload => '{"role":"user","content":"too late"}',
                      expected_position => 3);
SQL

heading 'A replay is harmless: the same item_id and content give the first position again'
IFS= read -r message <"$root/$conversation"
as_agent -v message="$message" <<'SQL'
select session_append(session_id => :'session', payload => :'message'::text::json,
                      author => 'system', item_id => 'message-0') as "position",
       next_position
from session_get(session_id => :'session');
SQL

heading 'State, by compare-and-set'
as_agent -e <<SQL
select session_set(session_id => '$session', state => '{"phase":"mitigated"}', expected_revision => 0) as revision;
SQL
refused SE006 <<SQL
select session_set(session_id => '$session', state => '{"phase":"open"}', expected_revision => 0);
SQL

heading 'The chain verifies'
as_agent -e <<SQL
select entries, ok, first_bad_position from session_verify(session_id => '$session');
SQL
[ "$(as_agent -At <<<"select ok from session_verify(session_id => :'session')")" = t ] || die 'the chain does not verify'

heading 'The server goes on running'
cat <<EOT
  make psql    opens psql in it, or:
               psql "host=$PGHOST port=$PGPORT dbname=demo user=demo_agent"
  make stop    stops it
EOT
