"""The same by hand with anyio on asyncio: a task per step, one message back over a stream; no supervision."""

import math
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from benchmarks.protocol import Job, in_asyncio, peak_bytes, seconds, serve

CHUNK_BUFFER = 64


async def agent(data: int) -> int:
    return data


async def work(data: int, reply: MemoryObjectSendStream[int]) -> None:
    await reply.send(await agent(data))


async def chain(size: int) -> int:
    value = 1
    reply, replies = anyio.create_memory_object_stream[int](1)
    async with reply, replies, anyio.create_task_group() as group:
        for _ in range(size):
            group.start_soon(work, value, reply)
            value = await replies.receive()
    return value


async def fan_out(size: int) -> list[int]:
    reply, replies = anyio.create_memory_object_stream[int](math.inf)
    async with reply, replies, anyio.create_task_group() as group:
        for number in range(size):
            group.start_soon(work, number, reply)
        return [await replies.receive() for _ in range(size)]


async def runs(size: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(size):
            group.start_soon(chain, 3)


async def chunks(size: int) -> int:
    sender, receiver = anyio.create_memory_object_stream[str](CHUNK_BUFFER)

    async def produce() -> None:
        async with sender:
            for _ in range(size):
                await sender.send("word ")

    async with receiver, anyio.create_task_group() as group:
        group.start_soon(produce)
        return len([chunk async for chunk in receiver])


def timed(job: Job, rounds: int) -> float:
    return seconds(in_asyncio, job, rounds)


if __name__ == "__main__":
    serve(
        {
            "chain": lambda size, rounds: timed(partial(chain, size), rounds),
            "fan_out": lambda size, rounds: timed(partial(fan_out, size), rounds),
            "memory": lambda size, rounds: peak_bytes(in_asyncio, partial(fan_out, size)),
            "runs": lambda size, rounds: timed(partial(runs, size), rounds),
            "chunks": lambda size, rounds: timed(partial(chunks, size), rounds),
        },
        packages=["anyio"],
    )
