"""How loops end: with runs still going, twice in a row, in two threads, closed without a word."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
import trio
from embedding_hosts import ASYNCIO_HOSTS, HostCase, each_asyncio_host, each_host, each_trio_host

from flujo_actors import Flujo, Step
from flujo_actors._bridge import guest


async def double(x: int) -> int:
    await anyio.sleep(0)
    return 2 * x


FLUJO = Flujo(Step("double", double))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test no guest is remembered, the thread is free, and the collector finds nothing to warn about."""
    yield
    gc.collect()
    assert not guest._guests
    assert trio.run(FLUJO.run_async(1)._result).output == 2


def _endless() -> tuple[Flujo, list[str]]:
    log: list[str] = []

    async def chatter(x: int) -> AsyncIterator[int]:
        log.append("begun")
        try:
            while True:
                await anyio.sleep(0.0005)
                yield x
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.001)
            log.append("closed")

    return Flujo(Step("chatter", chatter)), log


@each_asyncio_host
def test_a_loop_that_ends_with_a_run_in_a_background_task_cleans_up(
    host: HostCase, caplog: pytest.LogCaptureFixture
) -> None:
    """Main returns while a task still iterates: the run is cancelled and its cleanup finishes."""
    flujo, log = _endless()

    async def iterate() -> None:
        async for _ in flujo.run_async(1):
            log.append("chunk")

    async def main() -> asyncio.Task[None]:
        task = asyncio.ensure_future(iterate())
        while len(log) < 3:
            await asyncio.sleep(0)
        return task

    assert host.run(main).cancelled()
    assert log[-1] == "closed"
    assert not caplog.records


@each_asyncio_host
def test_a_loop_that_ends_with_an_awaited_run_cleans_up(host: HostCase, caplog: pytest.LogCaptureFixture) -> None:
    """The same for a task that awaits its run."""
    flujo, log = _endless()

    async def main() -> None:
        task = asyncio.ensure_future(flujo.run_async(1)._result())
        while not log:
            await asyncio.sleep(0)
        assert not task.done()

    host.run(main)
    assert log == ["begun", "closed"]
    assert not caplog.records


@each_host
def test_a_run_that_nobody_closes_ends_with_its_loop(host: HostCase, caplog: pytest.LogCaptureFixture) -> None:
    """An iterator that main leaves half-read, and keeps, does not outlive the loop."""
    flujo, log = _endless()
    kept: list[Any] = []

    async def main() -> None:
        kept.append(aiter(flujo.run_async(1)))
        await anext(kept[0])

    host.run(main)
    assert log == ["begun", "closed"]
    kept.clear()
    assert not caplog.records


@each_host
def test_an_async_generator_around_a_run_ends_with_its_loop(host: HostCase, caplog: pytest.LogCaptureFixture) -> None:
    """The shape of a streaming response: a generator that holds an entered run, left half-read by main."""
    flujo, log = _endless()
    kept: list[Any] = []

    async def response() -> AsyncIterator[Any]:
        async with flujo.run_async(1) as run:
            async for outcome in run:
                yield outcome

    async def main() -> None:
        kept.append(response())
        await anext(kept[0])

    host.run(main)
    assert log == ["begun", "closed"]
    kept.clear()
    assert not caplog.records


@each_host
def test_one_flujo_serves_one_loop_after_another(host: HostCase) -> None:
    """Each loop has a guest of its own, and leaves nothing for the next."""

    async def main() -> Any:
        return (await FLUJO.run_async(4)).output

    assert [host.run(main) for _ in range(3)] == [8, 8, 8]
    assert FLUJO.run(4).output == 8


def test_one_loop_may_be_run_several_times() -> None:
    """Between two `run_until_complete` the guest waits with its loop."""
    with asyncio.Runner() as runner:
        for n in range(3):
            assert runner.run(FLUJO.run_async(n)._result()).output == 2 * n


def test_a_loop_closed_without_shutdown_frees_its_thread() -> None:
    """Old code closes loops without ending their generators: the next run in the thread ends the guest."""
    for _ in range(2):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(FLUJO.run_async(1)._result()).output == 2
        loop.close()
    assert FLUJO.run(1).output == 2
    loop = asyncio.new_event_loop()
    loop.run_until_complete(FLUJO.run_async(1)._result())
    loop.close()
    assert asyncio.run(FLUJO.run_async(1)._result()).output == 2


def test_a_loop_closed_in_the_middle_of_a_trio_task_frees_its_thread() -> None:
    """What still runs in the guest of a closed loop is cancelled when the thread is needed."""
    log: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("cancelled")

    async def main() -> None:
        (await guest.current_guest()).spawn(work)
        await asyncio.sleep(0.001)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert FLUJO.run(1).output == 2
    assert log == ["cancelled"]


def test_two_loops_in_two_threads_run_at_once() -> None:
    """A guest belongs to its thread: two hosts meet in the middle of their runs."""
    meeting, outputs = threading.Barrier(2, timeout=120), []

    def meet(x: int) -> int:
        meeting.wait()
        return x

    pipeline = Step("double", double) >> Step("meet", meet)

    def host_thread(host: HostCase) -> None:
        async def main() -> None:
            outputs.append((await Flujo(pipeline).run_async(3)).output)

        host.run(main)

    threads = [threading.Thread(target=host_thread, args=(host,)) for host in (ASYNCIO_HOSTS[0], ASYNCIO_HOSTS[2])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outputs == [6, 6]


def test_everybody_learns_when_the_guest_cannot_start() -> None:
    """A program with a guest run of its own has no room for ours: each caller is told, none waits for ever."""

    async def main() -> list[Any]:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        stop = trio.CancelScope()

        async def theirs() -> None:
            with stop:
                await trio.sleep_forever()

        trio.lowlevel.start_guest_run(
            theirs,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=lambda _: done.set(),
            host_uses_signal_set_wakeup_fd=True,
        )
        runs = (FLUJO.run_async(1)._result() for _ in range(3))
        refused = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), 120)
        stop.cancel()
        await done.wait()
        return [*refused, (await FLUJO.run_async(1)).output]

    *refused, afterwards = asyncio.run(main())
    assert [type(error) for error in refused] == [RuntimeError] * 3
    assert afterwards == 2


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 brought eager tasks")
def test_eager_tasks_are_no_obstacle() -> None:
    """A loop whose tasks begin inside `create_task` runs steps, and runs inside steps."""

    async def outer(x: int) -> int:
        return (await FLUJO.run_async(x)).output + 1

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return (await Flujo(Step("outer", outer)).run_async(1)).output

    assert asyncio.run(main()) == 3


@each_trio_host
def test_a_trio_host_that_ends_with_a_run_in_the_background_cleans_up(host: HostCase) -> None:
    """The run of an iterator that is still held is cancelled with the host's run."""
    flujo, log = _endless()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_all, flujo)
            while not log:
                await trio.sleep(0)
            nursery.cancel_scope.cancel()

    async def _read_all(flujo: Flujo) -> None:
        async for _ in flujo.run_async(1):
            pass

    host.run(main)
    assert log == ["begun", "closed"]
