"""100 items at once: session_append_batch against one INSERT of 100 rows."""

from __future__ import annotations

from collections.abc import Iterator

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison
from ..pgbench import script
from ..store import OPEN, Load, Store

ITEMS = payloads.kilobytes(1, 100)

FLOOR = Store(
    "INSERT of 100 rows",
    script("lockstep.sql", "floor_batch.sql").replace("/* rows */", ", ".join(f"({n}, :row_{n}::json)" for n in range(100))),
    "floor.session_item",
    install=lambda database: database.run_file("floor.sql"),
    variables={f"row_{n}": item for n, item in enumerate(ITEMS)},
    items=100,
)
BATCH = Store(
    "session_append_batch",
    script("lockstep.sql", "append_batch.sql"),
    "agent_sessions.session_item",
    opening=[OPEN],
    variables={"items": "[" + ",".join(f'{{"payload":{item}}}' for item in ITEMS) + "]"},
    items=100,
    ours=True,
)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for clients, title in ((1, "1 client"), (8, "8 clients")):
        with bench.server.database("batch") as database:
            load = Load(database, clients, bench.seconds)
            yield Comparison(
                f"batch_{clients}",
                f"Appending 100 x 1 KB at once, {title}",
                "batches/s",
                [store.contender(load) for store in (FLOOR, BATCH)],
                [Bar(BATCH.name, FLOOR.name, "at least", 0.8)],
            )
