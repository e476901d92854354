"""The last page of a long log, against the bare index scan of as many rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import psycopg

from .. import pgbench
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..server import WRITER, Database

ITEMS = 100_000
BYTES = 1024
PAGE = 50
REVISIONS = 1_000
FLOOR = "bare index scan"


@dataclass(frozen=True)
class Page:
    name: str
    session: str
    most: float | None = None
    """Times the bare index scan."""


@dataclass(frozen=True)
class Revised(Page):
    rounds: int = 1
    """How often the items written so far are followed by their revisions."""


@dataclass(frozen=True)
class Branch(Page):
    depth: int = 1


FLAT = Page("session_history", "flat", 1.15)
REVISED = (
    Revised(f"with {REVISIONS:,} revisions", "revised", 2.5, rounds=100),
    Revised(f"with {REVISIONS:,} revisions at its end", "revised at its end", 2.5),
)
BRANCHES = (
    Branch("on a branch of depth 8", "depth 8", 2.0, depth=8),
    Branch("on a branch of depth 64", "depth 64", depth=64),
)
PAGES = (FLAT, *REVISED, *BRANCHES)


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("history") as database:
        fill(database)
        sid = database.value("select sid from agent_sessions.session where session_id = %s", FLAT.session)

        def turn(script: str, **variables: object) -> float:
            text = pgbench.script(script)
            done = pgbench.run(database, text, clients=1, seconds=bench.seconds, variables={"page": PAGE, **variables})
            return 1000 / done.per_second

        def page(page: Page) -> Contender:
            return Contender(page.name, lambda: turn("history.sql", session=page.session), ours=True)

        yield Comparison(
            name="history",
            title=f"The last {PAGE} of {ITEMS:,} items of 1 KB (plan_cache_mode = {database.value('show plan_cache_mode')})",
            unit="ms",
            contenders=[Contender(FLOOR, lambda: turn("history_floor.sql", sid=sid)), *map(page, PAGES)],
            bars=[Bar(page.name, FLOOR, "at most", page.most) for page in PAGES if page.most is not None],
            better="lower",
        )


def fill(database: Database) -> None:
    database.run_file("fill.sql")
    with database.connect(WRITER) as writer:
        append(writer, FLAT.session, ITEMS)
        for revised in REVISED:
            fill_revised(writer, revised)
        for branch in BRANCHES:
            fill_branch(writer, branch)
        for page in PAGES:
            rows = "select count(*) from agent_sessions.session_history(%s, newest_first => true, max_rows => %s)"
            if writer.execute(rows, (page.session, PAGE)).fetchone() != (PAGE,):
                raise RuntimeError(f"{page.session}: a page is not of {PAGE} items")
    database.run_file("history_floor.sql")
    database.settle()


def append(writer: psycopg.Connection, session: str, items: int) -> None:
    writer.execute("call bench.fill(%s, %s, %s)", (session, items, BYTES))


def fill_revised(writer: psycopg.Connection, page: Revised) -> None:
    items, revisions = ITEMS // page.rounds, REVISIONS // page.rounds
    revise = """
        insert into agent_sessions.session_item (sid, op, target, payload)
        select sid, 'revise', target, '{"role":"assistant","content":"revised"}'
        from agent_sessions.session, generate_series(%s, %s - 1, %s) target
        where session_id = %s
        """
    for start in range(0, ITEMS + REVISIONS, items + revisions):
        append(writer, page.session, items)
        writer.execute(revise, (start, start + items, items // revisions, page.session))


def fill_branch(writer: psycopg.Connection, page: Branch) -> None:
    """The ancestors hold the items in equal parts; the branch has none of its own."""
    ancestors = [f"{page.session}, {number} of its ancestors" for number in range(page.depth)]
    for number, (session, branch) in enumerate(pairwise([*ancestors, page.session])):
        append(writer, session, ITEMS * (number + 1) // page.depth - ITEMS * number // page.depth)
        writer.execute("select from agent_sessions.session_branch(%s, new_session_id => %s)", (session, branch))
