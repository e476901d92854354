"""One item at a time into 1 000 sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from .. import payloads, pgbench
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..server import Database

SESSIONS = 1_000


@dataclass(frozen=True)
class Load:
    """What all contenders of a comparison are given alike."""

    database: Database
    seconds: int
    clients: int
    payloads: list[str]
    numbers: Iterator[int]
    """The first of 1 000 new sessions for each turn."""


@dataclass(frozen=True)
class Store:
    """Somewhere to append to."""

    name: str
    script: str
    table: str
    open_sessions: str = ""
    """Makes the sessions from %(first)s to %(last)s, where they have to be there first."""

    def contender(self, load: Load) -> Contender:
        return Contender(self.name, lambda: self.append(load))

    def append(self, load: Load) -> float:
        """Appends a second. Each transaction has to have left its row."""
        first = next(load.numbers)
        if self.open_sessions:
            with load.database.connect() as connection:
                connection.execute(self.open_sessions, {"first": first, "last": first + SESSIONS - 1})
        load.database.settle()
        rows = f"select count(*) from {self.table}"
        before = load.database.value(rows)
        turn = pgbench.run(
            load.database,
            ["lockstep.sql", self.script],
            clients=load.clients,
            seconds=load.seconds,
            payloads=load.payloads,
            variables={"step": -1, "first": first, "sessions": SESSIONS},
        )
        written = load.database.value(rows) - before
        if written != turn.transactions:
            raise RuntimeError(f"{self.name}: {turn.transactions} transactions have left {written} rows")
        return turn.per_second


FLOOR = Store("bare INSERT", "floor.sql", "floor.session_item")
APPEND = Store(
    "session_append",
    "append.sql",
    "agent_sessions.session_item",
    """
    insert into agent_sessions.session (sid, session_id) overriding system value
    select n, n::text from generate_series(%(first)s::bigint, %(last)s) n
    """,
)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for clients, least in ((1, 0.95), (8, 0.85)):
        with bench.server.database("append") as database:
            database.run_file("floor.sql")
            load = Load(database, bench.seconds, clients, payloads.kilobytes(1), count(1, SESSIONS))
            yield Comparison(
                name=f"append_{clients}",
                title=f"Appending 1 KB, {clients} clients",
                unit="appends/s",
                contenders=[store.contender(load) for store in (FLOOR, APPEND)],
                bars=[Bar(APPEND.name, FLOOR.name, "at least", least)],
            )
