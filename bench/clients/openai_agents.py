"""OpenAI Agents: its SQLAlchemySession, on one connection of asyncpg.

add_1, add_10  `add_items` of that many items
last_50        `get_items(limit=50)` of a session with `length` items
"""

import turns

import asyncio
import itertools

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

# Few enough for SQLAlchemy to keep the statements of each of them (it keeps 500).
SESSIONS = 16


def session(engine, name):
    return SQLAlchemySession(name, engine=engine, create_tables=True)


def adds(engine, options, items):
    messages = turns.messages(options.payloads)
    sessions = itertools.cycle([session(engine, f"{options.name} {number}") for number in range(SESSIONS)])

    async def turn(operations):
        for _ in range(operations):
            await next(sessions).add_items(list(itertools.islice(messages, items)))

    return turn


async def last_50(engine, options):
    stored = session(engine, options.name)
    await stored.add_items(list(itertools.islice(turns.messages(options.payloads), options.length)))

    async def turn(operations):
        for _ in range(operations):
            assert len(await stored.get_items(limit=50)) == 50

    return turn


async def prepare(options):
    engine = create_async_engine(
        options.dsn.replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=1, max_overflow=0)
    match options.operation:
        case "add_1":
            turn = adds(engine, options, 1)
        case "add_10":
            turn = adds(engine, options, 10)
        case "last_50":
            return await last_50(engine, options)
    await turn(SESSIONS)
    return turn


with asyncio.Runner() as runner:
    turn = runner.run(prepare(turns.options(["add_1", "add_10", "last_50"])))
    turns.serve(lambda operations: runner.run(turn(operations)))
