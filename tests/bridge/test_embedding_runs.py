"""The same `Flujo` in every kind of program."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
import trio
from embedding_hosts import HostCase, come_down_to, each_asyncio_host, each_host, each_trio_host, living

from flujo_actors import Chunk, Flujo, Step, Success
from flujo_actors._core.default_settings import SYNC_STEP_THREADS
from flujo_actors.errors import LoopAlreadyRunning, NotPaused

flavor: contextvars.ContextVar[str] = contextvars.ContextVar("flavor", default="none")


async def double(x: int) -> int:
    await anyio.sleep(0)
    return 2 * x


def triple(x: int) -> int:
    return 3 * x


async def letters(x: int) -> AsyncIterator[str]:
    for letter in "abc"[:x]:
        await anyio.sleep(0)
        yield letter


MIXED = Step("double", double) >> Step("triple", triple)


@each_host
def test_a_run_is_awaited_in_every_host(host: HostCase) -> None:
    """Async and sync steps work, and the host goes on afterwards."""

    async def main() -> Any:
        flujo = Flujo(MIXED)
        first = await flujo.run_async(7)
        before = living()
        second = await flujo.run_async(1)
        await come_down_to(before)
        return first.output, second.output

    assert host.run(main) == (42, 6)


def test_a_run_needs_no_host_at_all() -> None:
    """`run` brings its own loop, as often as it is called."""
    flujo = Flujo(MIXED)
    assert [flujo.run(n).output for n in (1, 2)] == [6, 12]


@each_host
def test_a_run_is_iterated_in_every_host(host: HostCase) -> None:
    """Chunks come one by one and in order, then the step's outcome."""

    async def main() -> Any:
        return [outcome async for outcome in Flujo(Step("letters", letters)).run_async(3)]

    *chunks, last = host.run(main)
    assert [(c.data, c.seq) for c in chunks if isinstance(c, Chunk)] == [("a", 0), ("b", 1), ("c", 2)]
    assert isinstance(last, Success)
    assert last.step_result.output == "abc"


@each_host
def test_a_run_is_entered_in_every_host(host: HostCase) -> None:
    """Inside the block the run can be iterated and then awaited."""

    async def main() -> Any:
        async with Flujo(Step("letters", letters)).run_async(2) as run:
            seen = [type(outcome).__name__ async for outcome in run]
            return seen, (await run).output

    assert host.run(main) == (["Chunk", "Chunk", "Success"], "ab")


@each_host
def test_many_runs_share_one_loop(host: HostCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred runs at once, the first of them racing to start the guest: it is started once."""
    started = _count_guest_runs(monkeypatch)

    async def main() -> Any:
        flujo, results = Flujo(Step("double", double)), {}

        async def one(n: int) -> None:
            results[n] = (await flujo.run_async(n)).output

        async with anyio.create_task_group() as group:
            for n in range(200):
                group.start_soon(one, n)
        return results

    assert host.run(main) == {n: 2 * n for n in range(200)}
    assert started == ([1] if host.library == "asyncio" else [])


def _count_guest_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    started: list[int] = []
    start = trio.lowlevel.start_guest_run

    def counting(*args: Any, **keywords: Any) -> None:
        started.append(1)
        start(*args, **keywords)

    monkeypatch.setattr(trio.lowlevel, "start_guest_run", counting)
    return started


# --- contextvars --------------------------------------------------------------------------------------------


def _tasting() -> tuple[Flujo, list[tuple[str, str]]]:
    tasted: list[tuple[str, str]] = []

    def taste(where: str) -> None:
        tasted.append((where, flavor.get()))

    async def in_async(x: str) -> str:
        await anyio.sleep(0)
        taste("async")
        return x

    def in_sync(x: str) -> str:
        taste("sync")
        return x

    async def in_stream(x: str) -> AsyncIterator[str]:
        taste("stream")
        yield x

    def hook(payload: Any) -> None:
        taste("hook")

    async def async_hook(payload: Any) -> None:
        await anyio.sleep(0)
        taste("async hook")

    def validator(output: str) -> bool:
        taste("validator")
        return True

    steps = Step("a", in_async, validators=[validator]) >> Step("b", in_sync) >> Step("c", in_stream)
    return Flujo(Step.parallel("all", {"one": steps}), hooks=(hook, async_hook)), tasted


PLACES = {"async", "sync", "stream", "hook", "async hook", "validator"}


@each_host
def test_contextvars_flow_into_all_user_code(host: HostCase) -> None:
    """Whoever starts a run, awaited or iterated, is seen by its steps, threads, streams, hooks and validators."""

    async def main() -> Any:
        flujo, tasted = _tasting()
        flavor.set("sweet")
        await flujo.run_async("x")
        awaited, tasted[:] = set(tasted), []
        flavor.set("sour")
        async for _ in flujo.run_async("x"):
            pass
        return awaited, set(tasted)

    awaited, iterated = host.run(main)
    assert awaited == {(place, "sweet") for place in PLACES}
    assert iterated == {(place, "sour") for place in PLACES}


def test_contextvars_flow_into_a_synchronous_run() -> None:
    """The same without a host."""
    flujo, tasted = _tasting()
    contextvars.copy_context().run(lambda: (flavor.set("salty"), flujo.run("x")))
    assert set(tasted) == {(place, "salty") for place in PLACES}


@each_host
def test_concurrent_runs_do_not_mix_their_contextvars(host: HostCase) -> None:
    """Each of many callers finds its own value in its own steps."""

    async def mine(x: str) -> bool:
        await anyio.sleep(0)
        return flavor.get() == x

    async def main() -> Any:
        flujo, same = Flujo(Step("mine", mine)), []

        async def one(name: str) -> None:
            flavor.set(name)
            same.append((await flujo.run_async(name)).output)

        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(one, f"flavor {n}")
        return same

    assert host.run(main) == [True] * 20


# --- each library's own code --------------------------------------------------------------------------------


async def on_asyncio(x: int) -> int:
    """Uses what only works inside an asyncio task."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def put() -> None:
        await asyncio.sleep(0.001)
        await queue.put(x)

    async with asyncio.TaskGroup() as group, asyncio.timeout(120):
        group.create_task(put())
        return await queue.get() + 1


async def on_trio(x: int) -> int:
    """Uses what only works inside a trio task."""
    send, receive = trio.open_memory_channel[int](0)
    async with trio.open_nursery() as nursery, send, receive:
        nursery.start_soon(send.send, x)
        with trio.fail_after(120):
            return await receive.receive() + 1


async def on_anyio(x: int) -> int:
    """Uses what works in both."""
    send, receive = anyio.create_memory_object_stream[int]()
    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(send.send, x)
        with anyio.fail_after(120):
            return await receive.receive() + 1


def _streaming(step: Callable[[int], Any]) -> Callable[[int], AsyncIterator[int]]:
    async def stream(x: int) -> AsyncIterator[int]:
        for n in range(3):
            yield await step(x + n)

    return stream


def _both_ways(step: Callable[[int], Any]) -> Flujo:
    return Flujo(Step("call", step) >> Step("stream", _streaming(step)))


@each_asyncio_host
def test_asyncio_steps_work_in_asyncio_hosts(host: HostCase) -> None:
    """Task groups, queues, timeouts and async generators of asyncio."""

    async def main() -> Any:
        return (await _both_ways(on_asyncio).run_async(1)).output

    assert host.run(main) == [3, 4, 5]


@each_trio_host
def test_trio_steps_work_in_trio_hosts(host: HostCase) -> None:
    """Nurseries, channels, timeouts and async generators of trio."""

    async def main() -> Any:
        return (await _both_ways(on_trio).run_async(1)).output

    assert host.run(main) == [3, 4, 5]
    assert _both_ways(on_trio).run(1).output == [3, 4, 5]


@each_host
def test_anyio_steps_work_everywhere(host: HostCase) -> None:
    """Task groups, streams, timeouts and async generators of anyio."""

    async def main() -> Any:
        return (await _both_ways(on_anyio).run_async(1)).output

    assert host.run(main) == [3, 4, 5]


@each_host
def test_a_step_may_run_another_flujo(host: HostCase) -> None:
    """A run inside a step of a run, on the same host."""
    inner = Flujo(Step("double", double))

    async def outer(x: int) -> int:
        return (await inner.run_async(x)).output + 1

    async def main() -> Any:
        return (await Flujo(Step("outer", outer)).run_async(5)).output

    assert host.run(main) == 11


# --- synchronous code ---------------------------------------------------------------------------------------


@each_host
def test_run_inside_a_loop_says_what_to_call_instead(host: HostCase) -> None:
    """A blocking call would stop the loop, so it is refused by name; so is `resume`."""

    async def main() -> None:
        flujo = Flujo(MIXED)
        with pytest.raises(LoopAlreadyRunning, match=r"await flujo\.run_async") as caught:
            flujo.run(1)
        assert host.library in str(caught.value)
        with pytest.raises(LoopAlreadyRunning, match=r"await flujo\.resume_async"):
            flujo.resume("token", 1)
        with pytest.raises(NotPaused):
            await flujo.resume_async("run:step", 1)

    host.run(main)


@each_host
def test_run_works_inside_the_thread_of_a_sync_step(host: HostCase) -> None:
    """A sync step has no loop in its thread, so it may run a pipeline of its own."""
    inner = Flujo(MIXED)

    def outer(x: int) -> int:
        return inner.run(x).output

    async def main() -> Any:
        return (await Flujo(Step("outer", outer)).run_async(2)).output

    assert host.run(main) == 12
    assert Flujo(Step("outer", outer)).run(2).output == 12


@each_host
def test_a_sync_step_cannot_block_the_loop(host: HostCase) -> None:
    """The loop's heart beats on while a sync step waits for it."""

    async def main() -> None:
        beats, enough = 0, threading.Event()

        def stubborn(x: int) -> bool:
            return enough.wait(120)

        async def beat() -> None:
            nonlocal beats
            while beats < 5:
                await anyio.sleep(0.001)
                beats += 1
            enough.set()

        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            assert (await Flujo(Step("stubborn", stubborn)).run_async(1)).output is True

    host.run(main)


@each_host
def test_sync_steps_have_a_limit_of_their_own(host: HostCase) -> None:
    """More sync steps than the limit wait for one another, and take nothing of the host's own limit."""
    lock, now, most = threading.Lock(), 0, 0
    full = threading.Barrier(SYNC_STEP_THREADS)

    def crowd(n: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        if n < SYNC_STEP_THREADS:
            full.wait(120)
        with lock:
            now -= 1
        return n

    async def main() -> Any:
        result = await Flujo(Step.map_over("crowd", Step("one", crowd))).run_async(range(SYNC_STEP_THREADS + 10))
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        return result.output

    assert host.run(main) == list(range(SYNC_STEP_THREADS + 10))
    assert most == SYNC_STEP_THREADS
