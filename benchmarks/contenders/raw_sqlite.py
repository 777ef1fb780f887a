"""Durability by hand: raw trio, and one insert of a JSON record and its commit in a thread for every step."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import trio

from benchmarks.protocol import added_bytes, safest, scratch, seconds, serve

TABLE = "CREATE TABLE records (run TEXT, seq INTEGER, body TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID"
INSERT = "INSERT INTO records VALUES (?, ?, ?)"


async def agent(data: int) -> int:
    return data


def commit(db: sqlite3.Connection, run: str, seq: int, output: int) -> None:
    body = json.dumps({"v": 1, "name": f"s{seq}", "output": output, "success": True, "attempts": 1, "cost_usd": 0.0})
    with db:
        db.execute(INSERT, (run, seq, body))


async def work(db: sqlite3.Connection, seq: int, data: int, reply: trio.MemorySendChannel[int]) -> None:
    output = await agent(data)
    await trio.to_thread.run_sync(commit, db, "run", seq, output)
    await reply.send(output)


async def chain(db: sqlite3.Connection, first: int, size: int) -> int:
    value = 1
    reply, replies = trio.open_memory_channel[int](1)
    async with trio.open_nursery() as nursery:
        for seq in range(first, first + size):
            nursery.start_soon(work, db, seq, value, reply)
            value = await replies.receive()
    return value


def opened(path: Path) -> sqlite3.Connection:
    db = safest(sqlite3.connect(path, check_same_thread=False))
    db.execute(TABLE)
    return db


def durable_chain(size: int, rounds: int) -> float:
    with scratch() as directory, closing(opened(directory / "runs.db")) as db:
        begins = iter(range(0, size * rounds, size))
        return seconds(trio.run, lambda: chain(db, next(begins), size), rounds)


def write(path: Path, size: int) -> None:
    with closing(opened(path)) as db:
        trio.run(chain, db, 0, size)


if __name__ == "__main__":
    serve({"durable_chain": durable_chain, "database": added_bytes(write)}, packages=["trio"])
