"""Absurd: tasks with parameters, and the results of their steps.

spawn  `spawn` of a task
step   `ctx.step` in a task that a worker has claimed: has the step a result? If not, its result is stored, and the claim prolonged
"""

import turns

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL


def install(dsn):
    """What `absurdctl init` does, which needs a psql."""
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regnamespace('absurd')").fetchone() == (None,):
            connection.execute(BUNDLED_SCHEMA_SQL)


def spawns(app, options):
    messages = turns.messages(options.payloads)

    def turn(operations):
        for _ in range(operations):
            app.spawn("task", next(messages), queue="default")

    return turn


def steps(app, options):
    messages = turns.messages(options.payloads)

    @app.register_task("task")
    def task(params, ctx):
        for number in range(params["steps"]):
            ctx.step(f"step {number}", lambda: next(messages))

    def turn(operations):
        app.spawn("task", {"steps": operations})
        app.work_batch()

    return turn


operations = {"spawn": spawns, "step": steps}
options = turns.options(operations)
install(options.dsn)
app = Absurd(options.dsn)
app.create_queue()
turns.serve(operations[options.operation](app, options))
