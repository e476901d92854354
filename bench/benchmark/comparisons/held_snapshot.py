"""Appends and changes of state while somebody holds a snapshot, so that no dead row can be removed: a long report, a dump."""

from __future__ import annotations

from collections.abc import Iterator

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..pgbench import Turn, script
from ..store import OPEN, Load, Store

WRITES = Store(
    "session_append and session_set",
    script("lockstep.sql", "append_and_set.sql"),
    "agent_sessions.session_item",
    opening=[OPEN],
    ours=True,
)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("held_snapshot") as database:
        load = Load(database, 8, bench.held, payloads=payloads.kilobytes(1), log=True)

        def held() -> float:
            with database.connect() as connection, connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                connection.execute("select count(*) from agent_sessions.session")
                return last_third(WRITES.turn(load))

        yield Comparison(
            "held_snapshot",
            f"Appending 1 KB and setting the state, 8 clients: the last third of {bench.held} s",
            "pairs/s",
            [
                Contender("without a snapshot", lambda: last_third(WRITES.turn(load)), ours=True),
                Contender("with a snapshot held", held, ours=True),
            ],
            [Bar("with a snapshot held", "without a snapshot", "at least", 0.9)],
        )


def last_third(turn: Turn) -> float:
    ends = sorted(one.ended for one in turn.log)
    length = (ends[-1] - ends[0]) / 3
    return sum(end > ends[-1] - length for end in ends) / length
