"""The comparisons with peers that are called from a client language, each for a second. `make benchcheck` runs them."""

import json
import os
import subprocess
import sys
import unittest
from tempfile import NamedTemporaryFile

from benchmark import rounds
from benchmark.bench import Bench
from benchmark.client import CLIENTS
from benchmark.comparisons import clients
from benchmark.server import Server

MAJOR = int(os.environ.get("AGENT_SESSIONS_PG", "15"))

NOWHERE = "postgresql://nobody@/nothing?host=/nowhere"


class Smoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with Server(MAJOR) as server:
            bench = Bench(server, seconds=1, held=1, scale=5)
            cls.results = [rounds.run(comparison, 1) for comparison in clients.comparisons(bench)]

    def test_every_work_is_compared_with_each_number_of_clients(self) -> None:
        expected = [f"{work.name}_{number}" for work in clients.WORKS for number in work.clients]
        self.assertEqual([result.comparison.name for result in self.results], expected)

    def test_ours_have_numbers_and_peers_have_numbers_or_a_reason(self) -> None:
        for result in self.results:
            for contender, measured in zip(result.comparison.contenders, result.measured, strict=True):
                with self.subTest(comparison=result.comparison.name, contender=contender.name):
                    if contender.ours or measured.unavailable is None:
                        self.assertEqual(len(measured.numbers), 1)
                        self.assertGreater(measured.numbers[0], 0)
                    else:
                        self.assertNotEqual(measured.unavailable, "")

    def test_a_bar_is_judged_wherever_the_peer_could_be_measured(self) -> None:
        judged = 0
        for result in self.results:
            for verdict in result.verdicts:
                with self.subTest(comparison=result.comparison.name):
                    self.assertEqual(verdict.ratio is None, result.of(verdict.bar.against).unavailable is not None)
                judged += 1
        self.assertEqual(judged, sum(len(work.clients) for work in clients.WORKS if work.least))


class Programs(unittest.TestCase):
    def test_a_program_that_cannot_take_part_says_why(self) -> None:
        for program, operation in {(store.program, store.operation) for work in clients.WORKS for store in work.stores}:
            with self.subTest(program=program, operation=operation), NamedTemporaryFile("w") as payloads:
                payloads.write("{}\n")
                payloads.flush()
                done = subprocess.run(
                    [interpreter(program), CLIENTS / program, NOWHERE, operation, "--name", "n", "--payloads", payloads.name],
                    check=False,
                    capture_output=True,
                    text=True,
                    env={**os.environ, "AGENT_SESSIONS_BENCH_NODE": "/nowhere"},
                )
                answers = [json.loads(line) for line in done.stdout.splitlines()]
                self.assertEqual([list(answer) for answer in answers], [["unavailable"]], done.stderr)
                self.assertEqual(len(answers[0]["unavailable"].splitlines()), 1)
                self.assertNotEqual(done.returncode, 0)


def interpreter(program: str) -> str:
    return sys.executable if program.endswith(".py") else "node"


if __name__ == "__main__":
    unittest.main()
