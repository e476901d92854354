"""A comparison as an SVG: the medians, a line for the quartiles, a dot for each round."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .report import number
from .rounds import Result

# Text as text: a fifth of the size.
matplotlib.rcParams["svg.fonttype"] = "none"

OURS = "#2f6f9f"
OTHERS = "#b9c4cc"


def write(folder: Path, result: Result) -> None:
    comparison = result.comparison
    height = 4.0 if comparison.axis else 0.9 + 0.45 * sum(1 for one in result.measured if one.numbers)
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    (_curve if comparison.axis else _bars)(axes, result)
    axes.set_title(comparison.title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / f"{comparison.name}.svg", metadata={"Date": None})


def _bars(axes: Axes, result: Result) -> None:
    ours = {contender.name for contender in result.comparison.contenders if contender.ours}
    measured = [one for one in reversed(result.measured) if one.numbers]
    for place, one in enumerate(measured):
        axes.barh(place, one.median, color=OURS if one.name in ours else OTHERS, height=0.6)
        axes.plot(one.quartiles, [place, place], color="black", linewidth=1.5)
        axes.plot(one.numbers, [place] * len(one.numbers), "o", color="black", markersize=2.5)
        axes.annotate(f" {number(one.median)}", (max(one.numbers), place), va="center", fontsize=8)
    axes.set_yticks(range(len(measured)), [one.name for one in measured], fontsize=9)
    axes.set_xlabel(_unit(result), fontsize=9)
    axes.margins(x=0.12)


def _curve(axes: Axes, result: Result) -> None:
    """Over the sizes of one thing, which are powers."""
    sizes = {contender.name: contender.size for contender in result.comparison.contenders}
    measured = [one for one in result.measured if one.numbers]
    axes.plot([sizes[one.name] for one in measured], [one.median for one in measured], color=OURS, linewidth=2)
    for one in measured:
        size = sizes[one.name]
        axes.plot([size, size], one.quartiles, color="black", linewidth=1.5)
        axes.plot([size] * len(one.numbers), one.numbers, "o", color="black", markersize=2.5)
        axes.annotate(f"  {number(one.median)}", (size, one.median), va="bottom", fontsize=8)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(result.comparison.axis, fontsize=9)
    axes.set_ylabel(_unit(result), fontsize=9)
    axes.margins(x=0.12)


def _unit(result: Result) -> str:
    return f"{result.comparison.unit} ({result.comparison.better} is better)"
