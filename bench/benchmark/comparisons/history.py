"""The last page of a long log, against the bare index scan of as many rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    most: float | None
    """Times the bare index scan."""


FLAT = Page("session_history", "flat", 1.15)
REVISED = Page(f"with {REVISIONS:,} revisions", "revised", 2.5)
BRANCHES = {depth: Page(f"on a branch of depth {depth}", f"link {depth} of {depth}", most) for depth, most in ((8, 2.0), (64, None))}
PAGES = (FLAT, REVISED, *BRANCHES.values())


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("history") as database:
        fill(database)
        sid = database.value("select sid from agent_sessions.session where session_id = %s", FLAT.session)

        def turn(script: str, **variables: object) -> float:
            done = pgbench.run(database, [script], clients=1, seconds=bench.seconds, variables={"page": PAGE, **variables})
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
        for page in (FLAT, REVISED):
            writer.execute("call bench.fill(%s, %s, %s)", (page.session, ITEMS, BYTES))
        writer.execute(
            """
            insert into agent_sessions.session_item (sid, op, target, payload)
            select sid, 'revise', target, '{"role":"assistant","content":"revised"}'
            from agent_sessions.session, generate_series(0, %s - 1, %s) target
            where session_id = %s
            """,
            (ITEMS, ITEMS // REVISIONS, REVISED.session),
        )
        # The ancestors hold the items in equal parts; the branch has none of its own.
        for depth in BRANCHES:
            for number in range(depth):
                link, branch = (f"link {place} of {depth}" for place in (number, number + 1))
                share = ITEMS * (number + 1) // depth - ITEMS * number // depth
                writer.execute("call bench.fill(%s, %s, %s)", (link, share, BYTES))
                writer.execute("select from agent_sessions.session_branch(%s, new_session_id => %s)", (link, branch))
        for page in PAGES:
            rows = "select count(*) from agent_sessions.session_history(%s, newest_first => true, max_rows => %s)"
            if writer.execute(rows, (page.session, PAGE)).fetchone() != (PAGE,):
                raise RuntimeError(f"{page.session}: a page is not of {PAGE} items")
    database.run_file("history_floor.sql")
    database.settle()
