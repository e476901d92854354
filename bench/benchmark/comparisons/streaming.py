"""A message that arrives in chunks: the WAL of adding to it, against that of writing it anew with each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, cycle

import psycopg

from .. import payloads
from ..bench import Bench
from ..comparison import Bar, Comparison, Contender
from ..report import number
from ..server import WRITER, Database

CHUNKS = 400
CHUNK = 20
BYTES = CHUNKS * CHUNK


@dataclass
class Way:
    """A way to stream a message. All of them are given the same ones."""

    name: str
    send: Callable[[psycopg.Connection, int, list[str]], None]
    """Stores the message of a number, chunk by chunk."""
    database: Database
    writer: psycopg.Connection
    ours: bool = True
    messages: Iterator[list[str]] = field(default_factory=lambda: cycle(texts()))
    turns: int = 0
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def contender(self) -> Contender:
        return Contender(self.name, self.turn, ours=self.ours)

    def turn(self) -> float:
        """Bytes of WAL for each chunk."""
        self.turns += 1
        since = self.end_of_wal()
        self.send(self.writer, self.turns, next(self.messages))
        with self.database.connect() as superuser:
            written = superuser.execute("select * from bench.wal(%s, %s)", (since, self.end_of_wal())).fetchall()
        for record, records, size in written:
            self.records[record] += records
            self.bytes[record] += int(size)
        return sum(int(size) for _, _, size in written) / CHUNKS

    def end_of_wal(self) -> str:
        return str(self.database.value("select pg_current_wal_flush_lsn()"))

    def breakdown(self) -> list[str]:
        chunks = self.turns * CHUNKS
        return [
            f"{self.name}: {record}, {self.records[record] / chunks:.2f} a chunk of {number(size / self.records[record])} bytes"
            for record, size in self.bytes.most_common()
            if size >= chunks
        ]


def texts() -> list[list[str]]:
    """Messages in chunks: stretches of conversations."""
    told = "".join(payloads.contents())
    stretches = [told[start : start + BYTES] for start in range(0, len(told) - BYTES, BYTES)]
    return [[text[CHUNK * place : CHUNK * (place + 1)] for place in range(CHUNKS)] for text in stretches]


def rewrite(writer: psycopg.Connection, message: int, chunks: list[str]) -> None:
    writer.execute("insert into bench.message values (%s, '{}')", (message,))
    for text in accumulate(chunks):
        writer.execute("update bench.message set body = %s::json where id = %s", (as_json(text), message))


def revise(writer: psycopg.Connection, message: int, chunks: list[str]) -> None:
    item_id = f"revised {message}"
    writer.execute("select agent_sessions.session_append('s', '{}', item_id => %s)", (item_id,))
    for text in accumulate(chunks):
        writer.execute("select agent_sessions.session_revise('s', %s::json, item_id => %s)", (as_json(text), item_id))


def delta(writer: psycopg.Connection, message: int, chunks: list[str]) -> None:
    item_id = f"streamed {message}"
    open_item = "select agent_sessions.session_append('s', '{}', item_id => %s, open => true)"
    ((target,),) = writer.execute(open_item, (item_id,)).fetchall()
    for place, chunk in enumerate(chunks):
        writer.execute("select agent_sessions.session_delta('s', %s, %s, %s)", (target, place, chunk))
    close = "select agent_sessions.session_revise('s', %s::json, item_id => %s)"
    writer.execute(close, (as_json("".join(chunks)), item_id))


def as_json(text: str) -> str:
    return json.dumps({"role": "assistant", "content": text})


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("streaming") as database, database.connect(WRITER) as writer:
        database.run_file("streaming.sql")
        writer.prepare_threshold = 0
        writer.execute("select from agent_sessions.session_create('s')")
        rewritten = Way("UPDATE of a json column", rewrite, database, writer, ours=False)
        revised = Way("session_revise", revise, database, writer)
        streamed = Way("session_delta", delta, database, writer)
        yield Comparison(
            name="streaming",
            title=f"A message of {BYTES:,} bytes in {CHUNKS} chunks ({payloads.lines_source()})",
            unit="bytes of WAL a chunk",
            contenders=[way.contender() for way in (rewritten, revised, streamed)],
            bars=[Bar(streamed.name, rewritten.name, "at most", 0.15)],
            better="lower",
            notes=streamed.breakdown,
        )
