"""Runs a comparison: A B A B …, so that what slows the machine down for a while slows all of them."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field

from .comparison import Bar, Comparison, Contender, Unavailable


@dataclass
class Measured:
    """A contender's numbers, one a round, or why there are none."""

    name: str
    numbers: list[float] = field(default_factory=list)
    unavailable: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.numbers)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.numbers) < 2:
            return self.numbers[0], self.numbers[0]
        lower, _, upper = statistics.quantiles(self.numbers, n=4, method="inclusive")
        return lower, upper


@dataclass(frozen=True)
class Verdict:
    """A bar, and the two medians that it was judged by; `ratio` is None where a contender is missing."""

    bar: Bar
    ratio: float | None

    @property
    def outcome(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "kept" if self.bar.keeps(self.ratio) else "missed"


@dataclass(frozen=True)
class Result:
    comparison: Comparison
    measured: list[Measured]

    def of(self, name: str) -> Measured:
        return next(one for one in self.measured if one.name == name)

    def ratio(self, name: str, against: str) -> float | None:
        one, other = self.of(name), self.of(against)
        return one.median / other.median if one.numbers and other.numbers else None

    @property
    def verdicts(self) -> list[Verdict]:
        return [Verdict(bar, self.ratio(bar.contender, bar.against)) for bar in self.comparison.bars]


def run(comparison: Comparison, rounds: int) -> Result:
    print(f"{comparison.title}: {rounds} rounds", file=sys.stderr)
    turns = [(contender, Measured(contender.name)) for contender in comparison.contenders]
    for contender, measured in turns:
        measured.unavailable = _prepare(contender)
    for number in range(rounds):
        for contender, measured in turns:
            if measured.unavailable is None:
                measured.numbers.append(contender.turn())
                print(f"  {number + 1}  {contender.name}: {measured.numbers[-1]:,.3f}", file=sys.stderr)
    return Result(comparison, [measured for _, measured in turns])


def _prepare(contender: Contender) -> str | None:
    try:
        contender.prepare()
    except Unavailable as reason:
        return str(reason)
    return None
