"""What is written: results.json, and a table of each comparison for the terminal and as markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .rounds import Measured, Result


def write(folder: Path, facts: dict[str, Any], results: list[Result]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {**facts, "comparisons": [_as_json(result) for result in results]}
    (folder / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "results.md").write_text(_heading(facts) + "\n".join(table(result) for result in results))


def table(result: Result) -> str:
    """A comparison as markdown, which a terminal shows as well."""
    comparison = result.comparison
    rows = [["", comparison.unit, "quartiles", f"against {result.measured[0].name}"]]
    rows += [_row(result, measured) for measured in result.measured]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"## {comparison.title}", "", _line(rows[0], widths), _line(["---"] + ["---:"] * 3, widths)]
    lines += [_line(row, widths) for row in rows[1:]]
    lines += [""] + [f"- {line}" for line in bars(result) + result.notes] + [""]
    return "\n".join(lines)


def bars(result: Result) -> list[str]:
    lines = []
    for verdict in result.verdicts:
        bar = verdict.bar
        line = f"{verdict.outcome}: {bar.contender}, {bar.bound} {bar.ratio:g} x {bar.against}"
        if verdict.ratio is not None:
            numbers = [number(result.of(name).median) for name in (bar.contender, bar.against)]
            line += f": {verdict.ratio:.3f} x ({numbers[0]} and {numbers[1]})"
        lines.append(line)
    return lines


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(result: Result, measured: Measured) -> list[str]:
    if measured.unavailable is not None:
        return [measured.name, "not measured", measured.unavailable, ""]
    lower, upper = measured.quartiles
    ratio = result.ratio(measured.name, result.measured[0].name)
    return [
        measured.name,
        number(measured.median),
        f"{number(lower)} to {number(upper)}",
        "" if ratio is None else f"{ratio:.3f} x",
    ]


def _line(cells: list[str], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1])] + [cell.rjust(width) for cell, width in others]) + " |"


def _heading(facts: dict[str, Any]) -> str:
    lines = "\n".join(f"- {name}: {value}" for name, value in facts["server"].items())
    run = f"{facts['rounds']} rounds of {facts['seconds']} s, medians; {facts['cpus']} CPUs."
    return f"# Benchmark, PostgreSQL {facts['major']}\n\n{run}\n\n{lines}\n\n"


def _as_json(result: Result) -> dict[str, Any]:
    comparison = result.comparison
    return {
        "name": comparison.name,
        "title": comparison.title,
        "unit": comparison.unit,
        "better": comparison.better,
        "contenders": [
            {"name": one.name, "unavailable": one.unavailable}
            if one.unavailable is not None
            else {"name": one.name, "median": one.median, "quartiles": one.quartiles, "rounds": one.numbers}
            for one in result.measured
        ],
        "bars": [
            {
                "contender": verdict.bar.contender,
                "against": verdict.bar.against,
                "bound": verdict.bar.bound,
                "ratio": verdict.bar.ratio,
                "measured": verdict.ratio,
                "outcome": verdict.outcome,
            }
            for verdict in result.verdicts
        ],
        "notes": result.notes,
    }
