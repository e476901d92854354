"""What an append costs as the items of 1 000 sessions become more, and as sessions of 10 items become more."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from .. import payloads, pgbench
from ..bench import Bench
from ..comparison import Comparison, Contender
from ..report import number
from ..server import WRITER, Database

BYTES = 200
# Few enough that the smallest log is about as long after the rounds as it was before.
APPENDS = 2_000


@dataclass
class Size:
    """A database that holds so much, and what its appends have cost."""

    database: Database
    sessions: int
    items: int
    """Of a session."""
    pages: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)

    def fill(self) -> None:
        self.database.run_file("fill.sql")
        self.database.run_file("scale.sql")
        # Waiting for the disk takes longer than all else, and would hide a difference.
        self.database.run(f"alter database {self.database.name} set synchronous_commit = off")
        with self.database.connect(WRITER) as writer:
            writer.execute("call bench.fill_sessions(%s, %s, %s)", (self.sessions, self.items, BYTES))
        self.database.run("call bench.age_sessions()")
        self.database.run("vacuum full agent_sessions.session")
        self.database.settle()

    def append(self) -> float:
        """Milliseconds an append."""
        pages, wal = self.counters()
        turn = pgbench.run(
            self.database,
            pgbench.script("scale.sql"),
            clients=1,
            transactions=APPENDS,
            payloads=[payloads.message(BYTES)],
            variables={"sessions": self.sessions},
        )
        pages_after, wal_after = self.counters()
        self.pages.append((pages_after - pages) / APPENDS)
        self.wal.append((wal_after - wal) / APPENDS)
        return 1000 / turn.per_second

    def counters(self) -> tuple[int, int]:
        """Pages looked at, and bytes of WAL. A backend reports what it has looked at when it ends."""
        with self.database.connect() as superuser:
            # The server waits for the end of those that are ending.
            end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and usename = %s"
            superuser.execute(end, (WRITER,))
            counters = "select bench.pages_read(), (pg_current_wal_insert_lsn() - '0/0')::bigint"
            ((pages, wal),) = superuser.execute(counters).fetchall()
        return int(pages), int(wal)

    def note(self, name: str) -> str:
        size = self.database.value
        heights = [size("select bench.height(%s)", f"agent_sessions.{index}") for index in ("session_key", "session_item_pkey")]
        item = size("select pg_total_relation_size('agent_sessions.session_item')")
        session = size("select pg_total_relation_size('agent_sessions.session')")
        items = size("select count(*) from agent_sessions.session_item")
        pages, wal = statistics.median(self.pages), statistics.median(self.wal)
        return (
            f"{name}: {number(pages)} pages looked at and {number(wal)} bytes of WAL an append; indexes of {heights[0]} and "
            f"{heights[1]} levels; {number(item / items)} bytes an item, {number(session / self.sessions)} a session"
        )


@dataclass(frozen=True)
class Axis:
    name: str
    title: str
    sizes: list[tuple[int, int]]
    """Sessions, and items of each."""

    def comparison(self, bench: Bench, databases: ExitStack) -> Comparison:
        measured = {}
        for sessions, items in self.sizes:
            amount = {"items": sessions * items, "sessions": sessions}[self.name]
            database = databases.enter_context(bench.server.database(f"scale_{self.name}_{amount}"))
            measured[amount] = Size(database, sessions, items)
        names = {amount: f"{amount:,} {self.name}" for amount in measured}
        return Comparison(
            name=f"scale_{self.name}",
            title=self.title,
            unit="ms an append",
            contenders=[
                Contender(names[amount], size.append, size.fill, ours=True, size=amount) for amount, size in measured.items()
            ],
            better="lower",
            axis=self.name,
            notes=lambda: [size.note(names[amount]) for amount, size in measured.items() if size.pages],
        )


def comparisons(bench: Bench) -> Iterator[Comparison]:
    powers = range(5, bench.scale + 1)
    axes = (
        Axis(
            "items",
            "Appending to one of 1,000 sessions (synchronous_commit = off)",
            [(1_000, 10 ** (power - 3)) for power in powers],
        ),
        Axis(
            "sessions",
            "Appending to one of many sessions of 10 items (synchronous_commit = off)",
            [(10 ** (power - 1), 10) for power in (4, *powers)],
        ),
    )
    for axis in axes:
        with ExitStack() as databases:
            yield axis.comparison(bench, databases)
