"""One item at a time into 1 000 sessions, from an ordinary role.

Guarded is what an agent's worker does: under its lease, at the position that it expects, with an item_id against repetition.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison
from ..store import APPEND, EMMETT, FLOOR, GUARDED, HAND_WRITTEN, MESSAGE_DB, ONE_CATEGORY, TWIN, Load

OURS = [FLOOR, APPEND, GUARDED]
ALL = [*OURS, TWIN, MESSAGE_DB, ONE_CATEGORY, EMMETT, HAND_WRITTEN]


def bars(append: float, guarded: float) -> list[Bar]:
    return [Bar(APPEND.name, FLOOR.name, "at least", append), Bar(GUARDED.name, FLOOR.name, "at least", guarded)]


# With several clients, whose commits share their writes: alone, each of them waits for the disk most of the time.
AGAINST_PEERS = [
    Bar(GUARDED.name, TWIN.name, "at least", 1.25),
    Bar(GUARDED.name, MESSAGE_DB.name, "at least", 1.25),
    Bar(GUARDED.name, EMMETT.name, "at least", 1.7),
    Bar(GUARDED.name, HAND_WRITTEN.name, "at least", 2),
]

CASES = [
    ("append_1", "Appending 1 KB, 1 client", 1, payloads.kilobytes(1), ALL, bars(0.95, 0.9)),
    ("append_8", "Appending 1 KB, 8 clients", 8, payloads.kilobytes(1), ALL, bars(0.85, 0.78) + AGAINST_PEERS),
    ("append_lines", f"Appending the lines of {payloads.lines_source()}, 8 clients", 8, payloads.lines(), OURS, []),
    ("append_64", "Appending 64 KB, 8 clients", 8, payloads.kilobytes(64), OURS, []),
]


def comparisons(bench: Bench) -> Iterator[Comparison]:
    for name, title, clients, texts, stores, held_to in CASES:
        with bench.server.database(name) as database:
            load = Load(database, clients, bench.seconds, payloads=texts)
            yield Comparison(name, title, "appends/s", [store.contender(load) for store in stores], held_to)
