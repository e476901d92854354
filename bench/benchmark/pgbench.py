"""One turn of pgbench: prepared statements, the payload bound as a parameter."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .server import ROOT, Database

SCRIPTS = ROOT / "bench" / "pgbench"


@dataclass(frozen=True)
class Turn:
    transactions: int
    per_second: float
    latencies: list[float]
    """Of each transaction, in milliseconds; empty unless asked for."""

    def percentile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


def run(
    database: Database,
    scripts: Sequence[str],
    *,
    clients: int,
    seconds: int,
    payloads: Sequence[str] = (),
    variables: dict[str, object] | None = None,
    latencies: bool = False,
    search_path: str = "public",
) -> Turn:
    """Runs the files of bench/pgbench, one after another as one script. Each transaction takes one of the payloads by chance."""
    text = "".join((SCRIPTS / script).read_text() for script in scripts)
    settings: dict[str, object] = {f"payload_{number}": payload for number, payload in enumerate(payloads)}
    settings |= {"clients": clients, **(variables or {})}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(max(len(payloads), 1)):
            # pgbench has no arrays: a script for each payload.
            file = Path(folder) / f"{number}.sql"
            file.write_text(re.sub(r":payload\b", f":payload_{number}", text))
            files.append(file)
        command: list[object] = [database.server.bin / "pgbench", "--no-vacuum", "--protocol=prepared"]
        command += [f"--client={clients}", f"--jobs={min(clients, 2)}", f"--time={seconds}"]
        command += [f"--file={file}" for file in files]
        command += [f"--define={name}={value}" for name, value in settings.items()]
        if latencies:
            command += ["--log", f"--log-prefix={folder}/log"]
        command += [f"{database.dsn()} options='-c search_path={search_path}'"]
        done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"pgbench {' '.join(scripts)}: {done.stderr[-2000:]}")
        logs = [line.split() for log in Path(folder).glob("log*") for line in log.read_text().splitlines()]
    return Turn(
        transactions=int(_find(r"transactions actually processed: (\d+)", done.stdout)),
        per_second=float(_find(r"tps = ([\d.]+) \(without initial", done.stdout)),
        latencies=[int(words[2]) / 1000 for words in logs],
    )


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"pgbench has printed no '{pattern}':\n{text}")
    return found[1]
