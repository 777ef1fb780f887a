"""Agent steps in every kind of host."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
from agent_hosts import HOSTS, each_host
from pydantic_ai import Agent, ModelRetry

from flujo_actors import Failure, Flujo, Step, make_agent_async
from flujo_actors.testing import CallTool, Recorder, scripted_model

pytestmark = pytest.mark.slow

MANY = 200


@each_host
def test_two_hundred_agent_steps_at_once(host):
    """No model answers before all of them were asked, so they are all under way at the same time."""
    arrived, all_here = [], asyncio.Event()

    async def together(messages):
        arrived.append(1)
        if len(arrived) == MANY:
            all_here.set()
        await all_here.wait()
        return messages[0].parts[-1].content.upper()

    model = scripted_model(together, forever=True)
    flujo = Flujo(Step.map_over("all", Step("one", make_agent_async(model))))
    result = host.result(flujo, [f"item {number}" for number in range(MANY)])
    assert result.output == [f"ITEM {number}" for number in range(MANY)]
    assert result.total_tokens == MANY * 15


@each_host
@pytest.mark.parametrize("limit", ["step", "agent"])
def test_a_sleeping_tool_is_cancelled_by_a_timeout(host, limit):
    """The deadline reaches into the tool, and its cleanup is over when the step has settled."""
    cleaned_up = []

    async def sleep_long() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned_up.append(True)
        return "never"

    bound = {"timeout_s": 0.5}
    agent = make_agent_async(
        scripted_model(CallTool("sleep_long"), forever=True), tools=[sleep_long], **(bound if limit == "agent" else {})
    )
    flujo = Flujo(Step("wait", agent, **(bound if limit == "step" else {})))
    host.result(flujo, "go")  # what is loaded once is loaded
    result = host.result(flujo, "go")
    assert "Timeout" in result.feedback or "TimedOut" in result.feedback
    assert cleaned_up


@each_host
def test_a_sync_tool_does_not_hold_up_a_timeout(host):
    """Its thread cannot be stopped, but nobody waits for it."""

    enough, rested = threading.Event(), []

    def nap() -> str:
        enough.wait(60)
        rested.append(True)
        return "rested"

    agent = make_agent_async(scripted_model(CallTool("nap"), forever=True), tools=[nap])
    try:
        host.result(Flujo(Step("wait", agent, timeout_s=0.3)), "go")
        assert rested == []
    finally:
        enough.set()


@each_host
def test_async_and_sync_tools_and_deps(host):
    """Both kinds of tool run, with what the step gives as deps, and may ask the model to try again."""
    seen = []

    def look_up(ctx, key: str) -> str:
        seen.append(ctx.deps)
        return ctx.deps[key]

    async def spell(word: str) -> str:
        if word != "tea":
            raise ModelRetry("only tea")
        await asyncio.sleep(0)
        return "-".join(word)

    model = scripted_model(
        [CallTool("look_up", {"key": "drink"}), CallTool("spell", {"word": "gin"})],
        CallTool("spell", {"word": "tea"}),
        lambda messages: messages[-1].parts[0].content,
    )
    agent = Agent(model, deps_type=dict, tools=[spell])
    agent.tool(look_up)
    deps = {"drink": "tea"}
    result = host.result(Flujo(Step("work", agent, deps=deps)), "go")
    assert result.output == "t-e-a"
    assert seen == [deps]
    assert seen[0] is deps
    assert result.step_history[0].usage.tool_calls == 2


@each_host
def test_a_model_that_raises_is_a_failure_with_the_original_error(host):
    """The exception crosses the loops as it is, with its traceback; so does one from a tool."""
    error = ConnectionError("the provider is down")

    def broken() -> str:
        raise error

    for model in (scripted_model(error), scripted_model(CallTool("broken"))):
        flujo = Flujo(Step("ask", make_agent_async(model, tools=[broken])))
        if host.sync:
            result = flujo.run("x")
        else:
            recorder = host.recorded(flujo, "x")
            result = recorder.result
            failure = recorder.outcomes[-1]
            assert isinstance(failure, Failure)
            assert failure.error is error
            assert failure.error.__traceback__ is not None
        assert result.step_history[0].feedback == "Agent execution failed with ConnectionError: the provider is down"


@pytest.mark.parametrize("host", HOSTS[:4], ids=[host.name for host in HOSTS[:4]])
def test_leaving_a_watched_run_cancels_the_model_mid_call(host):
    """Who closes the run does not pay for an answer that nobody reads."""
    ended = []

    async def write(messages):
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    flujo = Flujo(Step("ask", make_agent_async(scripted_model(write))))

    async def main():
        async with flujo.run_async("x"):
            while not started():
                await pause()

    def started():
        return bool(model.asked)

    model = flujo.pipeline.steps[0].agent.model
    host.drive(main)
    assert ended == [True]


async def pause():
    """Give way for a moment, on either library."""
    await anyio.sleep(0.005)


@pytest.mark.parametrize("host", HOSTS[:4], ids=[host.name for host in HOSTS[:4]])
def test_text_is_streamed_through_tool_calls(host):
    """All the text of all turns is live, in order, identical pieces too, and tools are really called."""
    called = []

    async def look(city: str) -> str:
        called.append(city)
        return "sunny"

    model = scripted_model(
        ["Let me see. ", CallTool("look", {"city": "Lima"})],
        CallTool("look", {"city": "Oslo"}),
        "ha ha ha it is sunny",
    )
    recorder: Recorder = host.recorded(Flujo(Step("ask", make_agent_async(model, tools=[look]))), "x")
    assert called == ["Lima", "Oslo"]
    assert "".join(recorder.chunks("ask")) == "Let me see. ha ha ha it is sunny"
    assert recorder.chunks("ask").count("ha ") == 3
    assert recorder.output("ask") == "ha ha ha it is sunny"
