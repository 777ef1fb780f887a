"""The first part of an asyncio coroutine, which runs before the loop has a turn for its task."""

import asyncio
import contextvars
import gc
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest
import sniffio
import trio
from embedding_hosts import HostCase, come_down_to, each_asyncio_host, living

from flujo_actors import Flujo, Step
from flujo_actors._bridge import guest_scheduler
from flujo_actors._bridge import guest_scheduler as parked_guest
from flujo_actors._bridge.host_loop import current_host
from flujo_actors._bridge.loop_call import start_task
from flujo_actors._bridge.to_asyncio import AsyncioLoop

color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")

Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Awaitable[Any]]
"""Lets a trio task await a coroutine on the host's loop."""

Main = Callable[[Call], Awaitable[Any]]
Way = Callable[[AsyncioLoop], Call]

WAYS: dict[str, Way] = {
    "what may answer at once": lambda loop: lambda make: loop.finish(make()),
    "what is known to wait": lambda loop: loop.call,
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """One of the two ways to call a coroutine."""
    return WAYS[request.param]


def _as_guest(host: HostCase, main: Main, way: Way) -> Any:
    """Run a trio function as a guest, with a way to call coroutines of its host."""

    async def program() -> Any:
        here = await current_host()
        return await here.enter(main, way(here.asyncio()))

    return host.run(program)


@each_asyncio_host
def test_a_coroutine_is_in_one_task_from_beginning_to_end(host: HostCase, way: Way) -> None:
    """Whoever asks for the current task, before or after the first wait, gets the same one, and a running loop."""

    async def look() -> list[Any]:
        seen = [asyncio.current_task()]
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())
        assert asyncio.get_running_loop() is not None
        return seen

    async def main(call: Call) -> None:
        first, second = await call(look), await call(look)
        assert len(set(first)) == len(set(second)) == 1
        assert isinstance(first[0], asyncio.Task)
        assert first[0] is not second[0]

    _as_guest(host, main, way)


@each_asyncio_host
def test_a_coroutine_that_never_waits_sees_asyncio_and_no_trio(host: HostCase, way: Way) -> None:
    """Libraries that look for the loop they run on find the host's, and trio is out of sight."""

    seen: list[object] = []

    async def look() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
        async with asyncio.timeout(120), asyncio.TaskGroup():
            seen.extend((sniffio.current_async_library(), trio.lowlevel.in_trio_task()))

    async def main(call: Call) -> None:
        await call(look)
        assert seen == ["asyncio", False]
        assert sniffio.current_async_library() == "trio"

    _as_guest(host, main, way)


@each_asyncio_host
def test_generators_first_iterated_before_any_wait_belong_to_asyncio(host: HostCase, way: Way) -> None:
    """One that is dropped is closed by the loop it was iterated on."""
    closed: list[str] = []

    async def letters() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            await asyncio.sleep(0)
            closed.append(sniffio.current_async_library())

    async def drop_one() -> str:
        return await anext(aiter(letters()))

    async def main(call: Call) -> None:
        assert await call(drop_one) == "a"
        gc.collect()
        await call(lambda: asyncio.sleep(0.001))

    _as_guest(host, main, way)
    assert closed == ["asyncio"]


@each_asyncio_host
def test_what_a_coroutine_sets_is_seen_by_its_caller_and_by_nobody_else(host: HostCase, way: Way) -> None:
    """A contextvar set before or after a wait is there when the call returns, as it is under trio."""

    async def paint(now: str, later: str) -> tuple[str, str]:
        before = color.get()
        color.set(now)
        await asyncio.sleep(0)
        between = color.get()
        color.set(later)
        return before, between

    async def main(call: Call) -> None:
        color.set("red")
        assert await call(lambda: paint("green", "blue")) == ("red", "green")
        assert color.get() == "blue"

    _as_guest(host, main, way)
    assert color.get() == "none"


# --- cancelled before its task took over --------------------------------------------------------------------


def _cancel_me(why: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel(why)


@each_asyncio_host
def test_a_cancellation_before_the_first_wait_cancels_what_is_waited_for(host: HostCase, way: Way) -> None:
    """The inner task ends first, and the cancellation carries the words it was given."""
    log: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("inner")

    async def outer() -> None:
        begun = asyncio.ensure_future(inner())
        _cancel_me("enough")
        try:
            await begun
        finally:
            log.append("outer")

    async def main(call: Call) -> None:
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await call(outer)

    _as_guest(host, main, way)
    assert log in (["inner", "outer"], ["outer"])  # a task that has not begun never does


async def _nothing() -> None:
    await asyncio.sleep(0)


async def _something_done() -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def _for_long() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("wait", [_nothing, _something_done, _for_long])
@each_asyncio_host
def test_a_swallowed_cancellation_lets_the_coroutine_go_on(host: HostCase, way: Way, wait: Callable[[], Any]) -> None:
    """It is raised once, at the first wait, and later waits are none of its business."""

    async def stubborn() -> list[str]:
        log: list[str] = []
        _cancel_me("enough")
        for _ in range(3):
            try:
                await (wait() if not log else _something_done())
                log.append("waited")
            except asyncio.CancelledError:
                log.append("cancelled")
        return log

    async def main(call: Call) -> None:
        assert await call(stubborn) == ["cancelled", "waited", "waited"]

    _as_guest(host, main, way)


@each_asyncio_host
def test_a_caller_cancelled_before_its_coroutine_began_waits_for_its_cleanup(host: HostCase, way: Way) -> None:
    """The coroutine begins, is cancelled at its first wait, and the scope is left when it has cleaned up."""
    log: list[str] = []

    async def begin() -> None:
        log.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    async def main(call: Call) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(begin)
        assert scope.cancelled_caught

    _as_guest(host, main, way)
    assert log == ["begun", "cleaned up"]


@pytest.mark.parametrize("first", ["the coroutine", "its task"])
def test_a_call_that_a_closed_loop_left_behind_is_collected_in_any_order(first: str) -> None:
    """Whoever collects garbage may come to the coroutine before it comes to the task that waits for it."""
    log: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("closed")

    waits = wait()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        tasks: list[asyncio.Task[None]] = []
        loop.call_soon(lambda: tasks.append(start_task(loop, waits, contextvars.copy_context())))
        for _ in range(3):
            runner.run(_nothing())
        whole: Any = tasks[0].get_coro()
        for each in (waits, whole) if first == "the coroutine" else (whole, waits):
            each.close()
        tasks[0].cancel()
    assert log == ["closed"]


# --- errors -------------------------------------------------------------------------------------------------


@each_asyncio_host
def test_an_error_that_is_waited_for_is_raised_where_it_is_waited_for(host: HostCase, way: Way) -> None:
    """It can be handled there, and what is raised afterwards knows nothing of it."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("inner")

    async def handle() -> None:
        try:
            await asyncio.ensure_future(fail())
        except ValueError:
            await asyncio.sleep(0)
        raise KeyError("outer")

    async def main(call: Call) -> None:
        with pytest.raises(KeyError) as caught:
            await call(handle)
        assert caught.value.__context__ is None

    _as_guest(host, main, way)


@each_asyncio_host
def test_a_task_factory_that_fails_fails_the_step_and_not_the_run(host: HostCase) -> None:
    """One that takes no context, as those of old, is an error of the step; the others go on."""

    def old_factory(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
        return asyncio.Task(coroutine, loop=loop)

    async def step(x: int) -> int:
        return x

    async def main() -> Any:
        flujo = Flujo(Step("step", step))
        await flujo.run_async(1)
        before = living()
        asyncio.get_running_loop().set_task_factory(old_factory)
        results = [(await flujo.run_async(n)).success for n in range(2)]
        asyncio.get_running_loop().set_task_factory(None)
        assert (await flujo.run_async(1)).success
        await come_down_to(before)
        return results

    assert host.run(main) == [False, False]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks yet")
def test_eager_tasks_begin_once() -> None:
    """A loop that begins its tasks at once begins ours, and nobody does it a second time."""
    log: list[str] = []

    async def step(x: int) -> int:
        log.append("begun")
        await asyncio.sleep(0)
        return x

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return (await Flujo(Step("step", step)).run_async(5)).output

    assert asyncio.run(main()) == 5
    assert log == ["begun"]


# --- loops in loops -----------------------------------------------------------------------------------------


class NestedLoop(asyncio.SelectorEventLoop):
    """A loop that may be run by the code it runs, as `nest_asyncio` makes one; to be told from others by its mark."""

    _nest_patched = True

    def _run_once(self) -> None:
        """As the loop's own, but for ending when a turn inside this one has left nothing to do."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            if ready and not (handle := ready.popleft()).cancelled():
                handle._run()

    def run_inside(self, awaitable: Any) -> Any:
        """Wait for something in the middle of a task."""
        inner, outer = asyncio.ensure_future(awaitable), asyncio.current_task()
        assert outer is not None
        _leave_task(self, outer)
        while not inner.done():
            self._run_once()
        _enter_task(self, outer)
        return inner.result()


@pytest.fixture(params=["on the loop", "in a thread"])
def idle_guest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a guest that has nothing to do waits."""
    if request.param == "in a thread":
        monkeypatch.setattr(parked_guest, "NEWEST_KNOWN", (0, 0))


@pytest.fixture(params=[0.0, 60.0], ids=["short turns", "long turns"])
def turns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of the loop that end after each round, as a slow machine may end them, and turns that it cannot end."""
    monkeypatch.setattr(guest_scheduler, "TURN_S", request.param)


def _run_nested(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=NestedLoop) as runner:
        return runner.run(main())


@pytest.mark.usefixtures("idle_guest", "turns")
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_a_loop_may_be_run_inside_a_step(waits: bool) -> None:
    """As notebooks do: a run that a step waits for without `await` comes to its end, and so does the step."""
    inner = Flujo(Step("inner", lambda x: x + 1))

    async def outer(x: int) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NestedLoop)
        if waits:
            await asyncio.sleep(0)
        got = loop.run_inside(inner.run_async(x)).output
        await asyncio.sleep(0)
        return got

    async def main() -> Any:
        flujo = Flujo(Step.parallel("both", {"a": Step("a", outer), "b": Step("b", outer)}))
        return (await flujo.run_async(1)).output

    assert _run_nested(main) == {"a": 2, "b": 2}


@pytest.mark.usefixtures("idle_guest", "turns")
def test_a_coroutine_on_a_loop_in_a_loop_begins_although_its_caller_is_cancelled(way: Way) -> None:
    """The loop has not come to its task by then; the task is cancelled at its first wait, as on any other loop."""
    log: list[str] = []

    async def begin() -> None:
        log.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    async def cancelled(call: Call) -> bool:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(begin)
        return scope.cancelled_caught

    async def main() -> bool:
        here = await current_host()
        return await here.enter(cancelled, way(here.asyncio()))

    assert _run_nested(main)
    assert log == ["begun", "cleaned up"]


@pytest.mark.usefixtures("idle_guest", "turns")
def test_a_task_on_a_loop_in_a_loop_that_somebody_cancels_before_it_begins_answers(way: Way) -> None:
    """As when the loop shuts down: the coroutine never begins, and its caller hears of the cancellation."""

    def cancelling(loop: asyncio.AbstractEventLoop, coroutine: Any, **keywords: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **keywords)
        task.cancel()
        return task

    async def cancelled(call: Call) -> None:
        asyncio.get_running_loop().set_task_factory(cancelling)
        with pytest.raises(asyncio.CancelledError, match="before it began"):
            await call(_for_long)
        asyncio.get_running_loop().set_task_factory(None)

    async def main() -> None:
        here = await current_host()
        await here.enter(cancelled, way(here.asyncio()))

    _run_nested(main)
