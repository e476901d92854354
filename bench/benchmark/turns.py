"""Turns that several comparisons tell different numbers of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Takes a turn when a comparison asks for one more number than any has been told yet."""

    def __init__(self, turn: Callable[[], T]) -> None:
        self._turn = turn
        self._taken: list[T] = []
        self._told: dict[str, int] = defaultdict(int)

    def tell(self, name: str, number: Callable[[T], float]) -> Callable[[], float]:
        """What the comparison of that name is told, a turn each time."""

        def told() -> float:
            if self._told[name] == len(self._taken):
                self._taken.append(self._turn())
            self._told[name] += 1
            return number(self._taken[self._told[name] - 1])

        return told
