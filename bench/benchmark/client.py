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

from .comparison import Contender, Unavailable
from .server import ROOT, TARGET

CLIENTS = ROOT / "bench" / "clients"


class Client:
    def __init__(self, program: str, arguments: Sequence[str], operations: int) -> None:
        self.program = CLIENTS / program
        self.arguments = list(arguments)
        self.operations = operations
        self.process: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        interpreter = sys.executable if self.program.suffix == ".py" else "node"
        self.process = subprocess.Popen(
            [interpreter, str(self.program), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "AGENT_SESSIONS_BENCH_NODE": str(TARGET / "node" / "node_modules")},
        )
        try:
            answer = self._answer()
        except RuntimeError as error:
            raise Unavailable(str(error)) from None
        if "unavailable" in answer:
            raise Unavailable(answer["unavailable"])

    def turn(self) -> float:
        """Operations a second."""
        self.process.stdin.write(json.dumps({"operations": self.operations}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["operations"] / answer["seconds"]

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()

    def contender(self, name: str) -> Contender:
        return Contender(name, self.turn, self.prepare)

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.program.name} has ended with status {self.process.wait()}")
        return json.loads(line)
