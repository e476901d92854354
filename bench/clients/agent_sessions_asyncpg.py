"""What the Session of OpenAI Agents does, by agent_sessions and asyncpg.

add_1    an item
add_10   ten of them, or none
last_50  the last items of a session with `length` items, parsed, the oldest first
"""

import turns

import asyncio
import itertools
import json

import asyncpg

SESSIONS = 16  # as many as for OpenAI Agents

ADD = "select agent_sessions.session_append(session_id => $1, payload => $2::text::json, on_missing => 'create')"
ADD_ALL = """
    select count(*) from agent_sessions.session_append_batch(session_id => $1, items => $2::text::json, on_missing => 'create')"""
LAST = """
    select payload::text from agent_sessions.session_history(session_id => $1, newest_first => true, max_rows => 50)"""


def dumps(value):
    """As OpenAI Agents does."""
    return json.dumps(value, separators=(",", ":"))


def batch(messages):
    return dumps([{"payload": message} for message in messages])


def adds(connection, options, statement, encode):
    messages = turns.messages(options.payloads)
    sessions = itertools.cycle([f"{options.name} {number}" for number in range(SESSIONS)])

    async def turn(operations):
        for _ in range(operations):
            await connection.fetch(statement, next(sessions), encode(messages))

    return turn


async def last_50(connection, options):
    messages = itertools.islice(turns.messages(options.payloads), options.length)
    await connection.fetch(ADD_ALL, options.name, batch(messages))

    async def turn(operations):
        for _ in range(operations):
            found = await connection.fetch(LAST, options.name)
            assert len([json.loads(payload) for payload, in reversed(found)]) == 50

    return turn


async def prepare(options):
    connection = await asyncpg.connect(options.dsn)
    match options.operation:
        case "add_1":
            turn = adds(connection, options, ADD, lambda messages: dumps(next(messages)))
        case "add_10":
            turn = adds(connection, options, ADD_ALL, lambda messages: batch(itertools.islice(messages, 10)))
        case "last_50":
            return await last_50(connection, options)
    await turn(SESSIONS)
    return turn


with asyncio.Runner() as runner:
    turn = runner.run(prepare(turns.options(["add_1", "add_10", "last_50"])))
    turns.serve(lambda operations: runner.run(turn(operations)))
