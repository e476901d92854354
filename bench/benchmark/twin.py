"""Installs the PL/pgSQL twin, and proves that it answers, refuses and hashes as the engine does."""

from __future__ import annotations

import psycopg

from .server import SQL, WRITER, Database

CALLS = [
    "'twin', '{\"n\": 1.0, \"n\": \"\\u0000\"}', on_missing => 'create'",
    "'twin', '\"é\"', kind => 'note', item_id => 'a', tag => 't', author => 'me', attrs => '{\"b\": [1, null]}', kept_from => 1",
    "'twin', '\"é\"', kind => 'note', item_id => 'a', tag => 't', author => 'me', kept_from => 1, lease => '0:lost'",
    "'twin', '\"é\"', kind => 'note', item_id => 'a', tag => 't', author => 'you', kept_from => 1",
    "'twin', '\"other\"', item_id => 'a', on_conflict => 'keep', expected_position => 0",
    "'twin', 'null', open => true, expected_position => 2",
    "'twin', 'null', expected_position => 2",
    "'twin', 'null', expected_position => -1",
    "'twin', 'null', kept_from => 9",
    "'twin', 'null', lease => '0:never'",
    "'twin', 'null', item_id => ''",
    "'twin', 'null', tag => E'a\\nb'",
    "'twin', 'null', author => repeat('a', 501)",
    "'twin', 'null', on_missing => 'perhaps'",
    "'twin', null",
    "null, 'null'",
    "'', 'null'",
    "'absent', 'null'",
    "'absent', 'null', on_missing => 'ignore'",
    "'twin', 'null', agent_id => 'another'",
    "'leased', 'null'",
    "'leased', 'null', lease => 'nonsense'",
    "'leased', 'null', lease => (select sid || ':wrong' from {schema}.session where session_id = 'leased')",
    "'leased', 'null', lease => (select sid || ':right' from {schema}.session where session_id = 'leased')",
]
OF_ANOTHER_TENANT = "'twin', 'null'"


def install(database: Database) -> None:
    database.run_file("twin.sql")
    for schema in ("agent_sessions", "twin"):
        answer(database, schema, "'leased', 'null', on_missing => 'create'")
        database.run(
            f"update {schema}.session set lease_digest = sha256('right'), lease_expires_at = now() + interval '1 hour' where session_id = 'leased'"
        )
    for tenant, call in [("", call) for call in CALLS] + [("another", OF_ANOTHER_TENANT)]:
        engine, twin = (answer(database, schema, call, tenant) for schema in ("agent_sessions", "twin"))
        if engine != twin:
            raise RuntimeError(f"session_append({call}): {engine} of the engine, {twin} of the twin")
    if (differs := database.value((SQL / "twin_differs.sql").read_text())) is not None:
        raise RuntimeError(f"the twin hashes {differs} in another way than the engine")


def answer(database: Database, schema: str, call: str, tenant: str = "") -> object:
    """What a call returns, or the SQLSTATE that it ends with, as the writer."""
    with database.connect(WRITER) as connection:
        connection.execute("select set_config('agent_sessions.tenant', %s, false)", [tenant])
        try:
            row = connection.execute(f"select {schema}.session_append({call.replace('{schema}', schema)})").fetchone()
        except psycopg.Error as error:
            return error.sqlstate
    return row
