"""Runs the comparisons one after another, and writes the results after each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from importlib import import_module
from types import FrameType

from . import plot, report, rounds
from .bench import Bench
from .comparisons import NAMES
from .server import TARGET, Server


def names(text: str) -> list[str]:
    chosen = [name for name in text.split(",") if name] or list(NAMES)
    for name in chosen:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"there is no comparison '{name}': {', '.join(NAMES)}")
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmark", description=__doc__)
    parser.add_argument("--major", type=int, required=True, help="of PostgreSQL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10, help="of one turn")
    parser.add_argument("--held", type=int, default=60, help="seconds that a snapshot is held")
    parser.add_argument("--only", type=names, default=list(NAMES), help="comparisons, separated by commas")
    return parser.parse_args()


def terminate(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit("terminated")


def main() -> int:
    asked = arguments()
    # So that the server is stopped.
    signal.signal(signal.SIGTERM, terminate)
    folder = TARGET / "results" / str(asked.major)
    results: list[rounds.Result] = []
    broken: list[str] = []
    with Server(asked.major) as server:
        bench = Bench(server, asked.seconds, asked.held)
        facts = {
            "major": asked.major,
            "rounds": asked.rounds,
            "seconds": asked.seconds,
            "held": asked.held,
            "cpus": os.cpu_count(),
        }
        facts |= {"server": server.settings()}
        for name in asked.only:
            try:
                for comparison in import_module(f"benchmark.comparisons.{name}").comparisons(bench):
                    result = rounds.run(comparison, asked.rounds)
                    results.append(result)
                    print(report.table(result), flush=True)
                    report.write(folder, facts, results)
                    plot.write(folder, result)
            except Exception:  # The others go on.
                traceback.print_exc()
                broken.append(name)
    print(f"Results: {folder}", file=sys.stderr)
    if broken:
        print(f"Broken: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


sys.exit(main())
