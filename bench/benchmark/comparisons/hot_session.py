"""8 clients that append to one session, whose commits therefore wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..pgbench import Turn, script
from ..store import OPEN, Load, Store
from ..turns import Turns

FLOOR = Store(
    "bare lock and INSERT",
    script("hot_floor.sql"),
    "floor.session_item",
    install=lambda database: database.run_file("floor.sql"),
    opening=["insert into floor.session values (%(first)s)"],
)
APPEND = Store(
    "session_append",
    script("hot_append.sql"),
    "agent_sessions.session_item",
    opening=[OPEN],
    ours=True,
)


STORES = (FLOOR, APPEND)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("hot_session") as database:
        load = Load(database, 8, bench.seconds, payloads=payloads.kilobytes(1), sessions=1, log=True)
        for store in STORES:
            store.install(database)
        turns = {store: Turns(partial(store.turn, load)) for store in STORES}

        def contenders(name: str, number: Callable[[Turn], float]) -> list[Contender]:
            return [Contender(store.name, turns[store].tell(name, number), ours=store.ours) for store in STORES]

        yield Comparison(
            "hot_session_p99",
            "Appending 1 KB to one session, 8 clients: 99th percentile",
            "ms",
            contenders("p99", lambda turn: turn.percentile(0.99)),
            [Bar(APPEND.name, FLOOR.name, "at most", 1.5)],
            better="lower",
        )
        yield Comparison(
            "hot_session_median",
            "Appending 1 KB to one session, 8 clients: median of the same turns",
            "ms",
            contenders("median", lambda turn: turn.percentile(0.5)),
            better="lower",
        )
        yield Comparison(
            "hot_session",
            "Appending 1 KB to one session, 8 clients: the same turns",
            "appends/s",
            contenders("all", lambda turn: turn.per_second),
        )
