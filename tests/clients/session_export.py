"""Checks an export of a session without the database, from what the guide says.

    session_export.py < export.ndjson

reads the lines of session_export, of one session or of several in a row, and prints the position and the digest of each one's last
entry. Lines that are not what was exported end it with 1, and its last line then names the first position that does not verify.
Input without an end ends it with 2.

Compare the digest with one that was kept elsewhere, an anchor's leaf for example: whoever can write a file can write a whole one.
"""

import hashlib
import json
import struct
import sys


def lp(text):
    if text is None:
        return b"\xff\xff\xff\xff"
    encoded = text.encode("utf-8")
    return struct.pack(">I", len(encoded)) + encoded


def int8(number):
    return struct.pack(">q", -1 if number is None else number)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()


def content_digest(entry):
    return sha256(bytes.fromhex(entry["salt"]), lp(entry["payload"]), lp(entry["attrs"]))


def digest(previous, entry):
    names = b"".join(lp(entry[column]) for column in ("op", "kind", "item_id", "tag", "author"))
    place = int8(entry["position"]), names, int8(entry["target"]), int8(entry["created_at"])
    return sha256(b"agent_sessions/item/1", bytes.fromhex(previous), *place, bytes.fromhex(entry["content_digest"]))


def genesis(tenant, row, fork_position, fork_digest):
    identity = lp(tenant) + lp(row["agent_id"]) + lp(row["session_id"]) + int8(row["created_at"])
    forked_from = bytes.fromhex(fork_digest) if fork_digest else bytes(32)
    return sha256(b"agent_sessions/genesis/1", identity, int8(fork_position), forked_from)


class Broken(Exception):
    """At a position, the lines are not what was exported."""


class Log:
    """The log so far: the parts of the sessions that it is made of, the oldest first."""

    def __init__(self, session):
        self.session = session
        self.row = None
        self.previous, self.position = None, 0
        self.unexplained, self.base = set(), None

    def enter(self, row):
        """Goes on with the entries of the next session, or of the first."""
        forked = genesis(self.session["tenant"], row, row["fork_position"], row["fork_digest"])
        self.leave()
        if self.row is None:
            self.position = row["base_position"] or 0
            self.previous = row["base_digest"] or genesis(self.session["tenant"], row, None, None)
            self.base = row["base_digest"] and (self.position, self.previous)
            # A flattened session holds what it had inherited; behind that, its own entries begin anew.
            self.joint = row["fork_position"], forked
        else:
            if (row["fork_position"], row["fork_digest"]) != (self.position, self.previous):
                raise Broken(self.position)
            self.previous, self.joint = forked, (None, None)
        self.row = row

    def entry(self, entry):
        if self.row is None or self.row is not self.session and entry["position"] == self.session["fork_position"]:
            self.enter(self.session)
        if self.position == self.joint[0]:
            self.previous = self.joint[1]
        if entry["position"] != self.position or entry["digest"] != digest(self.previous, entry):
            raise Broken(self.position)
        if entry["salt"] is None:
            if (entry["payload"], entry["attrs"]) != (None, None):
                raise Broken(self.position)
            self.unexplained.add(self.position)
        elif entry["content_digest"] != content_digest(entry):
            raise Broken(self.position)
        self.explain(entry)
        self.previous, self.position = entry["digest"], self.position + 1

    def explanation(self, entry):
        if entry["content_digest"] == content_digest(entry):
            self.explain(entry)

    def explain(self, entry):
        if entry["op"] == "erase":
            self.unexplained -= {entry["target"], *json.loads(entry["payload"])["revisions"]}
        elif entry["op"] == "trim":
            if self.base == (entry["target"], json.loads(entry["payload"])["base_digest"]):
                self.base = None

    def leave(self):
        if self.base:
            raise Broken(self.base[0])
        if self.unexplained:
            raise Broken(min(self.unexplained))

    def finish(self):
        if self.row is not self.session:
            self.enter(self.session)
        self.leave()


def check(lines):
    """The log of an export; None if its end is missing. Reads no further."""
    log, hashed = None, hashlib.sha256()
    for line in lines:
        ((kind, row),) = json.loads(line).items()
        if kind == "end":
            log.finish()
            if row["sha256"] != hashed.hexdigest():
                raise Broken(log.position)
            return log
        hashed.update(line)
        if kind == "session":
            log = Log(row)
        elif kind == "ancestor":
            log.enter(row)
        elif kind == "entry":
            log.entry(row)
        elif kind == "explanation":
            log.explanation(row)
    return None


def main():
    lines, checked = sys.stdin.buffer, 0
    while lines.peek(1):
        try:
            log = check(lines)
        except Broken as broken:
            print(broken.args[0])
            return 1
        if log is None:
            return 2
        print(log.position - 1, log.previous)
        checked += 1
    return 0 if checked else 2


if __name__ == "__main__":
    sys.exit(main())
