"""autogen-core: an agent for every step, asked by a message; branches are questions asked at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

from benchmarks.protocol import Job, importing, on_asyncio, peak_on_asyncio, serve


@dataclass
class Message:
    data: int


class Worker(RoutedAgent):
    """Answers with what it gets."""

    @message_handler
    async def handle(self, message: Message, ctx: MessageContext) -> Message:
        return message


async def with_runtime(work: Callable[[SingleThreadedAgentRuntime], Coroutine[Any, Any, None]]) -> None:
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker("worker"))
    runtime.start()
    await work(runtime)
    await runtime.stop()


async def one_after_the_other(runtime: SingleThreadedAgentRuntime, size: int, of: str = "") -> None:
    message = Message(1)
    for number in range(size):
        message = await runtime.send_message(message, AgentId("worker", f"{of}s{number}"))


def chain(size: int) -> Job:
    return lambda: with_runtime(lambda runtime: one_after_the_other(runtime, size))


def fan_out(size: int) -> Job:
    async def ask_all(runtime: SingleThreadedAgentRuntime) -> None:
        asked = (runtime.send_message(Message(number), AgentId("worker", f"b{number}")) for number in range(size))
        assert len(await asyncio.gather(*asked)) == size

    return lambda: with_runtime(ask_all)


def runs(size: int) -> Job:
    async def run_all(runtime: SingleThreadedAgentRuntime) -> None:
        await asyncio.gather(*(one_after_the_other(runtime, 3, f"r{number}") for number in range(size)))

    return lambda: with_runtime(run_all)


if __name__ == "__main__":
    serve(
        {
            **on_asyncio(chain=chain, fan_out=fan_out, runs=runs),
            "memory": peak_on_asyncio(fan_out),
            "import": importing("autogen_core"),
        },
        packages=["autogen-core"],
    )
