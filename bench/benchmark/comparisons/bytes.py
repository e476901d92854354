"""What an item takes on disk and in the WAL, against the bytes of its payload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..server import Database
from ..store import APPEND, FLOOR, GUARDED, Load, Store
from ..turns import Turns

PAYLOAD = Contender("payload", lambda: 1024)
STORES = (FLOOR, APPEND, GUARDED)
CLIENTS = 8
ITEMS = 10_000


@dataclass(frozen=True)
class Grown:
    """By how many bytes an item lets things grow."""

    stored: float
    logged: float


def measure(store: Store, load: Load) -> Grown:
    first = store.open(load)
    size, lsn = stored(load.database, store.table), load.database.value("select pg_current_wal_flush_lsn()")
    store.append(load, first)
    grown = load.database.value("select sum(record_size) from pg_get_wal_stats(%s, pg_current_wal_flush_lsn())", lsn)
    return Grown((stored(load.database, store.table) - size) / ITEMS, float(grown) / ITEMS)


def stored(database: Database, table: str) -> int:
    return int(database.value(f"select pg_table_size('{table}') + pg_indexes_size('{table}')"))


SIZES = [
    ("", "an item of 1 KB", payloads.kilobytes(1)),
    # Of items that are all of one size, what a page cannot hold of the next one is lost on every page.
    ("_spread", "items of 0.5 to 1.5 KB, 1 KB in the mean", payloads.spread(512, 1536)),
]


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for suffix, items, texts in SIZES:
        with bench.server.database(f"bytes{suffix}") as database:
            database.run("create extension pg_walinspect")
            load = Load(database, CLIENTS, transactions=ITEMS // CLIENTS, payloads=texts)
            for store in STORES:
                store.install(database)
            turns = {store: Turns(partial(measure, store, load)) for store in STORES}

            def contenders(name: str, number: Callable[[Grown], float], turns: dict[Store, Turns[Grown]] = turns) -> list[Contender]:
                told = [Contender(store.name, turn.tell(name, number), ours=store.ours) for store, turn in turns.items()]
                return [PAYLOAD, *told]

            yield Comparison(
                f"bytes_stored{suffix}",
                f"Table and indexes, {items}",
                "bytes",
                contenders("stored", lambda grown: grown.stored),
                [Bar(store.name, PAYLOAD.name, "at most", 1.3) for store in (APPEND, GUARDED)],
                better="lower",
            )
            yield Comparison(
                f"bytes_logged{suffix}",
                f"WAL without full-page images, {items}",
                "bytes",
                contenders("logged", lambda grown: grown.logged),
                [Bar(store.name, PAYLOAD.name, "at most", 1.5) for store in (APPEND, GUARDED)],
                better="lower",
            )
