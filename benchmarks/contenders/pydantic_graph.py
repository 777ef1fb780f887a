"""pydantic-graph: steps of a built graph; branches are a map over the input and a join."""

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

from pydantic_graph import Graph, GraphBuilder, StepContext, reduce_list_append

from benchmarks.protocol import Job, importing, on_asyncio, peak_on_asyncio, serve


async def agent(context: StepContext[None, None, int]) -> int:
    return context.inputs


@functools.cache
def steps(size: int) -> Graph[None, None, int, int]:
    builder = GraphBuilder(input_type=int, output_type=int)
    previous: Any = builder.start_node
    for number in range(size):
        step = builder.step(agent, node_id=f"s{number}")
        builder.add(builder.edge_from(previous).to(step))
        previous = step
    builder.add(builder.edge_from(previous).to(builder.end_node))
    return builder.build()


def chain(size: int) -> Job:
    graph = steps(size)
    return lambda: graph.run(inputs=1)


@functools.cache
def mapping() -> Graph[None, None, list[int], list[int]]:
    builder = GraphBuilder(input_type=list[int], output_type=list[int])
    branch = builder.step(agent, node_id="branch")
    gather = builder.join(reduce_list_append, initial_factory=list[int])
    builder.add(
        builder.edge_from(builder.start_node).map().to(branch),
        builder.edge_from(branch).to(gather),
        builder.edge_from(gather).to(builder.end_node),
    )
    return builder.build()


def fan_out(size: int) -> Job:
    graph, numbers = mapping(), list(range(size))

    async def job() -> None:
        assert len(await graph.run(inputs=numbers)) == size

    return job


def runs(size: int) -> Job:
    graph = steps(3)

    async def job() -> None:
        await asyncio.gather(*(graph.run(inputs=1) for _ in range(size)))

    return job


async def talk(context: StepContext[None, None, int]) -> AsyncIterator[str]:
    for _ in range(context.inputs):
        yield "word "


def chunks(size: int) -> Job:
    """The graph hands out the step's bare generator, which its caller then reads."""
    builder = GraphBuilder(input_type=int, output_type=object)
    step = builder.stream(talk)
    builder.add(builder.edge_from(builder.start_node).to(step), builder.edge_from(step).to(builder.end_node))
    graph = builder.build()

    async def job() -> None:
        output: Any = await graph.run(inputs=size)
        assert len([chunk async for chunk in output]) == size

    return job


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs, chunks=chunks),
            "memory": peak_on_asyncio(fan_out),
            "import": importing("pydantic_graph"),
        },
        packages=["pydantic-graph"],
    )
