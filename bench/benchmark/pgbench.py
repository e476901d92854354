"""One turn of pgbench: prepared statements, the payload bound as a parameter."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .server import ROOT, Database

SCRIPTS = ROOT / "bench" / "pgbench"


@dataclass(frozen=True)
class Logged:
    """A transaction, as pgbench logs it: when it ended, in seconds since 1970, and how long it took, in milliseconds."""

    ended: float
    took: float


@dataclass(frozen=True)
class Turn:
    transactions: int
    per_second: float
    log: list[Logged]
    """Of every transaction; empty unless asked for."""

    def percentile(self, share: float) -> float:
        """The milliseconds that this share of the transactions took at most."""
        return sorted(one.took for one in self.log)[int(share * (len(self.log) - 1))]


def script(*names: str) -> str:
    """Files of bench/pgbench, one after another."""
    return "\n".join((SCRIPTS / name).read_text() for name in names)


def run(
    database: Database,
    text: str,
    *,
    clients: int,
    seconds: int | None = None,
    transactions: int | None = None,
    payloads: Sequence[str] = (),
    variables: Mapping[str, object] | None = None,
    log: bool = False,
    search_path: str = "public",
) -> Turn:
    """Runs a script as the writer, for some seconds or for a number of transactions of each client. Each transaction takes one
    of the payloads by chance."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {f"payload_{number}": payload for number, payload in enumerate(payloads)}
        command = [str(database.server.bin / "pgbench"), "--no-vacuum", "--protocol=prepared"]
        command += [f"--client={clients}", f"--jobs={min(clients, 2)}"]
        command += [f"--time={seconds}" if transactions is None else f"--transactions={transactions}"]
        command += [f"--define={name}={value}" for name, value in {"clients": clients, **settings, **(variables or {})}.items()]
        for number in range(max(len(payloads), 1)):
            # pgbench has no arrays: a script for each payload.
            file = Path(folder) / f"{number}.sql"
            file.write_text(re.sub(r":payload\b", f":payload_{number}", text))
            command += [f"--file={file}"]
        if log:
            command += ["--log", f"--log-prefix={folder}/log"]
        command += [f"{database.dsn()} options='-c search_path={search_path}'"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"pgbench: {done.stderr[-2000:]}")
        lines = [line.split() for file in Path(folder).glob("log*") for line in file.read_text().splitlines()]
    return Turn(
        transactions=int(_find(r"transactions actually processed: (\d+)", done.stdout)),
        per_second=float(_find(r"tps = ([\d.]+) \(without initial", done.stdout)),
        log=[Logged(int(words[4]) + int(words[5]) / 1e6, int(words[2]) / 1e3) for words in lines],
    )


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"pgbench has printed no '{pattern}':\n{text}")
    return found[1]
