"""Where items are appended to: ours, the bare table, and the peers that live in the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from . import peers, pgbench, twin
from .comparison import Contender
from .pgbench import Turn, script
from .server import Database

SESSIONS = 1_000
NONCE = "7a1f9e0c55d24b8e93c6d1f04b7e2a68"
"""Of every lease: sids are the sessions' numbers, and so a script can tell the leases without asking."""


@dataclass(frozen=True)
class Load:
    """What all contenders of a comparison are given alike."""

    database: Database
    clients: int
    seconds: int | None = None
    """Of a turn."""
    transactions: int | None = None
    """Of a client in a turn, instead."""
    payloads: Sequence[str] = ()
    sessions: int = SESSIONS
    log: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: count(SESSIONS, SESSIONS))
    """The first of the numbers that a turn's sessions have: all turns append to new ones. Sessions of other origin are below."""


def installed_already(_: Database) -> None:
    """The extension comes with its database."""


@dataclass(frozen=True, eq=False)
class Store:
    name: str
    script: str
    """Of pgbench: appends once, at the position that it expects if it can say so."""
    table: str
    """Where that leaves its rows."""
    install: Callable[[Database], None] = installed_already
    opening: Sequence[str] = ()
    """Statements that make the sessions from %(first)s to %(last)s, where appending does not."""
    variables: Mapping[str, object] = field(default_factory=dict)
    search_path: str = "public"
    items: int = 1
    """Of one transaction."""
    ours: bool = False

    def contender(self, load: Load, number: Callable[[Turn], float] = lambda turn: turn.per_second) -> Contender:
        return Contender(self.name, lambda: number(self.turn(load)), lambda: self.install(load.database), self.ours)

    def turn(self, load: Load) -> Turn:
        """Appends to new sessions for one turn. Each transaction has to have left its rows."""
        first = self.open(load)
        before = self.rows(load.database)
        turn = self.append(load, first)
        written = self.rows(load.database) - before
        if written != turn.transactions * self.items:
            raise RuntimeError(f"{self.name}: {turn.transactions} transactions have left {written} rows")
        return turn

    def open(self, load: Load) -> int:
        first = next(load.numbers)
        for statement in self.opening:
            load.database.run(statement, {"first": first, "last": first + load.sessions - 1, "nonce": NONCE})
        load.database.settle()
        return first

    def append(self, load: Load, first: int) -> Turn:
        return pgbench.run(
            load.database,
            self.script,
            clients=load.clients,
            seconds=load.seconds,
            transactions=load.transactions,
            payloads=load.payloads,
            variables={"step": -1, "first": first, "sessions": load.sessions, **self.variables},
            log=load.log,
            search_path=self.search_path,
        )

    def rows(self, database: Database) -> int:
        return int(database.value(f"select count(*) from {self.table}"))


OPEN = """
    insert into agent_sessions.session (sid, session_id) overriding system value
    select n, n::text from generate_series(%(first)s::bigint, %(last)s) n
"""
LEASE = """
    update agent_sessions.session
    set lease_digest = sha256(convert_to(%(nonce)s, 'UTF8')), lease_holder = 'bench', lease_expires_at = now() + interval '12 hours'
    where sid between %(first)s and %(last)s
"""
OPEN_TWIN = """
    insert into twin.session (sid, tenant, agent_id, session_id) overriding system value
    select n, '', '', n::text from generate_series(%(first)s::bigint, %(last)s) n
"""

FLOOR = Store(
    "bare INSERT",
    script("lockstep.sql", "floor.sql"),
    "floor.session_item",
    install=lambda database: database.run_file("floor.sql"),
)
APPEND = Store(
    "session_append",
    script("lockstep.sql", "append.sql"),
    "agent_sessions.session_item",
    opening=[OPEN],
    ours=True,
)
GUARDED = Store(
    "session_append, all guards",
    script("lockstep.sql", "append_guarded.sql"),
    "agent_sessions.session_item",
    opening=[OPEN, LEASE],
    variables={"nonce": f":{NONCE}"},
    ours=True,
)
TWIN = Store(
    "PL/pgSQL twin, all guards",
    script("lockstep.sql", "twin.sql"),
    "twin.session_item",
    install=twin.install,
    opening=[OPEN_TWIN, LEASE.replace("agent_sessions.", "twin.")],
    variables={"nonce": f":{NONCE}"},
)
MESSAGE_DB = Store(
    "message-db",
    script("lockstep.sql", "message_db.sql"),
    "message_store.messages",
    install=peers.message_db,
    variables={"category": "session"},
    search_path="message_store",
)
ONE_CATEGORY = Store(
    "message-db, one category",
    script("lockstep.sql", "message_db.sql"),
    "message_store.messages",
    install=peers.message_db,
    variables={"category": "session-"},
    search_path="message_store",
)
EMMETT = Store(
    "Emmett",
    script("lockstep.sql", "emmett.sql"),
    "emt_messages",
    install=peers.emmett,
    variables={"partition": "emt:default"},
)
HAND_WRITTEN = Store(
    "hand-written SQL",
    script("lockstep.sql", "hand_written.sql"),
    "hand_written.message",
    install=lambda database: database.run_file("hand_written.sql"),
    opening=["insert into hand_written.session select generate_series(%(first)s::bigint, %(last)s)"],
)
