"""A second implementation of the audit chain, written from section 7 of the design page alone.

    audit_chain.py make COUNT    prints a chain of COUNT events that no database has seen, as the lines that audit_import takes
    audit_chain.py verify        reads the lines of audit_export and prints the head, as seq and hash

hash = 'sha256:' || hex(sha256(prev_hash || '\\n' || data)), and the first prev_hash is 'sha256:' and 64 zeros. A line that does
not follow is named on standard output, and the exit code is then 1; input that holds no line ends with 2.
"""

import hashlib
import json
import sys

GENESIS = "sha256:" + "0" * 64


def chained(prev_hash, data):
    return "sha256:" + hashlib.sha256((prev_hash + "\n" + data).encode("utf-8")).hexdigest()


def foreign_text(number):
    """The text of an event as another product might have written it, each in a form of its own."""
    event = {
        "who": {"id": f"user-{number % 7}", "roles": ["admin", "häuptling 🚀"]},
        "type": ("login", "logout", "order.approve")[number % 3],
        "n": number,
        "at": f"20{number % 100:02}-0{1 + number % 9}-1{number % 10}T1{number % 10}:00:00.{number % 1000:03}+0{number % 8}:30",
        "text": 'a "quoted" \\ back\\slash\n\tand \u2028 a \x7f',
        "facts": {"z": number, "a": [None, True, 1.5]},
    }
    if number % 11 == 0:
        del event["who"]
    if number % 4 == 0:
        return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    if number % 4 == 1:
        return json.dumps(event, indent=1)
    return json.dumps(event) + " " * (number % 4 - 2)


def make(count):
    prev_hash = GENESIS
    for seq in range(1, count + 1):
        data = foreign_text(seq)
        line = {"seq": seq, "prev_hash": prev_hash, "hash": chained(prev_hash, data), "data": data}
        print(json.dumps(line))
        prev_hash = line["hash"]
    return 0


def verify(lines):
    seq, prev_hash = 0, GENESIS
    for line in lines:
        seq += 1
        event = json.loads(line)
        given = (event["seq"], event["prev_hash"], event["hash"])
        if given != (seq, prev_hash, chained(prev_hash, event["data"])):
            print(seq)
            return 1
        prev_hash = event["hash"]
    print(seq, prev_hash)
    return 0 if seq else 2


if __name__ == "__main__":
    sys.exit(make(int(sys.argv[2])) if sys.argv[1] == "make" else verify(sys.stdin.buffer))
