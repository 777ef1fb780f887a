"""This library with pydantic-ai agents: what a step adds to `agent.run`, and what granular durability adds to atomic.

Both sides of a comparison take turns in one process, so that nothing but the step is between them.
"""

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable

import trio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from benchmarks.protocol import in_asyncio, now, scratch, seconds, serve
from flujo_actors import Flujo, SqliteStore, Step

PLAIN = Agent(TestModel(), name="plain")
STEP = Flujo(Step("plain", PLAIN))
TOOL_CALLS = 3


async def run_once(flujo: Flujo) -> None:
    result = await flujo.run_async("Hello")
    assert result.success, result.feedback


# --- added to agent.run -----------------------------------------------------------------------------------------


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    begun = now()
    await call()
    return now() - begun


async def bare_call() -> None:
    await PLAIN.run("Hello")


async def step_call() -> None:
    await run_once(STEP)


async def difference(size: int) -> float:
    """The step less the bare call, both at the quarter that was disturbed least, in one asyncio loop."""
    pairs = [(await timed(step_call), await timed(bare_call)) for _ in range(max(size, 2))]
    with_step, bare = (statistics.quantiles(side, n=4)[0] for side in zip(*pairs, strict=True))
    return size * (with_step - bare)


def added(size: int, rounds: int) -> float:
    return rounds * asyncio.run(difference(size))


def bare_calls(size: int, rounds: int) -> float:
    return seconds(in_asyncio, bare_call, size * rounds)


def steps_in_asyncio(size: int, rounds: int) -> float:
    return seconds(in_asyncio, step_call, size * rounds)


def steps_in_trio(size: int, rounds: int) -> float:
    return seconds(trio.run, step_call, size * rounds)


# --- granular and atomic ----------------------------------------------------------------------------------------


def conversation(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A few turns with a tool call in each, then the answer."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < TOOL_CALLS:
        return ModelResponse(parts=[ToolCallPart("look", {"number": turn})])
    return ModelResponse(parts=[TextPart("done")])


TALKER = Agent(FunctionModel(conversation), name="talker")


@TALKER.tool_plain
async def look(number: int) -> int:
    """Look something up."""
    return number


def conversations(step: Step, rounds: int) -> float:
    with scratch() as directory:
        store = SqliteStore(directory / "runs.db")
        flujo = Flujo(step, store=store)
        try:
            return seconds(in_asyncio, lambda: run_once(flujo), rounds)
        finally:
            store.close()


if __name__ == "__main__":
    packages = ["flujo-actors", "pydantic-ai-slim"]
    match sys.argv[1]:
        case "bare":
            serve({"agent_run": bare_calls}, packages)
        case "asyncio":
            serve({"agent_run": steps_in_asyncio, "added": added}, packages)
        case "trio":
            serve({"agent_run": steps_in_trio}, packages)
        case "atomic":
            serve({"conversation": lambda size, rounds: conversations(Step("talk", TALKER), size * rounds)}, packages)
        case "granular":
            granular = Step.granular("talk", TALKER)
            serve({"conversation": lambda size, rounds: conversations(granular, size * rounds)}, packages)
