"""LangGraph: its PostgresSaver, called as the loop of a graph calls it.

put        `put` after every step. The messages are plain objects and not LangChain's classes, which it packs more slowly.
put_delta  the same with the beta's DeltaChannel: `put_writes` stores the message, `put` all messages at every 100th
load       `get_tuple`: the state to go on from, with `length` messages
"""

import turns

import itertools
import uuid

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from graph import Graph

SNAPSHOT_FREQUENCY = 100  # DeltaChannel's default


class Thread:
    def __init__(self, saver, thread_id):
        self.saver = saver
        self.graph = Graph()
        self.config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    def put(self, message):
        step = self.graph.step(message)
        self.save(step, {"messages": self.graph.messages}, step.metadata)

    def put_delta(self, message):
        step = self.graph.step(message)
        count = step.metadata["step"] % SNAPSHOT_FREQUENCY
        if "checkpoint_id" in self.config["configurable"]:
            writes = [("messages", [message]), *step.checkpoint["channel_values"].items()]
            self.saver.put_writes(self.config, writes, str(uuid.uuid4()), "~__pregel_pull, agent")
        snapshot = {"messages": _DeltaSnapshot(self.graph.messages)} if count == 0 else {}
        self.save(step, snapshot, {**step.metadata, "counters_since_delta_snapshot": {"messages": (count, count)}})

    def save(self, step, values, metadata):
        checkpoint = {**step.checkpoint, "channel_values": {**step.checkpoint["channel_values"], **values}}
        self.config = self.saver.put(self.config, checkpoint, metadata, step.versions)


def steps(saver, options, method):
    messages = turns.messages(options.payloads)
    numbers = itertools.count()

    def turn(operations):
        for number in range(operations):
            if number % options.length == 0:
                thread = Thread(saver, f"{options.name} {next(numbers)}")
            method(thread, next(messages))

    return turn


def loads(saver, options):
    messages = turns.messages(options.payloads)
    thread = Thread(saver, options.name)
    thread.graph.messages = list(itertools.islice(messages, options.length - 1))
    thread.put(next(messages))

    def turn(operations):
        for _ in range(operations):
            found = saver.get_tuple({"configurable": {"thread_id": options.name}})
            assert len(found.checkpoint["channel_values"]["messages"]) == options.length

    return turn


options = turns.options(["put", "put_delta", "load"])
with PostgresSaver.from_conn_string(options.dsn) as saver:
    saver.setup()
    match options.operation:
        case "put":
            turn = steps(saver, options, Thread.put)
        case "put_delta":
            turn = steps(saver, options, Thread.put_delta)
        case "load":
            turn = loads(saver, options)
    turns.serve(turn)
