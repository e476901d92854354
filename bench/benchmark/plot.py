"""A comparison as an SVG: a bar for the median, a line for the quartiles, a dot for each round."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402  the backend comes first

from .report import number  # noqa: E402
from .rounds import Result  # noqa: E402

OURS = "#2f6f9f"
OTHERS = "#b9c4cc"


def write(folder: Path, result: Result) -> None:
    comparison = result.comparison
    measured = [one for one in reversed(result.measured) if one.numbers]
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.45 * len(measured)), layout="constrained")
    for place, one in enumerate(measured):
        lower, upper = one.quartiles
        colour = OURS if "append" in one.name or "session_" in one.name else OTHERS
        axes.barh(place, one.median, color=colour, height=0.6)
        axes.plot([lower, upper], [place, place], color="black", linewidth=1.5)
        axes.plot(one.numbers, [place] * len(one.numbers), "o", color="black", markersize=2.5)
        axes.annotate(f" {number(one.median)}", (max(one.numbers), place), va="center", fontsize=8)
    axes.set_yticks(range(len(measured)), [one.name for one in measured], fontsize=9)
    axes.set_xlabel(f"{comparison.unit} ({comparison.better} is better)", fontsize=9)
    axes.set_title(comparison.title, fontsize=10, loc="left")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / f"{comparison.name}.svg")
    pyplot.close(figure)
