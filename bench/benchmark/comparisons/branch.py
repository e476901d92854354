"""A branch copies nothing: it costs the same at any length of its source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .. import pgbench
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..server import WRITER

LENGTHS = (10, 1_000_000)
BYTES = 128


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("branch") as database:
        database.run_file("fill.sql")
        with database.connect(WRITER) as writer:
            for length in LENGTHS:
                writer.execute("call bench.fill(%s, %s, %s)", (str(length), length, BYTES))
        # Waiting for the disk takes longer than all else, and would hide a difference.
        database.run("alter database branch set synchronous_commit = off")
        database.settle()

        def turn(length: int) -> float:
            script = pgbench.script("branch.sql")
            done = pgbench.run(database, script, clients=1, seconds=bench.seconds, variables={"session": length})
            return 1000 / done.per_second

        short, long = (Contender(f"of {length:,} items", partial(turn, length), ours=True) for length in LENGTHS)
        yield Comparison(
            name="branch",
            title="A branch (synchronous_commit = off)",
            unit="ms",
            contenders=[short, long],
            bars=[Bar(long.name, short.name, "at most", 1.2)],
            better="lower",
        )
