"""The call form of the documentation, from psycopg: JSON goes in as %s::text::json and comes out as ::text.

Reads a JSON array of payloads from standard input, sends each of them in every way that psycopg has, and exits with 1
if anything comes back changed. libpq's variables name the database.
"""

import json
import sys

import psycopg

APPEND = """
    select agent_sessions.session_append(session_id => %(session)s, payload => %(payload)s::text::json,
      kind => %(kind)s, item_id => %(item_id)s, attrs => %(attrs)s::text::jsonb,
      expected_position => %(expected)s, on_missing => 'create')
"""
BATCH = """
    select ordinal, position, outcome
    from agent_sessions.session_append_batch(session_id => %s, items => %s::text::json, on_missing => 'create')
"""
SET = "select agent_sessions.session_set(session_id => %s, state => %s::text::json, metadata => %s::text::jsonb)"
HISTORY = """
    select position, payload::text, kind, attrs::text
    from agent_sessions.session_history(session_id => %s, after => %s, max_rows => %s, kinds => %s::text[])
"""


def demand(condition, what):
    if not condition:
        sys.exit(f"psycopg: {what}")


def calls(cursor, session, payloads, prepare):
    for position, payload in enumerate(payloads):
        arguments = {
            "session": session,
            "payload": payload,
            "kind": "message",
            "item_id": f"item {position}",
            "attrs": '{"k": 1}',
            "expected": position,
        }
        cursor.execute(APPEND, arguments, prepare=prepare)
        demand(cursor.fetchone() == (position,), f"{session}: append {position}")

    cursor.execute(HISTORY, (session, None, None, ["message"]), prepare=prepare)
    expected = [(position, payload, "message", '{"k": 1}') for position, payload in enumerate(payloads)]
    demand(cursor.fetchall() == expected, f"{session}: history")
    cursor.execute(HISTORY, (session, 0, 1, None), prepare=prepare)
    demand(cursor.fetchall() == expected[1:2], f"{session}: a page of the history")

    items = "[" + ",".join('{"payload":%s,"kind":"batch"}' % payload for payload in payloads) + "]"
    cursor.execute(BATCH, (session, items), prepare=prepare)
    first = len(payloads)
    demand(
        cursor.fetchall() == [(ordinal, first + ordinal, "appended") for ordinal in range(first)],
        f"{session}: batch",
    )
    cursor.execute(HISTORY, (session, None, None, ["batch"]), prepare=prepare)
    values = [payload.strip(" \t\r\n") for payload in payloads]
    demand([row[1] for row in cursor.fetchall()] == values, f"{session}: history of the batch")

    get = "select state::text, metadata::text, revision from agent_sessions.session_get(session_id => %s)"
    for revision, payload in enumerate(payloads, start=1):
        cursor.execute(SET, (session, payload, json.dumps({"n": revision})), prepare=prepare)
        demand(cursor.fetchone() == (revision,), f"{session}: set {revision}")
        cursor.execute(get, (session,), prepare=prepare)
        demand(cursor.fetchone() == (payload, '{"n": %d}' % revision, revision), f"{session}: get {revision}")

    # A tenant in the same statement.
    in_tenant = "select agent_sessions.session_append(session_id => %s, payload => '1', on_missing => 'create')"
    cursor.execute(in_tenant + " from agent_sessions.tenant_use(%s)", (session, "psycopg"), prepare=prepare)
    demand(cursor.fetchone() == (0,), f"{session}: an append of another tenant")
    read = """
        select h.payload::text from agent_sessions.tenant_use(%s) t,
          lateral agent_sessions.session_history(session_id => %s, tenant => t) h
    """
    cursor.execute(read, ("psycopg", session), prepare=prepare)
    demand(cursor.fetchall() == [("1",)], f"{session}: a history of another tenant")


def refused(connection, session):
    stale = {"session": session, "payload": "{}", "kind": None, "item_id": None, "attrs": None, "expected": 0}
    try:
        connection.execute(APPEND, stale)
    except psycopg.Error as error:
        demand(error.sqlstate == "SE007", f"{session}: {error.sqlstate}")
        detail = json.loads(error.diag.message_detail)
        demand(detail["expected"] == 0 and detail["actual"] > 0, f"{session}: {detail}")
    else:
        demand(False, f"{session}: a stale append was taken")


def main():
    payloads = json.load(sys.stdin)
    ways = 0
    with psycopg.connect("", autocommit=True) as connection:
        for binary in (False, True):
            for prepare in (False, True):
                session = f"psycopg, binary {binary}, prepared {prepare}"
                with connection.cursor(binary=binary) as cursor:
                    calls(cursor, session, payloads, prepare)
                refused(connection, session)
                ways += 1
    print(json.dumps({"ways": ways, "payloads": len(payloads)}))


main()
