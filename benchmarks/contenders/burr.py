"""Burr: a state machine of async actions. Branches are sub-applications, durability is its SQLite persister."""

import asyncio
import functools
import itertools
import sqlite3
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from burr.core import ApplicationBuilder, ApplicationContext, Graph, GraphBuilder, State, action
from burr.core.action import streaming_action
from burr.core.parallelism import MapStates, RunnableGraph
from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from benchmarks.protocol import (
    Job,
    added_bytes,
    importing,
    in_asyncio,
    now,
    on_asyncio,
    peak_on_asyncio,
    safest,
    scratch,
    serve,
)


@action(reads=["data"], writes=["data"])
async def agent(state: State) -> State:
    return state.update(data=state["data"])


@functools.cache
def steps(size: int) -> Graph:
    names = [f"s{number}" for number in range(size)]
    builder = GraphBuilder().with_actions(**dict.fromkeys(names, agent))
    return builder.with_transitions(*itertools.pairwise(names)).build()


async def run_once(graph: Graph, last: str, first: str = "s0") -> State:
    app = ApplicationBuilder().with_graph(graph).with_entrypoint(first).with_state(data=1).build()
    _, _, state = await app.arun(halt_after=[last])
    return state


def chain(size: int) -> Job:
    graph = steps(size)
    return lambda: run_once(graph, f"s{size - 1}")


# --- branches ---------------------------------------------------------------------------------------------------


class Branches(MapStates):
    """The agent once for each number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.graph = RunnableGraph.create(agent)

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return self.graph

    def is_async(self) -> bool:
        return True

    def states(self, state: State, context: ApplicationContext, inputs: dict[str, Any]) -> Iterator[State]:
        for number in range(self.size):
            yield state.update(data=number)

    async def reduce(self, state: State, states: AsyncGenerator[State, None]) -> State:
        return state.update(outputs=[each["data"] async for each in states])

    @property
    def writes(self) -> list[str]:
        return ["outputs"]

    @property
    def reads(self) -> list[str]:
        return ["data"]


@functools.cache
def branches(size: int) -> Graph:
    return GraphBuilder().with_actions(fan=Branches(size)).build()


def fan_out(size: int) -> Job:
    graph = branches(size)

    async def job() -> None:
        state = await run_once(graph, "fan", "fan")
        assert len(state["outputs"]) == size

    return job


# --- runs and chunks --------------------------------------------------------------------------------------------


def runs(size: int) -> Job:
    graph = steps(3)

    async def job() -> None:
        await asyncio.gather(*(run_once(graph, "s2") for _ in range(size)))

    return job


@streaming_action(reads=["data"], writes=["data"])
async def talk(state: State) -> AsyncIterator[tuple[dict[str, Any], State | None]]:
    for _ in range(state["data"]):
        yield {"data": "word "}, None
    yield {"data": "end"}, state.update(data="end")


def chunks(size: int) -> Job:
    graph = GraphBuilder().with_actions(talk=talk).build()

    async def job() -> None:
        app = ApplicationBuilder().with_graph(graph).with_entrypoint("talk").with_state(data=size).build()
        _, container = await app.astream_result(halt_after=["talk"])
        seen = [chunk async for chunk in container]
        assert len(seen) == size, len(seen)

    return job


# --- durable ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def waiting_persister(path: Path) -> AsyncIterator[AsyncSQLitePersister]:
    """The one for asynchronous applications: it writes in a thread."""
    async with aiosqlite.connect(path) as connection:
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            await connection.execute(f"PRAGMA {pragma}")
        persister = AsyncSQLitePersister(connection=connection)
        await persister.initialize()
        yield persister


@asynccontextmanager
async def blocking_persister(path: Path) -> AsyncIterator[SQLitePersister]:
    """The one for synchronous applications, which others use too: it writes on the loop, and nothing runs meanwhile."""
    connection = safest(sqlite3.connect(path))
    persister = SQLitePersister(db_path=str(path), connection=connection)
    persister.initialize()
    yield persister
    persister.cleanup()


persister_at = blocking_persister if "--blocking" in sys.argv else waiting_persister


async def durably(path: Path, size: int, rounds: int) -> float:
    async with persister_at(path) as persister:
        begun = now()
        for _ in range(rounds):
            builder = ApplicationBuilder().with_graph(steps(size)).with_entrypoint("s0").with_state(data=1)
            builder = builder.with_state_persister(persister)
            app = builder.build() if isinstance(persister, SQLitePersister) else await builder.abuild()
            await app.arun(halt_after=[f"s{size - 1}"])
        return now() - begun


def durable_chain(size: int, rounds: int) -> float:
    steps(size)
    with scratch() as directory:
        return in_asyncio(lambda: durably(directory / "runs.db", size, rounds))


def write(path: Path, size: int) -> None:
    asyncio.run(durably(path, size, 1))


ALWAYS = {"durable_chain": durable_chain}
OTHERS = {
    **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
    "memory": peak_on_asyncio(fan_out),
    "database": added_bytes(write),
    "import": importing("burr.core"),
}


if __name__ == "__main__":
    serve(ALWAYS if persister_at is blocking_persister else ALWAYS | OTHERS, packages=["burr"])
