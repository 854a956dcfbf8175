"""procrastinate beside posthaste: defer_async on the user's connection enqueues, its own workers drain.

It must never finish jobs itself; it only asks the table whether the workers have.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import procrastinate
import psycopg

SILENCE = 60
WARM_UP = 20
HERE = Path(__file__).parent


def setting(name, otherwise):
    """A setting of a drain that somebody wants to try."""
    return int(os.environ.get(name, otherwise))


def app_of(url, connections):
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=connections)
    return procrastinate.App(connector=connector)


async def connect(url, **options):
    return await psycopg.AsyncConnection.connect(url, **options)


async def publish(connection, task, note, payload):
    """One user's transaction: begin, a business row, one job, commit."""
    async with connection.transaction():
        await connection.execute("insert into business (note) values (%s)", (note,))
        await task.configure(connection=connection).defer_async(**payload)


async def setup(url, flags, text):
    app = app_of(url, 2)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return {}


async def preload(url, flags, text):
    app = app_of(url, 2)

    @app.task(name="bench")
    async def bench(**payload):
        pass

    count = int(flags["count"])
    async with app.open_async():
        for first in range(1, count + 1, 5000):
            jobs = ({"id": n, "text": text} for n in range(first, min(first + 5000, count + 1)))
            await bench.batch_defer_async(*jobs)
    connection = await connect(url, autocommit=True)
    await connection.execute("vacuum analyze")
    return {}


async def enqueue(url, flags, text):
    app = app_of(url, 1)

    @app.task(name="bench")
    async def bench(**payload):
        pass

    clients = [await connect(url, autocommit=True) for _ in range(int(flags.get("clients", 8)))]
    start = time.perf_counter()

    async def client(connection):
        transactions = 0
        while time.perf_counter() - start < flags["seconds"]:
            await publish(connection, bench, text, {"id": 0, "text": text})
            transactions += 1
        return transactions

    async with app.open_async():
        start = time.perf_counter()
        counts = await asyncio.gather(*(client(connection) for connection in clients))
    return {"transactions": sum(counts), "seconds": time.perf_counter() - start}


async def drain(url, flags, text):
    concurrency, deletes = setting("PEER_CONCURRENCY", 4), os.environ.get("PEER_DELETE", "always")
    count = int(flags["count"])
    app = app_of(url, concurrency + 2)
    handled = 0

    @app.task(name="bench")
    async def bench(**payload):
        nonlocal handled
        handled += 1

    async with app.open_async():
        start = time.perf_counter()
        # Without `wait` a worker returns when it has caught up with the queue and settled what it ran.
        await app.run_worker_async(
            concurrency=concurrency, wait=False, listen_notify=False, delete_jobs=deletes, install_signal_handlers=False
        )
        seconds = time.perf_counter() - start
    connection = await connect(url)
    left = await (await connection.execute((HERE / "left.sql").read_text())).fetchone()
    if handled < count or left[0]:
        raise RuntimeError(f"{handled} of {count} handled, {left[0]} not settled")
    configuration = f"one process; concurrency {concurrency}; delete_jobs {deletes}"
    return {"messages": handled, "seconds": seconds, "configuration": configuration}


async def latency(url, flags, text):
    rate = flags.get("rate", 100)
    app = app_of(url, 8)
    started = {}

    @app.task(name="bench")
    async def bench(**payload):
        started.setdefault(payload["id"], time.perf_counter())

    async def arrived(count):
        size, at = -1, 0.0
        while len(started) < count:
            if len(started) > size:
                size, at = len(started), time.monotonic()
            if time.monotonic() - at > SILENCE:
                raise RuntimeError(f"{len(started)} of {count} arrived, none for a minute")
            await asyncio.sleep(0.005)

    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=4, listen_notify=True, delete_jobs="always", install_signal_handlers=False)
        )
        connection = await connect(url, autocommit=True)
        for number in range(WARM_UP):
            await publish(connection, bench, text, {"id": number, "text": text})
        await arrived(WARM_UP)
        last = WARM_UP + int(rate * flags["seconds"])
        committed = {}
        begin = time.perf_counter()
        for number in range(WARM_UP, last):
            pause = begin + (number - WARM_UP) / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            await publish(connection, bench, text, {"id": number, "text": text})
            committed[number] = time.perf_counter()
        await arrived(last)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    # A handler may start before the publisher has read the server's answer to its commit: that is zero.
    return {"samples_ms": [max(0.0, started[number] - at) * 1000 for number, at in committed.items()]}


async def about(url, flags, text):
    configuration = "delete_jobs always; LISTEN/NOTIFY for the latency; psycopg 3.3.8"
    return {"name": "procrastinate", "version": procrastinate.__version__, "configuration": configuration}


VERBS = {verb.__name__: verb for verb in (about, setup, enqueue, preload, drain, latency)}


def main():
    verb, words = (sys.argv + [""])[1], sys.argv[2:]
    try:
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is no verb: {', '.join(VERBS)}")
        flags = {name.removeprefix("--"): float(value) for name, value in zip(words[::2], words[1::2], strict=True)}
        url = os.environ.get("BENCH_URL")
        if verb != "about" and not url:
            raise ValueError("set BENCH_URL to the URL of a PostgreSQL database")
        text = "x" * max(0, int(flags.get("payload-bytes", 256)) - len('{"id": 00000000, "text": ""}'))
        print(json.dumps(asyncio.run(VERBS[verb](url, flags, text))))
    except Exception as error:  # whatever it is, the caller wants a sentence
        sys.exit(f"{verb}: {error}")


main()
