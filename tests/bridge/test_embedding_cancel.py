"""Cancelling the caller: it reaches the step at once, and the cleanup is over when the call returns."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from embedding_hosts import (
    HostCase,
    TrioRounds,
    come_down_to,
    each_asyncio_host,
    each_host,
    each_trio_host,
    living,
    rounds,
)

from flujo_actors import Chunk, Flujo, Step
from flujo_actors._bridge.to_asyncio import helper_loop

A_ROUND = 4
"""How many rounds of trio it may take until a step has noticed; a guest's rounds are those of the host's loop, in
which each task on the way needs one: the caller, the reader, the one that fetches pieces, the one that makes them."""


class Sleeper:
    """A step that sleeps until it is cancelled, and then takes its time to clean up."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.begun = anyio.Event()
        self.when_two_sleep: Callable[[], None] = self.begun.set
        self._sleepers = 0

    async def run(self, x: int) -> int:
        self._sleepers += 1
        if self._sleepers == 2:
            self.when_two_sleep()
        try:
            await anyio.sleep(60)
        finally:
            self.log.append("noticed")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.002)
            self.log.append("cleaned up")
        return x

    async def stream(self, x: int) -> AsyncIterator[str]:
        yield "begun"
        await self.run(x)


def _sleeping() -> tuple[Flujo, Sleeper]:
    sleeper = Sleeper()
    return Flujo(Step.parallel("both", {"slow": Step("sleep", sleeper), "slow too": Step("sleep 2", sleeper)})), sleeper


async def _awaited(flujo: Flujo) -> None:
    await flujo.run_async(1)


async def _iterated(flujo: Flujo) -> None:
    async for _ in flujo.run_async(1):
        pass


async def _entered(flujo: Flujo) -> None:
    async with flujo.run_async(1) as run:
        await run


CLEAN = ["noticed", "noticed", "cleaned up", "cleaned up"]

Use = Callable[[Flujo], Awaitable[None]]
each_use = pytest.mark.parametrize("use", [_awaited, _iterated, _entered], ids=["awaited", "iterated", "entered"])


@each_use
@each_host
def test_a_timeout_scope_ends_the_run(host: HostCase, use: Use) -> None:
    """The scope catches its own cancellation, and the steps have cleaned up by then."""

    async def main() -> None:
        await Flujo(Step("warm up", lambda x: x)).run_async(1)
        before, (flujo, sleeper) = living(), _sleeping()
        with anyio.CancelScope() as scope:
            sleeper.when_two_sleep = lambda: setattr(scope, "deadline", anyio.current_time() + 0.001)
            await use(flujo)
        assert scope.cancelled_caught
        assert sleeper.log == CLEAN
        await come_down_to(before)

    host.run(main)


@each_use
@each_asyncio_host
def test_an_asyncio_timeout_ends_the_run(host: HostCase, use: Use) -> None:
    """`asyncio.timeout` raises its `TimeoutError` after the cleanup."""

    async def main() -> None:
        flujo, sleeper = _sleeping()
        timeout = asyncio.timeout(None)
        sleeper.when_two_sleep = lambda: timeout.reschedule(asyncio.get_running_loop().time() + 0.001)
        with pytest.raises(TimeoutError):
            async with timeout:
                await use(flujo)
        assert sleeper.log == CLEAN

    host.run(main)


@each_use
@each_asyncio_host
def test_a_cancelled_asyncio_task_ends_the_run(host: HostCase, use: Use) -> None:
    """Each step notices within a round, and the task ends when they have cleaned up."""

    async def main() -> None:
        flujo, sleeper = _sleeping()
        task = asyncio.ensure_future(use(flujo))
        await sleeper.begun.wait()
        await rounds(3)
        task.cancel("enough")
        assert await TrioRounds().until(lambda: len(sleeper.log) >= 2) <= A_ROUND
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sleeper.log == CLEAN

    host.run(main)


@each_use
@each_trio_host
def test_a_cancelled_scope_reaches_the_steps_of_a_trio_host(host: HostCase, use: Use) -> None:
    """Each step notices within a round, and the scope is left when they have cleaned up."""

    async def main() -> None:
        flujo, sleeper = _sleeping()
        scope = trio.CancelScope()

        async def caller() -> None:
            with scope:
                await use(flujo)
            sleeper.log.append("returned")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller)
            await sleeper.begun.wait()
            scope.cancel()
            assert await TrioRounds().until(lambda: len(sleeper.log) >= 2) <= A_ROUND
        assert sleeper.log == [*CLEAN, "returned"]

    host.run(main)


@each_asyncio_host
def test_cancelling_again_does_not_cut_the_cleanup_short(host: HostCase) -> None:
    """An impatient canceller changes nothing: the call still waits for the steps."""

    async def main() -> None:
        flujo, sleeper = _sleeping()
        task = asyncio.ensure_future(_awaited(flujo))
        await sleeper.begun.wait()
        for _ in range(5):
            task.cancel()
            await rounds(1)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sleeper.log == CLEAN

    host.run(main)


@each_asyncio_host
def test_a_run_cancelled_in_its_first_rounds_leaves_nothing(host: HostCase) -> None:
    """Cancelled before its steps could begin, for each of the first rounds: no hang and no warning."""

    async def main() -> None:
        await Flujo(Step("warm up", lambda x: x)).run_async(1)
        before = living()
        for patience in range(12):
            flujo, _ = _sleeping()
            task = asyncio.ensure_future(_awaited(flujo))
            await rounds(patience)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await come_down_to(before)

    host.run(main)


# --- leaving the loop ---------------------------------------------------------------------------------------


def _chatty() -> tuple[Flujo, list[str]]:
    log: list[str] = []

    async def chatter(x: int) -> AsyncIterator[int]:
        try:
            while True:
                await anyio.sleep(0)
                yield x
        finally:
            log.append("closed")

    return Flujo(Step.parallel("all", {"a": Step("a", chatter), "b": Step("b", chatter)})), log


async def _break(flujo: Flujo) -> None:
    async for outcome in flujo.run_async(1):
        assert isinstance(outcome, Chunk)
        break


async def _raise(flujo: Flujo) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async for _ in flujo.run_async(1):
            raise ZeroDivisionError


async def _close(flujo: Flujo) -> None:
    outcomes = aiter(flujo.run_async(1))
    await anext(outcomes)
    await outcomes.aclose()


async def _drop(flujo: Flujo) -> None:
    outcomes = aiter(flujo.run_async(1))
    await anext(outcomes)
    del outcomes


async def _leave(flujo: Flujo) -> None:
    async with flujo.run_async(1) as run:
        async for _ in run:
            break


@pytest.mark.parametrize("leave", [_break, _raise, _close, _drop, _leave])
@each_host
def test_leaving_the_iteration_leaves_nothing_running(host: HostCase, leave: Use) -> None:
    """However the loop is left, the streams are closed and the tasks are gone."""

    async def main() -> None:
        await Flujo(Step("warm up", lambda x: x)).run_async(1)
        before, (flujo, log) = living(), _chatty()
        await leave(flujo)
        if leave in (_close, _leave):
            assert log == ["closed", "closed"]
        await come_down_to(before)
        assert log == ["closed", "closed"]

    host.run(main)


# --- asyncio code under trio --------------------------------------------------------------------------------


def test_a_call_to_the_helper_loop_that_is_cancelled_at_once_comes_back() -> None:
    """The asyncio task may not even have begun: the call returns, and the coroutine runs to its first `await`."""
    log: list[str] = []

    async def on_asyncio() -> None:
        try:
            log.append("begun")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    async def main() -> None:
        for _ in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await helper_loop().call(on_asyncio)
            assert scope.cancelled_caught

    trio.run(main)
    assert log == ["begun", "cancelled"] * 20


def test_a_task_cancelled_by_others_before_it_began_comes_back_too() -> None:
    """A call never hangs: a task that somebody else ended is reported as cancelled."""
    loop = helper_loop()

    async def never(log: list[str]) -> None:
        log.append("ran")

    def cancel_newcomers() -> None:
        for task in asyncio.all_tasks(loop.loop):
            task.cancel()

    async def main() -> None:
        log: list[str] = []
        for _ in range(20):
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_calling, never, log)
                    loop.loop.call_soon_threadsafe(cancel_newcomers)

    async def _calling(make: Callable[..., Awaitable[None]], log: list[str]) -> None:
        try:
            await loop.call(lambda: make(log))
        except asyncio.CancelledError:
            log.append("cancelled")

    trio.run(main)


@each_asyncio_host
def test_a_stream_that_ignores_its_cancellation_is_left_at_its_next_piece(host: HostCase) -> None:
    """Swallowing the cancellation and going on does not keep a run alive."""
    log: list[str] = []

    async def stubborn(x: int) -> AsyncIterator[int]:
        try:
            while True:
                try:
                    scope.deadline = anyio.current_time()
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    log.append("swallowed")
                yield x
        finally:
            log.append("closed")

    scope: anyio.CancelScope

    async def main() -> None:
        nonlocal scope
        with anyio.CancelScope() as scope:
            await Flujo(Step("stubborn", stubborn)).run_async(1)
        assert scope.cancelled_caught

    host.run(main)
    assert log == ["swallowed", "closed"]


@each_host
def test_what_the_cleanup_of_a_stream_raises_is_not_lost(host: HostCase) -> None:
    """A stream that ends itself early with an outcome and fails while closing has failed."""

    async def stream(x: int) -> AsyncIterator[Any]:
        try:
            yield "piece"
            raise RuntimeError("broken pipe")
        finally:
            raise ValueError("cannot close")

    async def main() -> Any:
        return await Flujo(Step("stream", stream)).run_async(1)

    result = host.run(main)
    assert result.status == "failed"
    assert "ValueError: cannot close" in result.feedback
