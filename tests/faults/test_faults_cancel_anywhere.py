"""Cancellation at every point of a run: each time every started step settles and nothing is left running."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from fault_watch import Watched, watched

from flujo_actors import Backoff, Pipeline, Step

pytestmark = pytest.mark.slow


async def breathe(x: int) -> int:
    await anyio.sleep(0)
    return x + 1


async def pick(branches: dict[str, int]) -> int:
    return branches["loop"]


async def stumble(x: int) -> int:
    await anyio.sleep(0)
    raise ValueError("stumbled")


async def speak(x: int) -> AsyncIterator[str]:
    try:
        for letter in "abc":
            await anyio.sleep(0)
            yield letter
    finally:
        await anyio.sleep(0)


async def hook(payload: Any) -> None:
    await anyio.sleep(0)


def _everything() -> Watched:
    breath = Step("breathe", breathe)
    stage = Step.parallel(
        "stage",
        {"plain": breath, "nested": Pipeline((breath,), name="nested"), "loop": _loop(), "fallen": _fallen()},
    )
    pipeline = (
        breath
        >> stage
        >> Step("pick", pick)
        >> _loop()
        >> _fallen()
        >> Step.map_over("twice", Step("speak", speak), items=[1, 2])
        >> Step("say", speak)
    )
    return watched(pipeline, hooks=hook)


def _loop() -> Any:
    return Step.loop_until("loop", Step("body", breathe), lambda output, context: output % 3 == 0)


def _fallen() -> Any:
    return Step("stumble", stumble, max_retries=1, backoff=Backoff.none(), fallback=Step("rise", breathe))


async def _awaited(watch: Watched) -> None:
    await watch.flujo.run_async(1)


async def _iterated(watch: Watched) -> None:
    async for _ in watch.flujo.run_async(1):
        pass


async def _entered(watch: Watched) -> None:
    async with watch.flujo.run_async(1) as run:
        async for _ in run:
            pass


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the n-th step that any task of the trio run takes."""

    def __init__(self, n: int, scope: trio.CancelScope) -> None:
        self.left, self.scope = n, scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


@pytest.mark.parametrize("use", [_awaited, _iterated, _entered])
def test_a_run_survives_cancellation_at_every_scheduling_step(use: Any) -> None:
    """For every n until the run is over before: cancel at the n-th step of any task of the run."""
    n, reached = 0, True
    while reached:
        n += 1
        reached = trio.run(_cancelled_at, n, use, clock=trio.testing.MockClock(autojump_threshold=0))
    assert n > 80


async def _cancelled_at(n: int, use: Any) -> bool:
    watch, before = _everything(), trio.lowlevel.current_statistics().tasks_living
    with trio.CancelScope() as scope:
        instrument = CancelAt(n, scope)
        trio.lowlevel.add_instrument(instrument)
        await use(watch)
    trio.lowlevel.remove_instrument(instrument)
    watch.assert_settled()
    assert trio.lowlevel.current_statistics().tasks_living == before
    if scope.cancelled_caught:
        assert set(watch.statuses().values()) <= {"success", "failure", "aborted"}
    return instrument.left <= 0


@pytest.mark.parametrize("use", [_awaited, _iterated, _entered])
def test_a_run_survives_cancellation_at_every_turn_of_an_asyncio_loop(use: Any) -> None:
    """The same on an asyncio host: cancel the caller's task at the n-th turn of the loop."""
    asyncio.run(_cancelled_at_every_turn(use))


async def _cancelled_at_every_turn(use: Any) -> None:
    await _awaited(_everything())
    before, n, reached = _living(), -1, True
    while reached:
        n += 1
        watch = _everything()
        task = asyncio.ensure_future(use(watch))
        reached = await _cancelled_after(n, task)
        watch.assert_settled()
        assert _living() == before
    assert n > 100


async def _cancelled_after(turns: int, task: "asyncio.Task[None]") -> bool:
    for _ in range(turns):
        await asyncio.sleep(0)
    reached = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None
    return reached


def _living() -> tuple[int, int]:
    return trio.lowlevel.current_statistics().tasks_living, len(asyncio.all_tasks())
