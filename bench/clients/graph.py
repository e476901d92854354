"""A graph in which an agent and its tools take turns, and what LangGraph's loop has to save after each step of it.

Its state is a list of messages, to which each step adds one, as a `messages` channel with a reducer does.
"""

import random
import time
import uuid
from datetime import UTC, datetime
from typing import NamedTuple


class Step(NamedTuple):
    """`checkpoint` has all but the messages; `versions` are of the channels that the step has written."""

    message: dict
    checkpoint: dict
    metadata: dict
    versions: dict


class Graph:
    def __init__(self):
        self.messages = []
        self.versions = {}
        self.seen = {"__input__": {}}

    def step(self, message):
        number = len(self.messages)
        node, following = ("agent", "tools") if number % 2 == 0 else ("tools", "agent")
        mine, theirs = f"branch:to:{node}", f"branch:to:{following}"
        self.seen[node] = {mine: self.versions.get(mine)}
        written = dict.fromkeys(["messages", mine, theirs], next_version(number))
        self.versions |= written
        # The reducer, operator.add, makes a new list.
        self.messages = [*self.messages, message]
        checkpoint = {
            "v": 4,
            "ts": datetime.now(UTC).isoformat(),
            "id": next_id(),
            "channel_values": {theirs: None},
            "channel_versions": self.versions,
            "versions_seen": self.seen,
            "updated_channels": [theirs, "messages"],
        }
        return Step(message, checkpoint, {"source": "loop", "step": number, "parents": {}}, written)


def next_version(number):
    """As BasePostgresSaver.get_next_version makes them."""
    return f"{number + 1:032}.{random.random():016}"


def next_id():
    """A UUID that sorts by time, as LangGraph's do."""
    return str(uuid.UUID(int=time.time_ns() << 64 | random.getrandbits(64)))
