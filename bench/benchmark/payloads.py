"""What is stored: JSON texts whose words are random, so that no compression makes them something else."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from .server import ROOT

TRANSCRIPTS = Path(os.environ.get("AGENT_SESSIONS_TRANSCRIPTS", ROOT.parent / "shared" / "transcripts"))
LETTERS = "abcdefghijklmnopqrstuvwxyz"

_random = random.Random()


def message(size: int) -> str:
    """A chat message of exactly `size` bytes."""
    frame = json.dumps({"role": "assistant", "content": ""}, separators=(",", ":"))
    return frame[:-2] + _words(size - len(frame)) + frame[-2:]


def kilobytes(size: int, count: int = 8) -> list[str]:
    return [message(size * 1024) for _ in range(count)]


def spread(least: int, most: int, count: int = 9) -> list[str]:
    """Messages from `least` to `most` bytes, in even steps."""
    return [message(least + (most - least) * number // (count - 1)) for number in range(count)]


def lines() -> list[str]:
    """The lines of real conversations; where there are none, text of such lengths."""
    files = sorted(TRANSCRIPTS.glob("*.ndjson"))
    lines = [line for file in files for line in file.read_text().split("\n") if line]
    return lines or [message(size) for size in (232, 378, 538, 753, 835, 1_029, 1_472, 2_945, 5_013, 19_997)]


def contents() -> list[str]:
    """What is said in them."""
    return [json.loads(line)["content"] or "" for line in lines()]


def lines_source() -> str:
    return "transcripts" if any(TRANSCRIPTS.glob("*.ndjson")) else "generated conversations"


def _words(size: int) -> str:
    words = []
    length = 0
    while length < size:
        words.append("".join(_random.choices(LETTERS, k=_random.randint(2, 9))))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]
