"""Peers that live in the server, installed as their packages say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .comparison import Unavailable
from .server import ROOT, TARGET, WRITER, Database

MODULES = TARGET / "node" / "node_modules"


def message_db(database: Database) -> None:
    """Does what message-db's install.sh does, but for pgcrypto: of that it uses what every server has of its own since 13."""
    if database.value("select to_regclass('message_store.messages')") is not None:
        return
    folder = _package("@eventide/message-db") / "database"
    for statements in ("roles/message-store.sql", "schema/message-store.sql", "tables/messages.sql"):
        database.run((folder / statements).read_text())
    environment = {**os.environ, **database.server.env, "DATABASE_NAME": database.name}
    environment |= {"PATH": f"{database.server.bin}:{os.environ['PATH']}", "PGOPTIONS": "-c client_min_messages=warning"}
    for part in ("functions", "indexes", "views", "privileges"):
        _run([str(folder / f"install-{part}.sh")], environment)
    database.run(f"grant message_store to {WRITER}")


def emmett(database: Database) -> None:
    """Runs the SQL that Emmett's package prints."""
    _package("@event-driven-io/emmett-postgresql")
    database.run(_run(["node", str(ROOT / "bench" / "peers" / "emmett_schema.cjs"), str(MODULES)]))
    for privilege in ("select, insert, update on all tables", "usage on all sequences"):
        database.run(f"grant {privilege} in schema public to {WRITER}")


def _package(name: str) -> Path:
    folder = MODULES / name
    if not folder.is_dir():
        raise Unavailable(f"{name} is not installed")
    return folder


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{Path(command[-1]).name}: {done.stderr.strip()[-300:]}")
    return done.stdout
