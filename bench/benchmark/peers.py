"""Peers that live in the server, installed as their packages say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .comparison import Unavailable
from .server import ROOT, TARGET, WRITER, Database

MODULES = TARGET / "node" / "node_modules"


def message_db(database: Database) -> None:
    """Runs the installation script of message-db, and makes the writer a member of its role."""
    installer = _package("@eventide/message-db") / "database" / "install.sh"
    path = f"{database.server.bin}:{os.environ['PATH']}"
    names = {"DATABASE_NAME": database.name, "CREATE_DATABASE": "off"}
    _run([str(installer)], {**os.environ, **database.server.env, **names, "PATH": path})
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
