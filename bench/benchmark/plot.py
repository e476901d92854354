"""A comparison as an SVG: a bar for the median, a line for the quartiles, a dot for each round."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from .report import number
from .rounds import Result

OURS = "#2f6f9f"
OTHERS = "#b9c4cc"


def write(folder: Path, result: Result) -> None:
    comparison = result.comparison
    ours = {contender.name for contender in comparison.contenders if contender.ours}
    measured = [one for one in reversed(result.measured) if one.numbers]
    figure = Figure(figsize=(8, 0.9 + 0.45 * len(measured)), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(measured):
        axes.barh(place, one.median, color=OURS if one.name in ours else OTHERS, height=0.6)
        axes.plot(one.quartiles, [place, place], color="black", linewidth=1.5)
        axes.plot(one.numbers, [place] * len(one.numbers), "o", color="black", markersize=2.5)
        axes.annotate(f" {number(one.median)}", (max(one.numbers), place), va="center", fontsize=8)
    axes.set_yticks(range(len(measured)), [one.name for one in measured], fontsize=9)
    axes.set_xlabel(f"{comparison.unit} ({comparison.better} is better)", fontsize=9)
    axes.set_title(comparison.title, fontsize=10, loc="left")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / f"{comparison.name}.svg", metadata={"Date": None})
