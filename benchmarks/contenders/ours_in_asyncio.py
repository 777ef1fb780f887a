"""This library in an asyncio program.

By default the steps are coroutines that finish at once; with `--waiting` each of them gives way to the loop first, so
that it has to be finished by asyncio, not by the runtime.
"""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator
from functools import partial

from benchmarks.protocol import in_asyncio, peak_bytes, seconds, serve
from flujo_actors import Chunk, Flujo, Pipeline, Step


async def prompt(data: int) -> int:
    return data


async def waiting(data: int) -> int:
    await asyncio.sleep(0)
    return data


agent = waiting if "--waiting" in sys.argv else prompt


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


WORKS = {
    "chain": lambda size, rounds: seconds(in_asyncio, partial(run_once, chain(size)), rounds),
    "fan_out": lambda size, rounds: seconds(in_asyncio, partial(run_once, fan_out(size)), rounds),
    "runs": lambda size, rounds: seconds(in_asyncio, partial(runs, size), rounds),
}
ONCE = {
    "memory": lambda size, rounds: peak_bytes(in_asyncio, partial(run_once, fan_out(size))),
    "chunks": lambda size, rounds: seconds(in_asyncio, partial(chunks, size), rounds),
}


if __name__ == "__main__":
    serve(WORKS if agent is waiting else WORKS | ONCE, packages=["flujo-actors", "trio"])
