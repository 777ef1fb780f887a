"""Code that runs on a loop it was not written for is told so, and what to call instead."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest
import trio
from embedding_hosts import HostCase, each_asyncio_host, each_trio_host
from pydantic_ai import Agent

from flujo_actors import Flujo, Step
from flujo_actors.testing import CallTool, run_on_mock_clock, scripted_model

FOR_ASYNCIO = 'written for asyncio, but it ran on trio: call `flujo.run(data, backend="asyncio")`'
FOR_TRIO = 'written for trio, but it ran on asyncio: call `flujo.run(data, backend="trio")`'


async def sleeps(data: Any) -> None:
    await asyncio.sleep(0.01)


async def gives_way(data: Any) -> None:
    await asyncio.sleep(0)


async def awaits_a_future(data: Any) -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    await future


async def has_a_timeout(data: Any) -> None:
    async with asyncio.timeout(1):
        pass


async def waits_for_an_event(data: Any) -> None:
    await asyncio.Event().wait()


async def starts_a_task(data: Any) -> None:
    coroutine = sleeps(data)
    try:
        await asyncio.create_task(coroutine)
    finally:
        coroutine.close()


async def asks_an_agent(data: Any) -> str:
    return (await Agent(scripted_model("hi")).run("?")).output


async def wraps_its_error(data: Any) -> None:
    try:
        await sleeps(data)
    except RuntimeError as error:
        raise ConnectionError("cannot connect") from error


async def in_a_group(data: Any) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(sleeps, data)


async def streams(data: Any) -> Any:
    yield "piece"
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "agent",
    [
        *[sleeps, gives_way, awaits_a_future, has_a_timeout, waits_for_an_event, starts_a_task],
        *[wraps_its_error, in_a_group, streams],
    ],
)
def test_asyncio_code_on_trio_is_told_to_ask_for_asyncio(agent: Any) -> None:
    """However deep the sign is: in a group, in a cause, in a library."""
    feedback = Flujo(Step("fetch", agent)).run(1).feedback
    assert FOR_ASYNCIO in str(feedback)
    assert "Agent execution failed with " in str(feedback)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_agent_that_a_function_awaits_on_trio_is_told_to_ask_for_asyncio() -> None:
    """A model agent that is not the step's own runs where the function runs."""
    assert FOR_ASYNCIO in str(Flujo(Step("fetch", asks_an_agent)).run(1).feedback)
    gc.collect()  # what the agent left half-made, while its warnings are ignored


@pytest.mark.parametrize("agent", [sleeps, gives_way, has_a_timeout, waits_for_an_event, asks_an_agent, streams])
def test_what_it_is_told_to_call_works(agent: Any) -> None:
    """The same step, on asyncio; the one that waits for ever gets a timeout."""
    limit_s = 0.2 if agent is waits_for_an_event else 120
    result = Flujo(Step("fetch", agent, timeout_s=limit_s)).run(1, backend="asyncio")
    assert result.success or agent is waits_for_an_event


@each_trio_host
def test_a_trio_program_is_told_the_same(host: HostCase) -> None:
    """Its loop is trio, whoever runs it."""

    async def main() -> Any:
        return await Flujo(Step("fetch", sleeps)).run_async(1)

    assert FOR_ASYNCIO in host.run(main).feedback


def test_the_mock_clock_tells_it_too() -> None:
    """Tests are where most people meet it first."""
    assert FOR_ASYNCIO in str(run_on_mock_clock(Flujo(Step("fetch", sleeps)), 1).feedback)


async def trio_sleeps(data: Any) -> None:
    await trio.sleep(0.01)


async def trio_gives_way(data: Any) -> None:
    await trio.sleep(0)


async def opens_a_nursery(data: Any) -> None:
    async with trio.open_nursery():
        pass


async def has_a_trio_timeout(data: Any) -> None:
    with trio.fail_after(1):
        pass


async def waits_for_a_trio_event(data: Any) -> None:
    await trio.Event().wait()


async def trio_streams(data: Any) -> Any:
    yield "piece"
    await trio.sleep(0.01)


async def in_an_asyncio_group(data: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(trio_sleeps(data))


TRIO_AGENTS = [
    *[trio_sleeps, trio_gives_way, opens_a_nursery, has_a_trio_timeout, waits_for_a_trio_event, trio_streams],
    in_an_asyncio_group,
]


@pytest.mark.parametrize("agent", TRIO_AGENTS)
def test_trio_code_on_asyncio_is_told_to_ask_for_trio(agent: Any) -> None:
    """The mirror image."""
    assert FOR_TRIO in str(Flujo(Step("fetch", agent)).run(1, backend="asyncio").feedback)


@each_asyncio_host
def test_an_asyncio_program_is_told_the_same(host: HostCase) -> None:
    """On uvloop, too."""

    async def main() -> Any:
        return [(await Flujo(Step("s", agent)).run_async(1)).feedback for agent in (trio_sleeps, trio_gives_way)]

    assert all(FOR_TRIO in feedback for feedback in host.run(main))


@pytest.mark.parametrize("where", ["validators", "processors", "input", "fallback"])
def test_code_around_the_agent_is_told_as_well(where: str) -> None:
    """Validators, processors, inputs and fallbacks run on the same loop."""

    async def fails(data: Any) -> None:
        raise ValueError("first")

    async def later(data: Any, context: Any) -> None:
        await asyncio.sleep(0.01)

    options: Any = {
        "validators": {"validators": sleeps},
        "processors": {"processors": {"before": sleeps}},
        "input": {"input": later},
        "fallback": {"fallback": Step("second", sleeps)},
    }[where]
    agent = fails if where == "fallback" else (lambda data: data)
    assert FOR_ASYNCIO in str(Flujo(Step("s", agent, **options)).run(1).feedback)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_plain_function_that_looks_for_a_loop_is_told_that_it_runs_in_a_thread(backend: Any) -> None:
    """Neither backend has a loop there."""
    feedback = Flujo(Step("s", lambda data: asyncio.get_running_loop())).run(1, backend=backend).feedback
    assert "a plain function runs in a thread" in str(feedback)


def test_a_tool_that_needs_trio_is_told_that_agents_run_on_asyncio() -> None:
    """Also in a trio program."""
    agent = Agent(scripted_model(CallTool("nap"), "rested"))

    @agent.tool_plain
    async def nap() -> str:
        await trio.sleep(0.01)
        return "zzz"

    assert "the tools and models of an agent always run on asyncio" in str(Flujo(Step("s", agent)).run("?").feedback)


def test_other_errors_are_told_as_they_are() -> None:
    """Also one that was raised while a loop was looked for in vain."""

    async def handles(data: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ValueError("no such user")  # noqa: B904 - the implicit context is what is tested

    expected = "step 's' failed: Agent execution failed with ValueError: no such user (agent: handles)"
    assert Flujo(Step("s", handles)).run(1).feedback == expected
