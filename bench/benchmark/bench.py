"""What a comparison is given."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Server


@dataclass(frozen=True)
class Bench:
    server: Server
    seconds: int
    """Of one turn."""
    held: int
    """Seconds that a snapshot is held."""
