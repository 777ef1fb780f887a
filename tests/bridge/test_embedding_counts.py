"""What a step costs an asyncio host, in things that can be counted: turns of the loop, rounds of trio, tasks."""

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import attrs
import pytest
import trio
from embedding_hosts import HostCase, each_asyncio_host, each_host

from flujo_actors import Flujo, Pipeline, Step
from flujo_actors._bridge import guest_scheduler
from flujo_actors._bridge.guest_scheduler import ParkedGuest
from flujo_actors._bridge.host_loop import current_host
from flujo_actors._bridge.to_asyncio import AsyncioLoop


async def prompt(x: int) -> int:
    return x


async def waiting(x: int) -> int:
    await asyncio.sleep(0)
    return x


@attrs.define(eq=False)
class Counts(trio.abc.Instrument):
    """Counts, while it is installed, what a run asks of the loop and of trio."""

    callbacks: int = 0
    tasks: int = 0
    rounds: int = 0
    task_steps: int = 0

    def before_io_wait(self, timeout: float) -> None:
        self.rounds += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.task_steps += 1


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that no slow machine can cut short."""
    monkeypatch.setattr(guest_scheduler, "TURN_S", 60.0)


class CountingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that tells how often it is asked for something."""

    counts: Counts | None = None

    def call_soon(self, *args: Any, **keywords: Any) -> Any:  # type: ignore[override]
        if self.counts is not None:
            self.counts.callbacks += 1
        return super().call_soon(*args, **keywords)

    def create_task(self, *args: Any, **keywords: Any) -> Any:
        if self.counts is not None:
            self.counts.tasks += 1
        return super().create_task(*args, **keywords)


def _counted(flujo: Flujo) -> Counts:
    async def main() -> Counts:
        await flujo.run_async(1)
        loop, counts = asyncio.get_running_loop(), Counts()
        assert isinstance(loop, CountingLoop)
        trio.lowlevel.add_instrument(counts)
        loop.counts = counts
        await flujo.run_async(1)
        loop.counts = None
        trio.lowlevel.remove_instrument(counts)
        return counts

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(main())


def _per_step(agent: Callable[[int], Any]) -> Counts:
    """What each further step of a chain adds."""
    short, long = (_counted(Flujo(Pipeline(Step(f"s{n}", agent) for n in range(size)))) for size in (20, 60))
    return Counts(
        *(_each(more, less, 40) for more, less in zip(attrs.astuple(long), attrs.astuple(short), strict=True))
    )


def _each(more: int, less: int, steps: int) -> int:
    return -(-(more - less) // steps)


def test_a_step_that_answers_at_once_needs_no_turn_of_the_loop(long_turns: None) -> None:
    """At most the end of its task is left to the loop, from Python 3.12 not even that; trio has one round more."""
    counts = _per_step(prompt)
    assert counts.tasks <= 1
    assert counts.callbacks <= 1
    assert counts.rounds <= 3
    assert counts.task_steps <= 3


def test_a_step_that_waits_for_asyncio_has_one_task(long_turns: None) -> None:
    """The task that began is the one that ends, and trio turns once for each turn of the loop meanwhile."""
    counts = _per_step(waiting)
    assert counts.tasks <= 1
    assert counts.callbacks <= 6
    assert counts.rounds <= 4


def test_a_thousand_branches_begin_in_a_handful_of_rounds(long_turns: None) -> None:
    """Rounds and turns are shared by everybody who is ready."""
    branches = {f"b{n}": Step(f"b{n}", prompt) for n in range(1_000)}
    counts = _counted(Flujo(Step.parallel("fan", branches)))
    assert counts.rounds <= 30
    assert counts.callbacks <= 1_000 + 30


@each_asyncio_host
def test_the_loop_has_its_turn_however_long_the_chain(host: HostCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for more than a round, everybody else on the loop comes to it between the rounds of a run."""
    monkeypatch.setattr(guest_scheduler, "TURN_S", 0.0)

    async def main() -> int:
        flujo = Flujo(Pipeline(Step(f"s{n}", prompt) for n in range(50)))
        await flujo.run_async(1)
        run, beats = asyncio.ensure_future(flujo.run_async(1)), 0
        while not run.done():
            beats += 1
            await asyncio.sleep(0)
        return beats

    assert host.run(main) > 50


@each_asyncio_host
def test_a_cancellation_ends_the_turn_of_a_busy_guest(host: HostCase, long_turns: None) -> None:
    """Trio could have many more rounds before the loop, but what is cancelled on the loop need not wait for them."""
    heard: list[bool] = []
    waits = trio.Event()

    async def slow() -> None:
        await asyncio.sleep(0)  # from here on the loop has come to its task
        waits.set()
        try:
            await asyncio.sleep(60)
        finally:
            heard.append(True)

    async def on_trio(loop: AsyncioLoop) -> int:
        count = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.call, slow)
            await waits.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                while not heard:
                    await trio.lowlevel.checkpoint()
                    count += 1
        return count

    async def main() -> int:
        here = await current_host()
        return await here.enter(on_trio, here.asyncio())

    assert host.run(main) <= 2


@each_asyncio_host
def test_a_busy_guest_hears_of_its_threads(host: HostCase) -> None:
    """A run that always has another round to go leaves trio's I/O, and with it the end of a sync step, its turn."""

    async def main() -> int:
        heard: list[int] = []
        busy = Flujo(Step.loop_until("busy", Step("again", prompt), lambda *_: bool(heard), max_loops=1_000_000))
        with anyio.fail_after(120):
            run = asyncio.ensure_future(busy.run_async(1))
            heard.append((await Flujo(Step("in a thread", lambda x: x)).run_async(7)).output)
            assert (await run).success
        return heard[0]

    assert host.run(main) == 7


# --- what is known to wait ------------------------------------------------------------------------------------


def _coroutines_around() -> int:
    """Through how many coroutines the caller of this goes on."""
    frame, found = sys._getframe(2), 0
    while frame is not None and frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
        frame, found = frame.f_back, found + 1
    return found


@each_asyncio_host
def test_what_is_known_to_wait_goes_on_through_one_coroutine_only(host: HostCase) -> None:
    """An agent waits a dozen times for every request: whatever lies around it is passed each time."""

    async def waits() -> int:
        await asyncio.sleep(0)
        return _coroutines_around()

    async def main() -> int:
        here = await current_host()
        return await here.enter(here.asyncio().call, waits)

    assert host.run(main) == 1


@each_asyncio_host
def test_a_guest_that_is_woken_by_its_host_looks_for_io_once(host: HostCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked before it parked, so it looks again before it parks the next time, and not in between."""
    looks = 0

    def look(guest: ParkedGuest) -> None:
        nonlocal looks
        looks += 1
        see(guest)

    async def on_trio(loop: AsyncioLoop) -> int:
        await loop.call(long)
        before = looks
        for _ in range(10):
            await loop.call(long)
        return looks - before

    async def long() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def main() -> int:
        here = await current_host()
        return await here.enter(on_trio, here.asyncio())

    see = ParkedGuest.poll
    monkeypatch.setattr(ParkedGuest, "poll", look)
    assert host.run(main) == 10


@each_asyncio_host
def test_generators_of_the_host_are_none_of_trios_business(host: HostCase) -> None:
    """Between the rounds of a guest the hooks of the loop are in force, and in its tasks those of trio."""
    seen: list[Any] = []

    async def on_trio() -> None:
        seen.append(sys.get_asyncgen_hooks())
        await trio.lowlevel.checkpoint()
        seen.append(sys.get_asyncgen_hooks())

    async def main() -> Any:
        before, here = sys.get_asyncgen_hooks(), await current_host()
        assert sys.get_asyncgen_hooks() == before
        await here.enter(on_trio)
        assert sys.get_asyncgen_hooks() == before
        return before

    before = host.run(main)
    assert seen[0] == seen[1] != before


@each_asyncio_host
def test_generators_that_tasks_of_trio_left_are_closed_by_trio(host: HostCase) -> None:
    """At the end of the run, in a task of trio."""
    closed: list[bool] = []

    async def letters() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closed.append(trio.lowlevel.in_trio_task())

    left = letters()

    async def on_trio() -> str:
        await trio.lowlevel.checkpoint()
        return await anext(left)

    async def main() -> Any:
        here = await current_host()
        return await here.enter(on_trio)

    assert host.run(main) == "a"
    assert closed == [True]


@each_host
def test_a_run_that_was_watched_to_its_end_is_gone_at_once(host: HostCase) -> None:
    """Nothing is left of it to the garbage collector, once its task has ended: one round after its reader."""
    flujo = Flujo(Step("prompt", prompt) >> Step("again", prompt))

    async def watched() -> int:
        async with flujo.run_async(1) as run:
            return len([outcome async for outcome in run])

    async def main() -> list[str]:
        await watched()
        gc.collect()
        gc.disable()
        try:
            assert await watched() > 1
            await (trio.lowlevel.checkpoint() if trio.lowlevel.in_trio_task() else asyncio.sleep(0))
            names = (type(each).__name__ for each in gc.get_objects())
            return [name for name in names if name in {"RunHandle", "EventStream"}]
        finally:
            gc.enable()

    assert host.run(main) == []
