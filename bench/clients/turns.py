"""What every client program in Python does: it makes itself ready, says so, and takes the turns that it is given.

    {"ready": true}                                        once; or {"unavailable": why}
    {"operations": n} -> {"seconds": s, "operations": n}   a line each, until standard input ends
"""

import argparse
import itertools
import json
import sys
import time


def explain(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    say(unavailable=f"{kind.__name__}: {error}".splitlines()[0])


# Until it is ready: a package may be missing, a peer may not know this server. So this is the first import of a program.
sys.excepthook = explain


def options(operations):
    """The command line. `name` is of this program and run alone: it begins the ids of the sessions that it writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn", help="a URI: asyncpg and node-postgres know no other form")
    parser.add_argument("operation", choices=operations)
    parser.add_argument("--name", required=True)
    parser.add_argument("--payloads", required=True, help="a file of JSON objects, one a line")
    parser.add_argument("--length", type=int, default=500, help="steps of a thread, or items of a session that is read")
    return parser.parse_args()


def messages(path):
    """The payloads as a program holds them, parsed, round and round."""
    with open(path, encoding="utf-8") as lines:
        return itertools.cycle([json.loads(line) for line in lines])


def serve(turn):
    """`turn(n)` does n operations; whatever came before this call is not measured."""
    sys.excepthook = sys.__excepthook__
    say(ready=True)
    for line in sys.stdin:
        operations = json.loads(line)["operations"]
        start = time.perf_counter()
        turn(operations)
        say(seconds=time.perf_counter() - start, operations=operations)


def say(**answer):
    print(json.dumps(answer), flush=True)
