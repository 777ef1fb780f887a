"""DBOS: durable workflows on SQLite, with the same settings of the database as everybody else."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS

from benchmarks.protocol import added_bytes, importing, in_asyncio, now, safest, scratch, serve


@DBOS.step()
async def agent(data: int) -> int:
    return data


@DBOS.workflow()
async def chain(size: int) -> int:
    value = 1
    for _ in range(size):
        value = await agent(value)
    return value


def engine_at(path: Path) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")

    @sqlalchemy.event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, record: Any) -> None:
        safest(connection)
        connection.isolation_level = "IMMEDIATE"
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


@contextmanager
def launched(path: Path) -> Iterator[None]:
    url = f"sqlite:///{path}"
    config = {"name": "bench", "system_database_url": url, "system_database_engine": engine_at(path)}
    DBOS(config=config | {"log_level": "ERROR", "enable_otlp": False})
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=0)


async def one_after_the_other(size: int, rounds: int) -> float:
    begun = now()
    for _ in range(rounds):
        await chain(size)
    return now() - begun


async def all_at_once(size: int, rounds: int) -> float:
    begun = now()
    for _ in range(rounds):
        await asyncio.gather(*(chain(3) for _ in range(size)))
    return now() - begun


def durable_chain(size: int, rounds: int) -> float:
    with scratch() as directory, launched(directory / "runs.db"):
        return in_asyncio(lambda: one_after_the_other(size, rounds))


def durable_runs(size: int, rounds: int) -> float:
    with scratch() as directory, launched(directory / "runs.db"):
        return in_asyncio(lambda: all_at_once(size, rounds))


def write(path: Path, size: int) -> None:
    with launched(path):
        asyncio.run(one_after_the_other(size, 1))


if __name__ == "__main__":
    serve(
        {
            "durable_chain": durable_chain,
            "durable_runs": durable_runs,
            "database": added_bytes(write),
            "import": importing("dbos"),
        },
        packages=["dbos"],
    )
