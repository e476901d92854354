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
from ..server import WRITER

CHUNKS = 400
BYTES = 8_000


@dataclass
class Store:
    """A way to stream; its turns take the same texts as those of the others."""

    name: str
    stream: Callable[[psycopg.Connection, int, list[str]], None]
    writer: psycopg.Connection
    superuser: psycopg.Connection
    ours: bool = True
    texts: Iterator[list[str]] = field(default_factory=lambda: cycle(texts()))
    turns: int = 0
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def contender(self) -> Contender:
        return Contender(self.name, self.turn, ours=self.ours)

    def turn(self) -> float:
        """Bytes of WAL for each chunk."""
        self.turns += 1
        since = self.end_of_wal()
        self.stream(self.writer, self.turns, next(self.texts))
        written = self.superuser.execute("select * from bench.wal(%s, %s)", (since, self.end_of_wal())).fetchall()
        for record, records, size in written:
            self.records[record] += records
            self.bytes[record] += size
        return float(sum(size for _, _, size in written)) / CHUNKS

    def end_of_wal(self) -> str:
        return self.superuser.execute("select pg_current_wal_flush_lsn()").fetchone()[0]

    def breakdown(self) -> list[str]:
        chunks = self.turns * CHUNKS
        return [
            f"{self.name}: {record}, {self.records[record] / chunks:.2f} a chunk of {number(size / self.records[record])} bytes"
            for record, size in self.bytes.most_common()
            if size >= chunks
        ]


def texts() -> list[list[str]]:
    """Messages in chunks: stretches of real conversations."""
    told = "".join(payloads.contents())
    stretches = [told[start : start + BYTES] for start in range(0, len(told) - BYTES, BYTES)]
    return [[text[CHUNK * place : CHUNK * (place + 1)] for place in range(CHUNKS)] for text in stretches]


CHUNK = BYTES // CHUNKS


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
    target = writer.execute(open_item, (item_id,)).fetchone()[0]
    for place, chunk in enumerate(chunks):
        writer.execute("select agent_sessions.session_delta('s', %s, %s, %s)", (target, place, chunk))
    close = "select agent_sessions.session_revise('s', %s::json, item_id => %s)"
    writer.execute(close, (as_json("".join(chunks)), item_id))


def as_json(text: str) -> str:
    return json.dumps({"role": "assistant", "content": text})


def comparisons(bench: Bench) -> Iterator[Comparison]:
    with bench.server.database("streaming") as database:
        database.run_file("streaming.sql")
        with database.connect(WRITER) as writer, database.connect() as superuser:
            writer.prepare_threshold = 0
            writer.execute("select from agent_sessions.session_create('s')")
            rewritten = Store("UPDATE of a json column", rewrite, writer, superuser, ours=False)
            revised = Store("session_revise", revise, writer, superuser)
            streamed = Store("session_delta", delta, writer, superuser)
            yield Comparison(
                name="streaming",
                title=f"A message of {BYTES:,} bytes in {CHUNKS} chunks ({payloads.transcripts_source()})",
                unit="bytes of WAL a chunk",
                contenders=[store.contender() for store in (rewritten, revised, streamed)],
                bars=[Bar(streamed.name, rewritten.name, "at most", 0.15)],
                better="lower",
                notes=streamed.breakdown,
            )
