"""Where items are appended to: ours, the bare table, and the peers that live in the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import peers, pgbench
from .comparison import Contender
from .server import SQL, Database

SESSIONS = 1_000
NONCE = "7a1f9e0c55d24b8e93c6d1f04b7e2a68"
"""Of every lease, so that a script can tell it from the session's number alone."""


@dataclass(frozen=True)
class Load:
    """What all contenders of a comparison are given alike."""

    database: Database
    seconds: int
    clients: int
    payloads: Sequence[str]
    numbers: Iterator[int]
    """The first number of 1 000 new sessions, for each turn."""


def installed_already(_: Database) -> None:
    """The extension comes with its database."""


@dataclass(frozen=True)
class Store:
    name: str
    script: str
    """Of pgbench: appends one item, at the position that it expects if it can say so."""
    table: str
    """Where that leaves a row."""
    install: Callable[[Database], None] = installed_already
    opening: Sequence[str] = ()
    """Statements that make the sessions from %(first)s to %(last)s, where appending does not."""
    variables: Mapping[str, object] = field(default_factory=dict)
    search_path: str = "public"
    ours: bool = False

    def contender(self, load: Load) -> Contender:
        return Contender(self.name, lambda: self.append(load), lambda: self.install(load.database), self.ours)

    def append(self, load: Load) -> float:
        """Appends a second, of one turn. Each transaction has to have left its row."""
        first = next(load.numbers)
        for statement in self.opening:
            load.database.run(statement, {"first": first, "last": first + SESSIONS - 1, "nonce": NONCE})
        load.database.settle()
        before = self.rows(load.database)
        turn = pgbench.run(
            load.database,
            ["lockstep.sql", self.script],
            clients=load.clients,
            seconds=load.seconds,
            payloads=load.payloads,
            variables={"step": -1, "first": first, "sessions": SESSIONS, **self.variables},
            search_path=self.search_path,
        )
        written = self.rows(load.database) - before
        if written != turn.transactions:
            raise RuntimeError(f"{self.name}: {turn.transactions} transactions have left {written} rows")
        return turn.per_second

    def rows(self, database: Database) -> int:
        return int(database.value(f"select count(*) from {self.table}"))


def install_twin(database: Database) -> None:
    """The twin, and the proof that it hashes as the engine does."""
    database.run_file("twin.sql")
    database.run("""
        select agent_sessions.session_append('twin', '{"n": 1.0, "n": "\\u0000"}', on_missing => 'create');
        select agent_sessions.session_append('twin', '"é"', kind => 'note', item_id => 'i-1', tag => 't', author => 'me',
          attrs => '{"b": [1, null], "a": "x"}', kept_from => 1);
        select agent_sessions.session_append('twin', 'null', open => true);
    """)
    if (entry := database.value((SQL / "twin_differs.sql").read_text())) is not None:
        raise RuntimeError(f"the twin hashes an entry of session {entry} in another way than the engine")


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
    "floor.sql",
    "floor.session_item",
    install=lambda database: database.run_file("floor.sql"),
)
APPEND = Store(
    "session_append",
    "append.sql",
    "agent_sessions.session_item",
    opening=[OPEN],
    ours=True,
)
GUARDED = Store(
    "session_append, all guards",
    "append_guarded.sql",
    "agent_sessions.session_item",
    opening=[OPEN, LEASE],
    variables={"nonce": f":{NONCE}"},
    ours=True,
)
TWIN = Store(
    "PL/pgSQL twin, all guards",
    "twin.sql",
    "twin.session_item",
    install=install_twin,
    opening=[OPEN_TWIN, LEASE.replace("agent_sessions.", "twin.")],
    variables={"nonce": f":{NONCE}"},
)
MESSAGE_DB = Store(
    "message-db",
    "message_db.sql",
    "message_store.messages",
    install=peers.message_db,
    variables={"category": "session"},
    search_path="message_store",
)
ONE_CATEGORY = Store(
    "message-db, one category",
    "message_db.sql",
    "message_store.messages",
    variables={"category": "session-"},
    search_path="message_store",
)
EMMETT = Store(
    "Emmett",
    "emmett.sql",
    "emt_messages",
    install=peers.emmett,
    variables={"partition": "emt:default"},
)
HAND_WRITTEN = Store(
    "hand-written SQL",
    "hand_written.sql",
    "hand_written.message",
    install=lambda database: database.run_file("hand_written.sql"),
    opening=["insert into hand_written.session select generate_series(%(first)s::bigint, %(last)s)"],
)
