"""What LangGraph's checkpointer and Absurd's tasks do, by agent_sessions and psycopg.

put    after every step of a graph:
           LangGraph                                       agent_sessions
           messages, all of them, at their new version     payload, the new one
           checkpoint_id, parent_checkpoint_id             item_id, and the entry before
           metadata, of every step                         attrs
           checkpoint: versions, what each node has seen   state
load   the state to go on from, with `length` messages
spawn  a task, with its parameters: a session in the status of those that wait for a worker
step   the result of a step, once, under the lease of the task's worker, which it prolongs as Absurd does
"""

import turns

import itertools
import json

import psycopg

from graph import Graph

PUT = """
    select agent_sessions.session_append(session_id => %(thread)s, payload => %(message)s::text::json, item_id => %(id)s,
             attrs => %(metadata)s::text::jsonb, on_missing => 'create'),
           agent_sessions.session_set(session_id => %(thread)s, state => %(checkpoint)s::text::json)"""
STATE = "select state::text from agent_sessions.session_get(session_id => %s)"
HISTORY = "select payload::text from agent_sessions.session_history(session_id => %s)"
APPEND_ALL = """
    select count(*) from agent_sessions.session_append_batch(session_id => %s, items => %s::text::json, on_missing => 'create')"""
SPAWN = """
    select session_id from agent_sessions.session_create(session_id => %s, status => 'pending', items => %s::text::json)"""
CLAIM = "select lease from agent_sessions.session_claim(session_id => %s, ttl => '120 s', holder => 'worker')"
RESULT = """
    select agent_sessions.session_append(session_id => %(task)s, payload => %(result)s::text::json, kind => 'step',
             item_id => %(step)s, lease => %(lease)s)
      from agent_sessions.session_extend(session_id => %(task)s, lease => %(lease)s, ttl => '120 s')"""


def puts(connection, options):
    messages = turns.messages(options.payloads)
    numbers = itertools.count()

    def turn(operations):
        for number in range(operations):
            if number % options.length == 0:
                graph, thread = Graph(), f"{options.name} {next(numbers)}"
            step = graph.step(next(messages))
            connection.execute(PUT, {
                "thread": thread,
                "message": json.dumps(step.message),
                "id": step.checkpoint["id"],
                "metadata": json.dumps(step.metadata),
                "checkpoint": json.dumps(step.checkpoint),
            })

    return turn


def loads(connection, options):
    messages = turns.messages(options.payloads)
    items = [{"payload": message} for message in itertools.islice(messages, options.length)]
    connection.execute(APPEND_ALL, [options.name, json.dumps(items)])

    def turn(operations):
        for _ in range(operations):
            connection.execute(STATE, [options.name]).fetchone()
            found = [json.loads(payload) for payload, in connection.execute(HISTORY, [options.name])]
            assert len(found) == options.length

    return turn


def spawns(connection, options):
    messages = turns.messages(options.payloads)
    numbers = itertools.count()

    def turn(operations):
        for _ in range(operations):
            items = [{"kind": "params", "payload": next(messages)}]
            connection.execute(SPAWN, [f"{options.name} {next(numbers)}", json.dumps(items)])

    return turn


def steps(connection, options):
    messages = turns.messages(options.payloads)
    numbers = itertools.count()

    def turn(operations):
        task = f"{options.name} {next(numbers)}"
        connection.execute(SPAWN, [task, '[{"kind": "params", "payload": {}}]'])
        lease, = connection.execute(CLAIM, [task]).fetchone()
        for number in range(operations):
            connection.execute(RESULT, {
                "task": task, "step": f"step {number}", "result": json.dumps(next(messages)), "lease": lease,
            })

    return turn


operations = {"put": puts, "load": loads, "spawn": spawns, "step": steps}
options = turns.options(operations)
with psycopg.connect(options.dsn, autocommit=True) as connection:
    turns.serve(operations[options.operation](connection, options))
