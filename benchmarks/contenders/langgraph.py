"""LangGraph: a compiled state graph; branches are `Send`s, durability is its SQLite saver with `durability="sync"`."""

import asyncio
import functools
import itertools
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from benchmarks.protocol import (
    Job,
    added_bytes,
    importing,
    in_asyncio,
    now,
    on_asyncio,
    peak_on_asyncio,
    scratch,
    serve,
)

ANY_LENGTH = {"recursion_limit": 1_000_000}


class Value(TypedDict):
    data: int


class Values(TypedDict):
    data: int
    outputs: Annotated[list[int], operator.add]


async def agent(state: Value) -> Value:
    return {"data": state["data"]}


@functools.cache
def declared(size: int) -> StateGraph[Any]:
    graph = StateGraph(Value)
    names = [START, *(f"s{number}" for number in range(size)), END]
    for name in names[1:-1]:
        graph.add_node(name, agent)
    for first, second in itertools.pairwise(names):
        graph.add_edge(first, second)
    return graph


@functools.cache
def compiled(size: int) -> CompiledStateGraph[Any]:
    return declared(size).compile()


def chain(size: int) -> Job:
    graph = compiled(size)
    return lambda: graph.ainvoke({"data": 1}, ANY_LENGTH)


# --- branches ---------------------------------------------------------------------------------------------------


async def branch(state: Value) -> dict[str, list[int]]:
    return {"outputs": [state["data"]]}


@functools.cache
def branches(size: int) -> CompiledStateGraph[Any]:
    graph = StateGraph(Values)
    graph.add_node("branch", branch)
    graph.add_conditional_edges(START, lambda state: [Send("branch", {"data": number}) for number in range(size)])
    graph.add_edge("branch", END)
    return graph.compile()


def fan_out(size: int) -> Job:
    graph = branches(size)

    async def job() -> None:
        result = await graph.ainvoke({"data": 1, "outputs": []}, ANY_LENGTH)
        assert len(result["outputs"]) == size

    return job


# --- runs and chunks --------------------------------------------------------------------------------------------


def runs(size: int) -> Job:
    graph = compiled(3)

    async def job() -> None:
        await asyncio.gather(*(graph.ainvoke({"data": 1}) for _ in range(size)))

    return job


async def talk(state: Value) -> Value:
    write = get_stream_writer()
    for _ in range(state["data"]):
        write("word ")
        await asyncio.sleep(0)
    return {"data": 0}


def chunks(size: int) -> Job:
    graph = StateGraph(Value).add_node("talk", talk).add_edge(START, "talk").compile()

    async def job() -> None:
        seen = [chunk async for chunk in graph.astream({"data": size}, stream_mode="custom")]
        assert len(seen) == size

    return job


# --- durable ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def saver_at(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with aiosqlite.connect(path) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()  # WAL
        await connection.execute("PRAGMA synchronous = FULL")
        yield saver


async def run_durably(graph: CompiledStateGraph[Any], thread: int) -> None:
    config = {"configurable": {"thread_id": str(thread)}, **ANY_LENGTH}
    await graph.ainvoke({"data": 1}, config, durability="sync")


async def durably(path: Path, size: int, rounds: int) -> float:
    async with saver_at(path) as saver:
        graph = declared(size).compile(checkpointer=saver)
        begun = now()
        for thread in range(rounds):
            await run_durably(graph, thread)
        return now() - begun


async def concurrently(path: Path, size: int, rounds: int) -> float:
    async with saver_at(path) as saver:
        graph = declared(3).compile(checkpointer=saver)
        begun = now()
        for batch in range(rounds):
            await asyncio.gather(*(run_durably(graph, batch * size + number) for number in range(size)))
        return now() - begun


def durable_chain(size: int, rounds: int) -> float:
    with scratch() as directory:
        return in_asyncio(lambda: durably(directory / "runs.db", size, rounds))


def durable_runs(size: int, rounds: int) -> float:
    with scratch() as directory:
        return in_asyncio(lambda: concurrently(directory / "runs.db", size, rounds))


def write(path: Path, size: int) -> None:
    asyncio.run(durably(path, size, 1))


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
            "memory": peak_on_asyncio(fan_out),
            "durable_chain": durable_chain,
            "durable_runs": durable_runs,
            "database": added_bytes(write),
            "import": importing("langgraph.graph"),
        },
        packages=["langgraph", "langgraph-checkpoint-sqlite"],
    )
