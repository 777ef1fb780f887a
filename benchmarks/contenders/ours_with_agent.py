"""This library with pydantic-ai agents: what a step adds to `agent.run`, and what granular durability adds to atomic.

Also what many of them take at once.

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

from benchmarks.protocol import Job, Measure, in_asyncio, now, peak_bytes, scratch, seconds, serve
from flujo_actors import Flujo, Pipeline, SqliteStore, Step

PLAIN = Agent(TestModel(), name="plain")
STEP = Flujo(Step("plain", PLAIN))
IN_A_ROW = 10
STEPS = Flujo(Pipeline(Step(f"plain {number}", PLAIN, input="Hello") for number in range(IN_A_ROW)))
TOOL_CALLS = 3


async def run_once(flujo: Flujo) -> None:
    result = await flujo.run_async("Hello")
    assert result.success, result.feedback


Call = Callable[[], Awaitable[object]]

# --- added to agent.run -----------------------------------------------------------------------------------------


async def timed(call: Call) -> float:
    begun = now()
    await call()
    return now() - begun


async def bare_call() -> None:
    await PLAIN.run("Hello")


async def step_call() -> None:
    await run_once(STEP)


async def bare_calls_in_a_row() -> None:
    for _ in range(IN_A_ROW):
        await bare_call()


async def steps_in_a_row() -> None:
    await run_once(STEPS)


async def difference(ours: Call, bare: Call, size: int) -> float:
    """Ours less the bare calls, both at the quarter that was disturbed least, in one asyncio loop."""
    pairs = [(await timed(ours), await timed(bare)) for _ in range(max(size, 2))]
    with_step, without = (statistics.quantiles(side, n=4)[0] for side in zip(*pairs, strict=True))
    return size * (with_step - without)


def added_by_step(size: int, rounds: int) -> float:
    """Per step of a run of several, which pays once for being a run."""
    return rounds * asyncio.run(difference(steps_in_a_row, bare_calls_in_a_row, size)) / IN_A_ROW


def added_by_run(size: int, rounds: int) -> float:
    """Per run of one step: the step, and everything around it."""
    return rounds * asyncio.run(difference(step_call, bare_call, size))


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


# --- many at once -----------------------------------------------------------------------------------------------


def many_at_once(step: Step, measure: Callable[[Job], float]) -> Measure:
    """As many durable steps as the size says, each with an agent that is answered at once."""

    def measured(size: int, rounds: int) -> float:
        with scratch() as directory:
            store = SqliteStore(directory / "runs.db")
            flujo, questions = Flujo(Step.map_over("all", step), store=store), [str(number) for number in range(size)]

            async def job() -> None:
                result = await flujo.run_async(questions)
                assert result.success, result.feedback

            try:
                return measure(job)
            finally:
                store.close()

    return measured


def works_on_sqlite(talking: Step, asking: Step) -> dict[str, Measure]:
    """What is measured of a kind of step."""
    return {
        "conversation": lambda size, rounds: conversations(talking, size * rounds),
        "agents_at_once": many_at_once(asking, lambda job: seconds(in_asyncio, job, 1)),
        "memory_of_agents": many_at_once(asking, lambda job: peak_bytes(in_asyncio, job)),
    }


if __name__ == "__main__":
    packages = ["flujo-actors", "pydantic-ai-slim"]
    match sys.argv[1]:
        case "bare":
            serve({"agent_run": bare_calls}, packages)
        case "asyncio":
            serve({"agent_run": steps_in_asyncio, "added": added_by_step, "added_by_run": added_by_run}, packages)
        case "trio":
            serve({"agent_run": steps_in_trio}, packages)
        case "atomic":
            serve(works_on_sqlite(Step("talk", TALKER), Step("plain", PLAIN)), packages)
        case "granular":
            serve(works_on_sqlite(Step.granular("talk", TALKER), Step.granular("plain", PLAIN)), packages)
