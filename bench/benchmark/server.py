"""The private server that everything is compared in, with the durability that PostgreSQL has by default."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "target" / "bench"
SQL = ROOT / "bench" / "sql"

WRITER = "bench_writer"
"""The ordinary role that all writing is done as."""

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_compression",
    "data_checksums",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "default_toast_compression",
)


class Server:
    """A new cluster of `scripts/cluster.sh`, gone with the end of the `with` block."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.bin = ROOT / "target" / "pg" / str(major) / "bin"

    def __enter__(self) -> Self:
        self._cluster("remove", "bench")
        self._cluster("start", "bench", str(self.major))
        self.env = dict(re.findall(r"(PG\w+)=(\S+)", self._cluster("env", "bench")))
        self.superuser = self.env["PGUSER"]
        Database(self, "postgres").run(f"create role {WRITER} login")
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster("remove", "bench")

    def dsn(self, database: str, role: str) -> str:
        return f"host={self.env['PGHOST']} port={self.env['PGPORT']} dbname={database} user={role}"

    def connect(self, database: str, role: str | None = None) -> psycopg.Connection:
        return psycopg.connect(self.dsn(database, role or self.superuser), autocommit=True)

    def settings(self) -> dict[str, str]:
        postgres = Database(self, "postgres")
        return {name: postgres.value(f"show {name}") for name in SETTINGS}

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """A new database that has the extension, and lets the writer write; dropped at the end of the `with` block."""
        with self.bare_database(name) as database:
            database.run("create extension agent_sessions")
            database.run(f"select agent_sessions.access_grant('{WRITER}', 'writer')")
            yield database

    @contextmanager
    def bare_database(self, name: str) -> Iterator[Database]:
        postgres = Database(self, "postgres")
        postgres.run(f"create database {name}")
        try:
            yield Database(self, name)
        finally:
            postgres.run(f"drop database {name} with (force)")

    @staticmethod
    def _cluster(*arguments: str) -> str:
        command = [str(ROOT / "scripts" / "cluster.sh"), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@dataclass(frozen=True)
class Database:
    server: Server
    name: str

    def dsn(self, role: str = WRITER) -> str:
        return self.server.dsn(self.name, role)

    def connect(self, role: str | None = None) -> psycopg.Connection:
        """A connection that commits by itself; the superuser's where no role is given."""
        return self.server.connect(self.name, role)

    def run(self, sql: str, parameters: Mapping[str, object] | None = None) -> None:
        """Statements, as the superuser; one of them if it has parameters."""
        with self.connect() as connection:
            connection.execute(sql, parameters)

    def run_file(self, name: str) -> None:
        """The statements of a file of bench/sql, as the superuser."""
        self.run((SQL / name).read_text())

    def value(self, sql: str, *parameters: object) -> Any:
        """The first column of the first row, as the superuser."""
        with self.connect() as connection:
            row = connection.execute(sql, parameters or None).fetchone()
        return row[0] if row else None

    def settle(self) -> None:
        """What one turn leaves behind is not to be paid by the next: dead rows, missing statistics, dirty pages."""
        with self.connect() as connection:
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")
