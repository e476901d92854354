"""Every comparison, for a second. `make benchcheck` runs them."""

import os
import unittest
from importlib import import_module

from benchmark import rounds
from benchmark.bench import Bench
from benchmark.comparisons import NAMES
from benchmark.server import Server

MAJOR = int(os.environ.get("AGENT_SESSIONS_PG", "15"))

ELSEWHERE = {"clients"}


class Smoke(unittest.TestCase):
    def test_every_comparison_measures_ours_and_judges_its_bars(self) -> None:
        with Server(MAJOR) as server:
            bench = Bench(server, seconds=1, held=1, scale=5)
            for name in NAMES:
                if name not in ELSEWHERE:
                    self.smoke(name, bench)

    def smoke(self, name: str, bench: Bench) -> None:
        for comparison in import_module(f"benchmark.comparisons.{name}").comparisons(bench):
            with self.subTest(comparison=comparison.name):
                result = rounds.run(comparison, 1)
                for contender, measured in zip(comparison.contenders, result.measured, strict=True):
                    if contender.ours:
                        self.assertIsNone(measured.unavailable)
                    if measured.unavailable is None:
                        self.assertGreater(measured.numbers[0], 0, contender.name)
                for verdict in result.verdicts:
                    is_missing = any(result.of(side).unavailable for side in (verdict.bar.contender, verdict.bar.against))
                    self.assertEqual(verdict.ratio is None, is_missing)


if __name__ == "__main__":
    unittest.main()
