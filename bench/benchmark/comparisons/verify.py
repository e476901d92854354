"""Verifying a chain, which hashes each entry twice, against hashing each payload once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..server import WRITER

ITEMS = 100_000
BYTES = 1024
HASH = "select count(sha256(convert_to(payload::text, 'UTF8'))) from agent_sessions.session_item"
VERIFY = "select entries from agent_sessions.session_verify('s') where ok"


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("verify") as database:
        database.run_file("fill.sql")
        with database.connect(WRITER) as writer, database.connect() as superuser, database.connect() as single:
            writer.execute("call bench.fill('s', %s, %s)", (ITEMS, BYTES))
            # session_verify runs in one process; the server may take several for a statement of this size.
            single.execute("set max_parallel_workers_per_gather = 0")
            database.settle()

            def contender(name: str, connection: psycopg.Connection, sql: str, *, ours: bool = False) -> Contender:
                return Contender(name, lambda: entries_a_second(connection, sql, bench.seconds), ours=ours)

            one = contender("count(sha256(payload)), one process", single, HASH)
            several = contender("count(sha256(payload)), as planned by default", superuser, HASH)
            verify = contender("session_verify", writer, VERIFY, ours=True)
            yield Comparison(
                name="verify",
                title=f"Verifying {ITEMS:,} entries of 1 KB",
                unit="entries/s",
                contenders=[one, several, verify],
                bars=[Bar(verify.name, other.name, "at least", 0.5) for other in (one, several)],
            )


def entries_a_second(connection: psycopg.Connection, sql: str, seconds: int) -> float:
    runs = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if connection.execute(sql).fetchone() != (ITEMS,):
            raise RuntimeError(f"not all entries: {sql}")
        runs += 1
    return runs * ITEMS / (time.perf_counter() - start)
