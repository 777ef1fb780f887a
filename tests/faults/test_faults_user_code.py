"""Steps that misbehave: they settle all the same, as what they are, and nobody waits for ever."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from fault_watch import Main, both_hosts, run_to_result, watched

from flujo_actors import Failure, Flujo, Step
from flujo_actors._bridge.threads import abandoned_threads
from flujo_actors.errors import StepTimeout

Host = Callable[[Main], Any]

# --- swallowing cancellation --------------------------------------------------------------------------------


async def swallow(x: Any) -> str:
    """Ignores its cancellation once, and then returns as if nothing had happened."""
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        pass
    return "done anyway"


@both_hosts
def test_a_step_that_swallows_its_cancellation_is_never_completed(run_main: Host) -> None:
    """The caller is cancelled, the step returns a value: it settles as aborted, and it is reported."""
    scope: anyio.CancelScope

    async def swallow_soon(x: Any) -> str:
        scope.deadline = anyio.current_time()
        return await swallow(x)

    watch = watched(Step("swallow", swallow_soon))

    async def main() -> bool:
        nonlocal scope
        with anyio.CancelScope() as scope:
            await watch.flujo.run_async(1)
        return scope.cancelled_caught

    assert run_main(main)
    watch.assert_settled()
    assert watch.statuses() == {"swallow": "aborted"}
    assert watch.unstoppable() == ["swallow"]


@both_hosts
def test_a_step_that_swallows_its_timeout_has_timed_out(run_main: Host) -> None:
    """What it returned too late is not used, and the feedback says that it did not stop."""
    watch = watched(Step("swallow", swallow, timeout_s=0.005))
    result = run_to_result(run_main, watch.flujo)
    assert result.status == "failed"
    assert result.output is None
    assert "did not stop when it was cancelled" in result.feedback
    assert watch.unstoppable() == ["swallow"]


@both_hosts
def test_a_branch_that_swallows_its_cancellation_does_not_save_the_stage(run_main: Host) -> None:
    """A sibling fails and the others are cut short: a value returned afterwards changes nothing."""

    async def fail(x: Any) -> None:
        await anyio.sleep(0.002)
        raise ValueError("no")

    watch = watched(Step.parallel("stage", {"bad": Step("fail", fail), "deaf": Step("swallow", swallow)}))
    result = run_to_result(run_main, watch.flujo)
    watch.assert_settled()
    assert result.status == "failed"
    assert watch.statuses()["stage/deaf"] == "aborted"
    assert watch.unstoppable() == ["swallow"]


@pytest.mark.trio
async def test_a_stream_that_swallows_every_cancellation_is_left_at_its_next_piece(autojump_clock: Any) -> None:
    """Going on after a cancellation is no way to keep a run alive."""
    log: list[str] = []

    async def deaf(x: Any) -> AsyncIterator[int]:
        try:
            while True:
                try:
                    await trio.sleep(60)
                except trio.Cancelled:
                    log.append("swallowed")
                yield x
        finally:
            log.append("closed")

    watch = watched(Step("deaf", deaf))
    with trio.move_on_after(1) as scope:
        await watch.flujo.run_async(1)
    assert scope.cancelled_caught
    assert log == ["swallowed", "closed"]
    watch.assert_settled()


@both_hosts
def test_a_stream_that_never_waits_does_not_hold_the_loop(run_main: Host) -> None:
    """Others get their turns between its pieces, and a timeout of the caller ends it."""

    async def busy(x: Any) -> AsyncIterator[int]:
        while True:
            yield x

    async def main() -> bool:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_result_of, Flujo(Step("busy", busy)))
                await anyio.sleep(0.005)
                scope.cancel()
        return scope.cancelled_caught

    assert run_main(main)


# --- threads ------------------------------------------------------------------------------------------------


@both_hosts
def test_a_sync_step_that_never_returns_is_left_behind_and_reported(
    run_main: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Its timeout ends the step, not the thread; the thread is counted and named until it ends."""
    free, ended = threading.Event(), threading.Event()

    def stuck(x: Any) -> None:
        free.wait(120)
        ended.set()

    watch = watched(Step("stuck", stuck, timeout_s=0.5, fallback=Step("rescue", _answer)))
    with caplog.at_level(logging.WARNING, logger="flujo_actors"):
        result = run_to_result(run_main, watch.flujo)
    assert result.output == "an answer"
    assert abandoned_threads() == ("stuck",)
    assert "'stuck' was cancelled, but its thread cannot be stopped" in caplog.text
    watch.assert_settled()
    free.set()
    assert ended.wait(120)
    while abandoned_threads():
        pass


async def _answer(x: Any) -> str:
    return "an answer"


@both_hosts
def test_a_sync_step_cancelled_while_it_waits_for_a_thread_never_begins(run_main: Host) -> None:
    """It is not counted as left behind, because nothing of it is left."""
    free, begun = threading.Event(), []

    def stuck(x: int) -> None:
        begun.append(x)
        free.wait(120)

    settings = {"sync_step_threads": 1}
    flujo = Flujo(Step.map_over("all", Step("stuck", stuck), items=[1, 2, 3]), settings=settings)

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_result_of, flujo)
                while not begun:
                    await anyio.sleep(0.001)
                scope.cancel()
        assert abandoned_threads() == ("stuck",)

    run_main(main)
    free.set()
    while abandoned_threads():
        pass
    assert len(begun) == 1


async def _result_of(flujo: Flujo) -> None:
    await flujo.run_async(1)


# --- several at once ----------------------------------------------------------------------------------------


def _raising(error: BaseException) -> Callable[[Any], Awaitable[None]]:
    async def step(x: Any) -> None:
        raise error

    return step


@both_hosts
def test_three_branches_failing_at_once_are_all_heard(run_main: Host) -> None:
    """The stage's error holds the three originals, one of them a nested group, and its feedback all the texts."""
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("deep")]), TypeError("flat")])
    errors = {"one": ValueError("first"), "two": nested, "three": OSError("third")}
    stage = Step.parallel("stage", {key: Step(key, _raising(error)) for key, error in errors.items()})
    watch = watched(stage)

    async def main() -> Any:
        return [outcome async for outcome in watch.flujo.run_async(1)]

    outcomes = run_main(main)
    watch.assert_settled()
    assert isinstance(outcomes[-1], Failure)
    assert isinstance(outcomes[-1].error, BaseExceptionGroup)
    assert list(outcomes[-1].error.exceptions) == list(errors.values())
    for text in ("ValueError: first", "outer", "OSError: third"):
        assert text in (outcomes[-1].feedback or "")


# --- what is not an Exception -------------------------------------------------------------------------------


class Private(BaseException):
    """An exception of somebody's own, outside the usual family."""


def _saved_cancellation() -> BaseException:
    """A `trio.Cancelled` of another run, which somebody kept."""
    saved: list[BaseException] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep(0)
            except trio.Cancelled as cancelled:
                saved.append(cancelled)
                raise

    trio.run(main)
    return saved[0]


SAVED = _saved_cancellation()

VANISHED: dict[str, Callable[[], BaseException]] = {
    "asyncio.CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "a saved trio.Cancelled": lambda: SAVED,
}


def _ways_to_raise(make: Callable[[], BaseException]) -> dict[str, Any]:
    async def in_async(x: Any) -> None:
        await anyio.sleep(0)
        raise make()

    def in_sync(x: Any) -> None:
        raise make()

    async def in_stream(x: Any) -> AsyncIterator[str]:
        yield "a piece"
        raise make()

    async def in_group(x: Any) -> None:
        raise BaseExceptionGroup("several", [make(), ValueError("and a usual one")])

    return {"async": in_async, "sync": in_sync, "stream": in_stream, "group": in_group}


@pytest.mark.parametrize("way", ["async", "sync", "stream"])
@pytest.mark.parametrize("what", VANISHED)
@both_hosts
def test_a_step_that_ends_without_an_outcome_is_a_failure_that_says_so(run_main: Host, what: str, way: str) -> None:
    """Cancellation that nobody asked for, and the exit of a generator, settle as a failure."""
    watch = watched(Step("odd", _ways_to_raise(VANISHED[what])[way]))
    result = run_to_result(run_main, watch.flujo)
    watch.assert_settled()
    assert result.status == "failed"
    assert "ended without an outcome" in result.feedback
    assert result.step_history[0].output == ("a piece" if way == "stream" else None)


@pytest.mark.parametrize("what", VANISHED)
@both_hosts
def test_odd_ends_inside_a_group_are_a_failure_too(run_main: Host, what: str) -> None:
    """The usual error beside them is not lost."""
    watch = watched(Step("odd", _ways_to_raise(VANISHED[what])["group"]))
    result = run_to_result(run_main, watch.flujo)
    watch.assert_settled()
    assert result.status == "failed"


@pytest.mark.parametrize("way", ["async", "sync", "stream", "group"])
@both_hosts
def test_a_private_base_exception_is_an_error_like_any_other(run_main: Host, way: str) -> None:
    """It becomes a failure with the usual feedback; retries and the fallback apply."""
    step = _ways_to_raise(lambda: Private("mine"))[way]
    watch = watched(Step("private", step, max_retries=1, fallback=Step("rescue", _answer)))
    result = run_to_result(run_main, watch.flujo)
    watch.assert_settled()
    assert result.output == "an answer"
    assert "Agent execution failed with" in result.step_history[0].metadata["original_error"]
    assert result.step_history[0].attempts == 3


# --- Ctrl-C and exit inside a step --------------------------------------------------------------------------


def _deep(step: Step) -> Any:
    inner = Step.loop_until("loop", step, lambda output, context: True)
    return Step.parallel("stage", {"a": inner, "b": Step("sleep", _sleep)}, max_retries=3)


async def _sleep(x: Any) -> None:
    await anyio.sleep(60)


@pytest.mark.parametrize("way", ["async", "sync", "stream", "group"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@both_hosts
def test_an_interrupt_inside_a_step_reaches_the_caller_bare(
    run_main: Host, kind: type[BaseException], way: str
) -> None:
    """From any depth and through retries and fallbacks, it is the exception itself that comes out, not a group."""
    error = kind("stop")
    step = Step("stop", _ways_to_raise(lambda: error)[way], max_retries=3, fallback=Step("rescue", _answer))
    watch = watched(_deep(step))
    with pytest.raises(kind) as caught:
        run_to_result(run_main, watch.flujo)
    assert caught.value is error
    watch.assert_settled()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@both_hosts
def test_an_interrupt_reaches_whoever_iterates(run_main: Host, kind: type[BaseException]) -> None:
    """The same while the run is iterated."""
    watch = watched(_deep(Step("stop", _ways_to_raise(kind)["async"])))

    async def main() -> None:
        async for _ in watch.flujo.run_async(1):
            pass

    with pytest.raises(kind):
        run_main(main)
    watch.assert_settled()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_reaches_synchronous_code(kind: type[BaseException]) -> None:
    """And the same from `run`."""
    with pytest.raises(kind):
        Flujo(_deep(Step("stop", _ways_to_raise(kind)["async"]))).run(1)


# --- silence ------------------------------------------------------------------------------------------------


async def _silent(x: Any) -> None:
    await anyio.sleep_forever()


async def _silent_stream(x: Any) -> AsyncIterator[str]:
    yield "one piece"
    await anyio.sleep_forever()


class _SilentAgent:
    async def run(self, data: Any) -> None:
        await anyio.Event().wait()


@pytest.mark.parametrize(("agent", "partial"), [(_silent, None), (_silent_stream, "one piece"), (_SilentAgent(), None)])
@both_hosts
def test_an_agent_that_never_answers_is_ended_by_its_timeout(run_main: Host, agent: Any, partial: Any) -> None:
    """The step fails with `StepTimeout`, keeps what was streamed, and is not run for ever."""
    watch = watched(Step("silent", agent, timeout_s=0.5))

    async def main() -> Any:
        return [outcome async for outcome in watch.flujo.run_async(1)]

    *_, last = run_main(main)
    watch.assert_settled()
    assert isinstance(last, Failure)
    assert isinstance(last.error, StepTimeout)
    assert last.step_result is not None
    assert last.step_result.output == partial
    assert not watch.unstoppable()
