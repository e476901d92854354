"""A client program of bench/clients, which takes its turns over its standard input and output.

It is given the DSN and options as arguments, and prepares. It prints one line, {"ready": true}; or {"unavailable": "why"}.
Then it reads lines, {"operations": n}, and answers each with {"seconds": s, "operations": n}, until its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .comparison import Contender, Unavailable
from .server import ROOT, TARGET

CLIENTS = ROOT / "bench" / "clients"


class Client:
    def __init__(self, name: str, program: str, arguments: Sequence[str], operations: int, *, ours: bool = False) -> None:
        self.name = name
        self.program = program
        self.arguments = arguments
        self.operations = operations
        self.ours = ours
        self.process: subprocess.Popen[str] | None = None

    def contender(self) -> Contender:
        return Contender(self.name, self.turn, self.prepare, self.ours)

    def prepare(self) -> None:
        interpreter = sys.executable if self.program.endswith(".py") else "node"
        self.process = subprocess.Popen(
            [interpreter, str(CLIENTS / self.program), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "AGENT_SESSIONS_BENCH_NODE": str(TARGET / "node" / "node_modules")},
        )
        try:
            answer = self._answer()
        except EOFError as error:
            raise Unavailable(str(error)) from None
        if "unavailable" in answer:
            raise Unavailable(answer["unavailable"])

    def turn(self) -> float:
        """Operations a second."""
        answer = self._answer({"operations": self.operations})
        return float(answer["operations"]) / float(answer["seconds"])

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()

    def _answer(self, request: dict[str, int] | None = None) -> dict[str, Any]:
        process = self.process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError(f"{self.program} was not prepared")
        if request is not None:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise EOFError(f"{self.program} has ended with status {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
