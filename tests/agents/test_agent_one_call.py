"""Steps that are one question to an agent: how they end, with and without listeners, and what they cost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from agent_hosts import AgentHost, two_hosts
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import flujo_actors
from flujo_actors import Flujo, Pipeline, PipelineResult, Settings, SqliteStore, Step, Undo, UsageLimits
from flujo_actors._core.settings_model import TelemetrySettings
from flujo_actors.telemetry._sinks import MemorySink

HERE = str(Path(flujo_actors.__file__).parent)


def answering(text: str = "yes", **options: Any) -> Agent[None, Any]:
    return Agent(TestModel(custom_output_text=text), **options)


def telling() -> dict[str, Any]:
    """What makes a run one that somebody listens to."""
    return {"settings": Settings(telemetry=TelemetrySettings(sinks=(MemorySink(),)))}


def timeless(result: PipelineResult) -> Any:
    """The results of all steps, but for how long they took."""
    return [attrs.evolve(each, latency_s=0.0) for each in result.step_history]


@two_hosts
def test_questions_follow_one_another_in_memory_and_on_a_store(host: AgentHost, tmp_path: Path) -> None:
    """Alone and after others, with data of its own or that of the step before."""
    steps = Step("first", answering()) >> Step("second", answering("no"), input="Hello")
    store = SqliteStore(tmp_path / "runs.db")
    for options in ({}, {"store": store}):
        result = host.result(Flujo(steps, **options), "Hello")
        assert (result.output, [each.output for each in result.step_history]) == ("no", ["yes", "no"])
        assert result.total_tokens > 0
    store.close()


def forget(number: int) -> int:
    """Forget something."""
    return number


def _deps() -> None:
    return None


SAID = ModelRequest.user_text_prompt("Good morning")

AROUND = {
    "limits": (lambda: Step("ask", answering()), {"usage_limits": UsageLimits(request_limit=5)}),
    "limits of the step": (lambda: Step("ask", answering(), usage_limits=UsageLimits(request_limit=5)), {}),
    "telemetry": (lambda: Step("ask", answering()), telling()),
    "a value": (lambda: Step("ask", Agent(TestModel(), output_type=int)), {}),
    "a schema": (lambda: Step("ask", answering("1"), processing={"schema": int}), {}),
    "what was said before": (
        lambda: Step("ask", answering(), message_history=[ModelRequest.user_text_prompt("a")]),
        {},
    ),
    "made deps": (lambda: Step("ask", answering(), deps=_deps), {}),
    "retries": (lambda: Step("ask", answering(), max_retries=1), {}),
    "a granular step": (lambda: Step.granular("ask", answering()), {}),
}


@pytest.mark.parametrize("longer", AROUND)
def test_a_question_with_something_around_it_ends_as_one_without(longer: str) -> None:
    """Limits, listeners, schemas, history, deps, retries and units change no answer."""
    make, options = AROUND[longer]
    result = Flujo(make(), **options).run("Hello", backend="asyncio")
    assert result.success


def test_an_agent_that_asks_for_approval_pauses_the_run() -> None:
    """Its run pauses with a question, as it must."""
    agent = Agent(TestModel(call_tools=["forget"]))
    agent.tool_plain(requires_approval=True)(forget)
    result = Flujo(Step("ask", agent)).run("Hello", backend="asyncio")
    assert result.status == "paused"


def test_a_question_that_is_watched_is_streamed() -> None:
    """Who iterates a run sees the text of its agents as it comes."""

    async def main() -> list[str]:
        async with Flujo(Step("ask", answering("one two three"))).run_async("Hello") as run:
            return [type(outcome).__name__ async for outcome in run]

    assert "Chunk" in asyncio.run(main())


# --- how it ends --------------------------------------------------------------------------------------------


def _fails(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise ConnectionError("the provider is away")


def _never_content() -> Agent[None, Any]:
    agent = answering("no good")

    @agent.output_validator
    def refuse(said: str) -> str:
        raise ModelRetry(f"say something else than {said}")

    return agent


FAILING = {
    "an error": lambda: Agent(FunctionModel(_fails)),
    "a refusal": _never_content,
    "an empty answer": lambda: Agent(FunctionModel(lambda *_: ModelResponse(parts=[]))),
}


@two_hosts
@pytest.mark.parametrize("failing", FAILING)
def test_a_question_that_fails_reports_the_same_with_and_without_listeners(host: AgentHost, failing: str) -> None:
    """With why, with what was used until then, and with what the model said, if it said something."""
    step = Step("ask", FAILING[failing]())
    quiet, told = (host.result(Flujo(step, **options), "Hello") for options in ({}, telling()))
    assert not quiet.success
    assert (quiet.feedback, type(quiet.error), timeless(quiet)) == (told.feedback, type(told.error), timeless(told))


@two_hosts
def test_what_a_question_used_that_was_cut_short_is_counted(host: AgentHost) -> None:
    """The first request of an agent counts, though its second one is cancelled because a neighbor failed."""
    waits = asyncio.Event()

    async def converse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("forget", {"number": 1})])
        waits.set()
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits for an hour")

    async def give_up(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await waits.wait()
        raise ConnectionError("the provider is away")

    talks = Step("talks", Agent(FunctionModel(converse), tools=[forget]))
    both = Step.parallel("both", {"talks": talks, "fails": Step("fails", Agent(FunctionModel(give_up)))})
    result = host.result(Flujo(both), "Hello")
    assert not result.success
    assert result.total_tokens > 0


@two_hosts
def test_a_question_can_be_undone(host: AgentHost, tmp_path: Path) -> None:
    """A compensation gets what the agent was asked and what it said, in memory and on a store."""
    undone: list[object] = []

    async def release(undo: Undo) -> None:
        undone.append((undo.input, undo.output))

    async def fail(data: str) -> str:
        raise ValueError("no")

    steps = Step("ask", answering("booked"), compensate=release) >> Step("fail", fail)
    store = SqliteStore(tmp_path / "runs.db")
    for options in ({}, {"store": store}):
        assert not host.result(Flujo(steps, **options), "Hello").success
    store.close()
    assert undone == [("Hello", "booked")] * 2


# --- what it costs ------------------------------------------------------------------------------------------


def calls_in(size: int) -> int:
    """How many functions of the package are entered, or gone on with, by a run of so many questions."""
    agent = answering()
    flujo = Flujo(Pipeline(Step(f"ask {number}", agent, input="Hello") for number in range(size)))
    counted = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename.startswith(HERE)

    async def main() -> None:
        assert (await flujo.run_async("Hello")).success
        sys.setprofile(count)
        try:
            assert (await flujo.run_async("Hello")).success
        finally:
            sys.setprofile(None)

    asyncio.run(main())
    return counted


def test_a_question_enters_few_functions_of_the_package() -> None:
    """A fixed number of calls is between a pipeline and its agent: 194 alone, 196 in the whole suite."""
    assert (calls_in(12) - calls_in(2)) / 10 <= 200
