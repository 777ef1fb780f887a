"""The same by hand with asyncio: a task per step, one message back over a queue; no supervision."""

import asyncio
from functools import partial

from benchmarks.protocol import in_asyncio, peak_bytes, seconds, serve

CHUNK_BUFFER = 64


async def agent(data: int) -> int:
    return data


async def work(data: int, replies: "asyncio.Queue[int]") -> None:
    await replies.put(await agent(data))


async def chain(size: int) -> int:
    value = 1
    replies: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(work(value, replies))
            value = await replies.get()
    return value


async def fan_out(size: int) -> list[int]:
    replies: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        for number in range(size):
            group.create_task(work(number, replies))
        return [await replies.get() for _ in range(size)]


async def runs(size: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(chain(3))


async def chunks(size: int) -> int:
    queue: asyncio.Queue[str] = asyncio.Queue(CHUNK_BUFFER)

    async def produce() -> None:
        for _ in range(size):
            await queue.put("word ")

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        return len([await queue.get() for _ in range(size)])


if __name__ == "__main__":
    serve(
        {
            "chain": lambda size, rounds: seconds(in_asyncio, partial(chain, size), rounds),
            "fan_out": lambda size, rounds: seconds(in_asyncio, partial(fan_out, size), rounds),
            "memory": lambda size, rounds: peak_bytes(in_asyncio, partial(fan_out, size)),
            "runs": lambda size, rounds: seconds(in_asyncio, partial(runs, size), rounds),
            "chunks": lambda size, rounds: seconds(in_asyncio, partial(chunks, size), rounds),
        }
    )
