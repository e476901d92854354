"""A contender that is a client program: as many processes of it as there are clients, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .client import Client
from .comparison import Contender, Unavailable
from .server import Database

WARM_UP = 50
"""Operations of each client, twice, before the first round."""


@dataclass(frozen=True)
class Crew:
    name: str
    clients: Sequence[Client]
    database: Database
    rows: str
    """The table, and which of its rows, that an operation adds `rows_each` to; empty where it adds nothing."""
    rows_each: int
    ours: bool

    def contender(self, seconds: float, operations: int | None) -> Contender:
        """Each client does so many operations in a turn, or as many as take about that long."""
        return Contender(self.name, self.turn, lambda: self.prepare(seconds, operations), self.ours)

    def prepare(self, seconds: float, operations: int | None) -> None:
        first, *others = self.clients
        # It makes the tables, which two at once cannot.
        first.prepare()
        with ThreadPoolExecutor() as threads:
            list(threads.map(Client.prepare, others))
        try:
            self.turn()
            per_second = self.turn() / len(self.clients)
        except EOFError as error:
            raise Unavailable(str(error)) from None
        for client in self.clients:
            client.operations = operations or max(1, round(per_second * seconds))

    def turn(self) -> float:
        """Operations a second, of all clients together."""
        before = self._count()
        with ThreadPoolExecutor(len(self.clients)) as threads:
            per_second = sum(threads.map(Client.turn, self.clients))
        added = self._count() - before
        expected = sum(client.operations for client in self.clients) * self.rows_each if self.rows else 0
        if added != expected:
            raise RuntimeError(f"{self.name} has added {added} rows, not {expected}")
        return per_second

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def _count(self) -> int:
        return self.database.value(f"select count(*) from {self.rows}") if self.rows else 0
