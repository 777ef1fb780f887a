"""Nobody waits on the mock clock, whichever library the steps are written for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest
import trio

from flujo_actors import Backoff, Flujo, Step, StepTimeout, make_agent_async
from flujo_actors.testing import (
    Delayed,
    JumpingLoop,
    Recorder,
    ScriptedAgent,
    Streamed,
    run_on_mock_clock,
    scripted_model,
)

BACKENDS = ["trio", "asyncio"]
AN_HOUR = 3600.0

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def sleeper(backend: str) -> Any:
    """A step that waits for an hour, on its own library."""

    async def on_asyncio(data: Any) -> Any:
        await asyncio.sleep(AN_HOUR)
        return data

    async def on_trio(data: Any) -> Any:
        await trio.sleep(AN_HOUR)
        return data

    return on_asyncio if backend == "asyncio" else on_trio


@each_backend
def test_a_step_that_waits_costs_nobody_time(backend: Any) -> None:
    """An hour of the run's time, and none of the test's."""
    result = run_on_mock_clock(Flujo(Step("wait", sleeper(backend))), "news", backend=backend)
    assert result.output == "news"
    assert AN_HOUR <= result.step_history[0].latency_s < AN_HOUR + 1


@each_backend
def test_timeouts_and_backoffs_pass_in_order(backend: Any) -> None:
    """The run's own clock and that of its steps are one."""
    agent = ScriptedAgent(ValueError("first"), Delayed(AN_HOUR, "too late"), "in time")
    step = Step("ask", agent, timeout_s=60, max_retries=2, backoff=Backoff(jitter=0))
    result = run_on_mock_clock(Flujo(step), backend=backend)
    assert result.output == "in time"
    assert 60 < result.step_history[0].latency_s < AN_HOUR
    late = run_on_mock_clock(Flujo(Step("wait", sleeper(backend), timeout_s=60)), backend=backend)
    assert isinstance(late.error, StepTimeout)


@each_backend
def test_the_shorter_wait_is_over_first(backend: Any) -> None:
    """Order is that of time, not of luck."""
    ended: list[int] = []

    async def wait(hours: int) -> None:
        await anyio.sleep(hours * AN_HOUR)
        ended.append(hours)

    run_on_mock_clock(Flujo(Step.map_over("each", wait)), [3, 1, 2], backend=backend)
    assert ended == [1, 2, 3]


@each_backend
def test_work_in_threads_takes_its_real_time_and_none_on_the_clock(backend: Any) -> None:
    """A timeout does not pass while a thread is at work, however long that takes."""
    gate = threading.Event()

    def work(data: Any) -> str:
        gate.wait(0.1)
        return "done"

    async def asks_a_thread(data: Any) -> str:
        in_thread: Any = asyncio.to_thread if backend == "asyncio" else trio.to_thread.run_sync
        return str(await in_thread(work, data))

    for agent in (work, asks_a_thread):
        assert run_on_mock_clock(Flujo(Step("s", agent, timeout_s=0.01)), backend=backend).output == "done"


@each_backend
def test_models_and_streams_are_watched_on_either(backend: Any) -> None:
    """With a recorder, as on trio."""
    recorder = Recorder()
    pipeline = Step("write", ScriptedAgent(Streamed(["Once ", "upon"]))) >> Step(
        "ask", make_agent_async(scripted_model("a time"))
    )
    result = run_on_mock_clock(Flujo(pipeline), recorder=recorder, backend=backend)
    assert (recorder.output("write"), result.output) == ("Once upon", "a time")


def test_the_setting_says_which_loop_the_clock_drives() -> None:
    """What `run` goes by, the kit goes by."""
    flujo = Flujo(Step("wait", sleeper("asyncio")), settings={"run.backend": "asyncio"})
    assert run_on_mock_clock(flujo, 1).output == 1


def test_the_loop_serves_other_asyncio_code() -> None:
    """A resume, for example, and threads of asyncio's own."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("wait", sleeper("asyncio")))

    async def main() -> Any:
        paused = await flujo.run_async(1)
        await asyncio.to_thread(threading.Event().wait, 0.01)
        return (await flujo.resume_async(paused.state_token, "yes")).output, asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert runner.run(main()) == ("yes", AN_HOUR)
