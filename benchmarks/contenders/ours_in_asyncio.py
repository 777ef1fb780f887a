"""This library in an asyncio program, whose steps are asyncio coroutines: each one crosses to the loop and back."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from benchmarks.protocol import peak_bytes, seconds, serve
from flujo_actors import Chunk, Flujo, Pipeline, Step


def run(main: Callable[[], Coroutine[Any, Any, float]]) -> float:
    return asyncio.run(main())


async def agent(data: int) -> int:
    return data


async def talk(size: int) -> AsyncIterator[str]:
    for _ in range(size):
        yield "word "


@functools.cache
def chain(size: int) -> Flujo:
    return Flujo(Pipeline(Step(f"s{number}", agent) for number in range(size)))


@functools.cache
def fan_out(size: int) -> Flujo:
    return Flujo(Step.parallel("fan", {f"b{number}": Step(f"b{number}", agent) for number in range(size)}))


TALKING = Flujo(Step("talk", talk))


async def run_once(flujo: Flujo) -> None:
    result = await flujo.run_async(1)
    assert result.success, result.feedback


async def runs(size: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(run_once(chain(3)))


async def chunks(size: int) -> None:
    seen = 0
    async for outcome in TALKING.run_async(size):
        seen += isinstance(outcome, Chunk)
    assert seen == size


if __name__ == "__main__":
    serve(
        {
            "chain": lambda size, rounds: seconds(run, partial(run_once, chain(size)), rounds),
            "fan_out": lambda size, rounds: seconds(run, partial(run_once, fan_out(size)), rounds),
            "memory": lambda size, rounds: peak_bytes(run, partial(run_once, fan_out(size))),
            "runs": lambda size, rounds: seconds(run, partial(runs, size), rounds),
            "chunks": lambda size, rounds: seconds(run, partial(chunks, size), rounds),
        },
        packages=["flujo-actors", "trio"],
    )
