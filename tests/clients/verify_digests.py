"""A second implementation of the digests, written from section 6 of the design page alone.

Standard input holds JSON lines, the sessions before the items, as `wire/digests.rs` exports them by plain SELECTs:
    {"table": "session", "sid", "tenant", "agent_id", "session_id", "created_at", "branched_from", "fork_position",
     "fork_digest", "base_position", "base_digest", "hidden"}
    {"table": "session_item", "sid", "position", "op", "kind", "item_id", "tag", "author", "target", "payload", "attrs",
     "salt", "content_digest", "digest", "created_at"}
Bytes are hex, payload and attrs are the text that the server prints, times are microseconds since 2000-01-01 UTC.

Every digest is computed anew. A mismatch is a line of JSON on standard output, and the exit code is then 1; input that
holds no entry is no proof of anything, and ends with 2.
"""

import hashlib
import json
import struct
import sys


def int8(number):
    return struct.pack(">q", number)


def lp(text):
    if text is None:
        return b"\xff\xff\xff\xff"
    encoded = text.encode("utf-8")
    return struct.pack(">I", len(encoded)) + encoded


def content_digest(item):
    return hashlib.sha256(bytes.fromhex(item["salt"]) + lp(item["payload"]) + lp(item["attrs"])).digest()


def entry_digest(previous, item):
    names = b"".join(lp(item[column]) for column in ("op", "kind", "item_id", "tag", "author"))
    target = -1 if item["target"] is None else item["target"]
    return hashlib.sha256(
        b"agent_sessions/item/1"
        + previous
        + int8(item["position"])
        + names
        + int8(target)
        + int8(item["created_at"])
        + bytes.fromhex(item["content_digest"])
    ).digest()


class Log:
    def __init__(self, session):
        self.session = session
        self.items = {}
        self.fork = session["fork_position"]
        self.base = session["base_position"]

    @property
    def flattened(self):
        """Whether the log holds copies of what it inherited: it keeps the fork, and names no source."""
        return self.session["branched_from"] is None and self.fork is not None

    @property
    def first(self):
        """The first position that the session itself has to hold."""
        return self.base if self.flattened else max(self.base, self.fork or 0)


def entry_before(logs, sid, position):
    """The digest of the entry before a position of a log, which an ancestor may hold; the log's genesis if there is none."""
    log = logs[sid]
    if position == 0:
        return genesis(logs, sid)
    if position == log.base:
        return bytes.fromhex(log.session["base_digest"])
    if position <= log.first:
        return entry_before(logs, log.session["branched_from"], position)
    return bytes.fromhex(log.items[position - 1]["digest"])


def genesis_of(session, fork, forked_from):
    return hashlib.sha256(
        b"agent_sessions/genesis/1"
        + lp(session["tenant"])
        + lp(session["agent_id"])
        + lp(session["session_id"])
        + int8(session["created_at"])
        + int8(-1 if fork is None else fork)
        + forked_from
    ).digest()


def genesis(logs, sid):
    log = logs[sid]
    source = log.session["branched_from"]
    if log.fork is None:
        forked_from = bytes(32)
    elif source in logs:
        forked_from = entry_before(logs, source, log.fork)
    else:
        # The source is gone: nothing of it is inherited, or that was copied.
        forked_from = bytes.fromhex(log.session["fork_digest"])
    return genesis_of(log.session, log.fork, forked_from)


def linked_digest(logs, sid, position):
    """The digest that the session's own entry at a position links to."""
    log = logs[sid]
    if position == log.fork:
        return genesis(logs, sid)
    if position == log.base and position > 0:
        return bytes.fromhex(log.session["base_digest"])
    if position == 0:
        return genesis_of(log.session, None, bytes(32))
    return bytes.fromhex(log.items[position - 1]["digest"])


def read(lines):
    logs = {}
    for line in lines:
        row = json.loads(line)
        if row["table"] == "session":
            logs[row["sid"]] = Log(row)
        else:
            logs[row["sid"]].items[row["position"]] = row
    return logs


def mismatches(logs, sid):
    log = logs[sid]
    for place, position in enumerate(sorted(log.items), start=log.first):
        item = log.items[position]
        if position != place:
            # Of a hidden session only what branches read is kept, and what explains that.
            if not log.session["hidden"]:
                yield place, "the entry is missing"
            return
        if item["salt"] is not None and content_digest(item).hex() != item["content_digest"]:
            yield position, "content_digest"
        if entry_digest(linked_digest(logs, sid, position), item).hex() != item["digest"]:
            yield position, "digest"


def main():
    logs = read(sys.stdin.buffer)
    entries = sum(len(log.items) for log in logs.values())
    if entries == 0:
        print("the input holds no entry", file=sys.stderr)
        return 2
    found = 0
    for sid, log in sorted(logs.items()):
        for position, what in mismatches(logs, sid):
            found += 1
            print(json.dumps({"session_id": log.session["session_id"], "position": position, "what": what}))
    print(f"{len(logs)} sessions, {entries} entries, {found} mismatches", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
