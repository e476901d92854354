"""Peers that are used from a client language, called from there; and agent_sessions by the same language's ordinary driver.

Both write as the same role, to the same database, in which the peer has made its tables. A client is a process with one connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from .. import payloads
from ..bench import Bench
from ..client import Client
from ..comparison import Bar, Comparison
from ..crew import WARM_UP, Crew
from ..server import WRITER, Database

STEPS = 500
"""Of a thread: the messages that a checkpoint has in the end."""

ALONE, BOTH = (1,), (1, 8)
"""Numbers of clients."""


@dataclass(frozen=True)
class Store:
    name: str
    program: str
    operation: str
    rows: str = ""
    """The table, and which of its rows, that an operation adds `rows_each` to; empty for reading."""
    rows_each: int = 1
    ours: bool = False


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    unit: str
    clients: tuple[int, ...]
    stores: list[Store]
    """The peer first."""
    least: float | None = None
    """How many times the peer's speed is asked of the first that is ours."""
    thread: bool = False
    """A turn is a thread of `STEPS` steps, however long that takes."""


def ours(name: str, program: str, operation: str, entries: str = "", rows_each: int = 1) -> Store:
    rows = entries and f"agent_sessions.session_item where {entries}"
    return Store(name, program, operation, rows, rows_each, ours=True)


WORKS = [
    Work(
        "noetaris_save",
        "Node.js: saving a run whose state was and is 1 KB",
        "saves/s",
        BOTH,
        [
            Store("noetaris save", "noetaris_save.mjs", "save", "public.session_runs"),
            ours("session_append by node-postgres", "agent_sessions_pg.mjs", "save", "kind = 'run'"),
            ours("session_append by node-postgres, named statement", "agent_sessions_pg.mjs", "save_named", "kind = 'run'"),
            Store("bare INSERT by node-postgres, named statement", "floor_pg.mjs", "save_bare", "floor.session_item"),
        ],
        least=3,
    ),
    Work(
        "openai_add_1",
        "Python: adding 1 item of 1 KB",
        "calls/s",
        BOTH,
        [
            Store("OpenAI Agents add_items", "openai_agents.py", "add_1", "public.agent_messages"),
            ours("session_append by asyncpg", "agent_sessions_asyncpg.py", "add_1", "op = 'append'"),
        ],
        least=3,
    ),
    Work(
        "openai_add_10",
        "Python: adding 10 items of 1 KB",
        "calls/s",
        ALONE,
        [
            Store("OpenAI Agents add_items", "openai_agents.py", "add_10", "public.agent_messages", 10),
            ours("session_append_batch by asyncpg", "agent_sessions_asyncpg.py", "add_10", "op = 'append'", 10),
        ],
        least=3,
    ),
    Work(
        "openai_last_50",
        f"Python: the last 50 of {STEPS} items of 1 KB",
        "calls/s",
        ALONE,
        [
            Store("OpenAI Agents get_items", "openai_agents.py", "last_50"),
            ours("session_history by asyncpg", "agent_sessions_asyncpg.py", "last_50"),
        ],
    ),
    Work(
        "langgraph_put",
        "Python: saving each step of a thread, a message of 1 KB each",
        "steps/s",
        BOTH,
        [
            Store("LangGraph put", "langgraph_checkpoints.py", "put", "public.checkpoints"),
            Store("LangGraph put_writes, put (DeltaChannel, beta)", "langgraph_checkpoints.py", "put_delta", "public.checkpoints"),
            ours("session_append, session_set by psycopg", "agent_sessions_psycopg.py", "put", "op = 'append'"),
        ],
        least=3,
        thread=True,
    ),
    Work(
        "langgraph_load",
        f"Python: a thread of {STEPS} messages of 1 KB",
        "calls/s",
        ALONE,
        [
            Store("LangGraph get_tuple", "langgraph_checkpoints.py", "load"),
            ours("session_get, session_history by psycopg", "agent_sessions_psycopg.py", "load"),
        ],
    ),
    Work(
        "absurd_spawn",
        "Python: a task with parameters of 1 KB",
        "tasks/s",
        ALONE,
        [
            Store("Absurd spawn", "absurd_tasks.py", "spawn", "absurd.t_default"),
            ours("session_create by psycopg", "agent_sessions_psycopg.py", "spawn", "kind = 'params'"),
        ],
    ),
    Work(
        "absurd_step",
        "Python: the result of a task's step, 1 KB, under a lease",
        "steps/s",
        BOTH,
        [
            Store("Absurd step", "absurd_tasks.py", "step", "absurd.c_default"),
            ours("session_append, session_extend by psycopg", "agent_sessions_psycopg.py", "step", "kind = 'step'"),
        ],
    ),
]


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with TemporaryDirectory() as folder:
        texts = Path(folder) / "payloads.ndjson"
        # No message of a thread is a copy of another one.
        texts.write_text("\n".join(payloads.kilobytes(1, STEPS)) + "\n")
        for work in WORKS:
            for clients in work.clients:
                with bench.server.database("clients") as database:
                    database.run(f"grant create on database clients to {WRITER}; grant all on schema public to {WRITER}")
                    database.run_file("floor.sql")
                    yield from compare(work, clients, database, texts, bench.seconds)


def compare(work: Work, clients: int, database: Database, texts: Path, seconds: int) -> Iterator[Comparison]:
    # A thread is shorter in a smoke run.
    steps = min(STEPS, 50 * seconds) if work.thread else None
    title = f"{work.title}, {steps} steps" if steps else work.title
    crews = [crew(store, clients, database, texts) for store in work.stores]
    try:
        yield Comparison(
            name=f"{work.name}_{clients}",
            title=f"{title}, {clients} client{'s' if clients > 1 else ''}",
            unit=work.unit,
            contenders=[one.contender(seconds, steps) for one in crews],
            bars=bars(work),
        )
    finally:
        for one in crews:
            one.close()


def bars(work: Work) -> list[Bar]:
    if work.least is None:
        return []
    peer, mine = work.stores[0], next(store for store in work.stores if store.ours)
    return [Bar(mine.name, peer.name, "at least", work.least)]


def crew(store: Store, clients: int, database: Database, texts: Path) -> Crew:
    arguments = [uri(database), store.operation, "--payloads", str(texts), "--name"]
    members = [
        Client(store.name, store.program, [*arguments, f"{store.operation} {number}"], WARM_UP) for number in range(clients)
    ]
    return Crew(store.name, members, database, store.rows, store.rows_each, store.ours)


def uri(database: Database) -> str:
    """The one form of a DSN that all drivers know."""
    dsn = conninfo_to_dict(database.dsn())
    place = urlencode({"host": dsn["host"], "port": dsn["port"]})
    return f"postgresql://{dsn['user']}@/{dsn['dbname']}?{place}"
