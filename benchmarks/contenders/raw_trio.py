"""The yardstick: what one would write by hand with trio. A task per step, one message back; no supervision.

The message is sent without a checkpoint; `--awaited` awaits it, as most programs do.
"""

import math
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import trio

from benchmarks.protocol import Measure, importing, peak_bytes, seconds, serve

Worker = Callable[[int, trio.MemorySendChannel[int]], Coroutine[Any, Any, None]]

CHUNK_BUFFER = 64
"""As many as the library lets a run be ahead of its reader."""


async def agent(data: int, *, context: object = None) -> int:
    return data


async def send(data: int, reply: trio.MemorySendChannel[int]) -> None:
    await reply.send(await agent(data))


async def send_nowait(data: int, reply: trio.MemorySendChannel[int]) -> None:
    reply.send_nowait(await agent(data))


async def chain(worker: Worker, size: int) -> int:
    value = 1
    reply, replies = trio.open_memory_channel[int](1)
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(worker, value, reply)
            value = await replies.receive()
    return value


async def fan_out(worker: Worker, size: int) -> list[int]:
    reply, replies = trio.open_memory_channel[int](math.inf)
    async with trio.open_nursery() as nursery:
        for number in range(size):
            nursery.start_soon(worker, number, reply)
        return [await replies.receive() for _ in range(size)]


async def runs(worker: Worker, size: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(size):
            nursery.start_soon(chain, worker, 3)


async def chunks(size: int) -> int:
    sender, receiver = trio.open_memory_channel[str](CHUNK_BUFFER)

    async def produce() -> None:
        async with sender:
            for _ in range(size):
                await sender.send("word ")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        return len([chunk async for chunk in receiver])


async def direct_calls(size: int) -> None:
    context = object()
    for _ in range(size):
        await agent(1, context=context)


def by_hand(worker: Worker) -> dict[str, Measure]:
    """The works that depend on how the message is sent."""
    return {
        "chain": lambda size, rounds: seconds(trio.run, partial(chain, worker, size), rounds),
        "fan_out": lambda size, rounds: seconds(trio.run, partial(fan_out, worker, size), rounds),
        "memory": lambda size, rounds: peak_bytes(trio.run, partial(fan_out, worker, size)),
        "runs": lambda size, rounds: seconds(trio.run, partial(runs, worker, size), rounds),
    }


OTHERS: dict[str, Measure] = {
    "chunks": lambda size, rounds: seconds(trio.run, partial(chunks, size), rounds),
    "agent_call": lambda size, rounds: seconds(trio.run, partial(direct_calls, size), rounds),
    "import": importing("trio"),
}


if __name__ == "__main__":
    works = by_hand(send) if "--awaited" in sys.argv else by_hand(send_nowait) | OTHERS
    serve(works, packages=["trio"])
