"""Writing while somebody holds a snapshot, a report or a dump, so that no dead row can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..pgbench import Turn, script
from ..server import Database
from ..store import APPEND, Load, Store

APPEND_AND_SET = replace(APPEND, script=script("lockstep.sql", "append_and_set.sql"))
FREE, HELD = "no snapshot", "a snapshot held"


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for name, title, store in (
        ("held_snapshot", "Appending 1 KB", APPEND),
        ("held_snapshot_state", "Appending 1 KB, a change of state in ten", APPEND_AND_SET),
    ):
        with bench.server.database(name) as database:
            load = Load(database, 8, bench.held, payloads=payloads.kilobytes(1), log=True)
            yield Comparison(
                name,
                f"{title}, 8 clients: the last third of {bench.held} s",
                "appends/s",
                contenders(database, store, load),
                [Bar(HELD, FREE, "at least", 0.9)],
            )


def contenders(database: Database, store: Store, load: Load) -> list[Contender]:
    def free() -> float:
        return last_third(store.turn(load))

    def held() -> float:
        with database.connect() as connection, connection.transaction():
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select count(*) from agent_sessions.session")
            return free()

    return [Contender(FREE, free, ours=True), Contender(HELD, held, ours=True)]


def last_third(turn: Turn) -> float:
    """Transactions a second."""
    ends = sorted(one.ended for one in turn.log)
    length = (ends[-1] - ends[0]) / 3
    return sum(end > ends[-1] - length for end in ends) / length
