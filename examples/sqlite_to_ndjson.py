#!/usr/bin/env python3
"""Writes the sessions of a store in SQLite as files for session_import, one session a file.

    sqlite_to_ndjson.py STORE FOLDER

The two queries below are all that knows the store's tables; their columns are named as the lines name them.
"""

import json
import sqlite3
import sys
from datetime import datetime, timezone
from pathlib import Path

SESSIONS = """
    select id as session_id, title, user_id as owner, created_at
    from sessions order by id
"""
MESSAGES = """
    select 'message-' || id as item_id, role, content, created_at
    from messages where session_id = ? order by id
"""


def rfc3339(moment):
    """SQLite has no type for times: seconds since 1970, or a text, in UTC unless it says otherwise."""
    if moment is None:
        return None
    try:
        at = datetime.fromtimestamp(float(moment), timezone.utc)
    except ValueError:
        at = datetime.fromisoformat(moment.replace("Z", "+00:00"))
        at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    return at.isoformat()


def text(value):
    return json.dumps(value, ensure_ascii=False)


def lines(store, session):
    yield {"session": {**session, "created_at": rfc3339(session["created_at"])}}
    for message in map(dict, store.execute(MESSAGES, (session["session_id"],))):
        payload = {"role": message["role"], "content": message["content"]}
        yield {
            "entry": {
                "kind": "message",
                "item_id": message["item_id"],
                "author": message["role"],
                "payload": text(payload),
                "created_at": rfc3339(message["created_at"]),
            }
        }


def main(path, folder):
    store = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
    store.row_factory = sqlite3.Row
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, session in enumerate(map(dict, store.execute(SESSIONS)), start=1):
        with open(folder / f"{count:06}.ndjson", "w", encoding="utf-8", newline="\n") as file:
            for line in lines(store, session):
                file.write(text(line) + "\n")
    print(f"{count} sessions", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
