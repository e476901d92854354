"""What is compared: contenders that take turns, and the bars that their medians are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal


class Unavailable(Exception):
    """A contender cannot take part here; the reason is printed in its row."""


def nothing() -> None:
    """A contender that needs no preparation."""


@dataclass(frozen=True)
class Contender:
    name: str
    turn: Callable[[], float]
    """One round's number."""
    prepare: Callable[[], None] = nothing
    """Called once, before the first round; Unavailable leaves the contender out."""
    ours: bool = False
    """Set apart in the plots."""


@dataclass(frozen=True)
class Bar:
    contender: str
    against: str
    bound: Literal["at least", "at most"]
    ratio: float

    def keeps(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.bound == "at least" else ratio <= self.ratio


@dataclass(frozen=True)
class Comparison:
    name: str
    """A file name: short, lower case."""
    title: str
    unit: str
    contenders: list[Contender]
    bars: list[Bar] = field(default_factory=list)
    better: Literal["higher", "lower"] = "higher"
