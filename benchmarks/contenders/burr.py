"""Burr: a state machine of async actions. Branches are sub-applications, durability is its SQLite persister."""

import asyncio
import functools
import itertools
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from burr.core import ApplicationBuilder, ApplicationContext, Graph, GraphBuilder, State, action
from burr.core.action import streaming_action
from burr.core.parallelism import MapStates, RunnableGraph
from burr.core.persistence import SQLitePersister

from benchmarks.protocol import (
    Job,
    added_bytes,
    importing,
    in_asyncio,
    on_asyncio,
    peak_on_asyncio,
    safest,
    scratch,
    seconds,
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


def persister_at(path: Path) -> SQLitePersister:
    connection = safest(sqlite3.connect(path, check_same_thread=False))
    persister = SQLitePersister(db_path=str(path), connection=connection)
    persister.initialize()
    return persister


async def run_durably(size: int, persister: SQLitePersister) -> None:
    builder = ApplicationBuilder().with_graph(steps(size)).with_entrypoint("s0").with_state(data=1)
    app = builder.with_state_persister(persister).build()
    await app.arun(halt_after=[f"s{size - 1}"])


def durable_chain(size: int, rounds: int) -> float:
    with scratch() as directory:
        persister = persister_at(directory / "runs.db")
        steps(size)
        return seconds(in_asyncio, lambda: run_durably(size, persister), rounds)


def write(path: Path, size: int) -> None:
    persister = persister_at(path)
    asyncio.run(run_durably(size, persister))
    persister.cleanup()


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
            "memory": peak_on_asyncio(fan_out),
            "durable_chain": durable_chain,
            "database": added_bytes(write),
            "import": importing("burr.core"),
        },
        packages=["burr"],
    )
