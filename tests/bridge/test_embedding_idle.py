"""How a guest run waits while its host does something else."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from embedding_hosts import HostCase, each_asyncio_host

from flujo_actors import Flujo, Step
from flujo_actors._bridge import guest_scheduler
from flujo_actors._bridge.guest import current_guest

WAITS = 50


async def echo(x: int) -> int:
    return x


async def waiting(x: int) -> int:
    for _ in range(WAITS):
        await asyncio.sleep(0)
    return x


class BlindLoop(asyncio.SelectorEventLoop):
    """A loop that cannot watch file descriptors, as some on Windows."""

    def add_reader(self, *args: Any) -> None:
        raise NotImplementedError


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The rounds of guest runs, as they happen."""
    taken: list[object] = []
    take = guest_scheduler.ParkedGuest.round
    monkeypatch.setattr(guest_scheduler.ParkedGuest, "round", lambda guest: (taken.append(guest), take(guest))[1])
    return taken


def _in_guest(loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, fn: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await (await current_guest()).call(fn)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


def test_a_guest_rests_while_its_step_waits_for_asyncio(rounds: list[object]) -> None:
    """However long a step is at asyncio's, trio has as few rounds as with one that answers at once, or nearly."""

    async def main() -> tuple[int, int]:
        counts = []
        for agent in (echo, waiting):
            flujo = Flujo(Step("wait", agent))
            await flujo.run_async(1)
            rounds.clear()
            await flujo.run_async(1)
            counts.append(len(rounds))
        return counts[0], counts[1]

    prompt, patient = asyncio.run(main())
    assert patient <= prompt + 2 < WAITS


@each_asyncio_host
def test_an_idle_guest_has_no_thread(host: HostCase) -> None:
    """Between two runs nothing is left but the loop's own thread."""

    async def main() -> int:
        flujo = Flujo(Step("echo", echo))
        before = threading.active_count()
        for _ in range(3):
            await flujo.run_async(1)
            await asyncio.sleep(0.001)
        return threading.active_count() - before

    assert host.run(main) == 0


@pytest.mark.parametrize("loop", [None, BlindLoop], ids=["watched", "blind"])
def test_a_guest_hears_of_deadlines_threads_and_idleness(loop: Any) -> None:
    """Everything that trio waits for wakes the guest, wherever it waits."""

    async def wait_for_everything() -> list[str]:
        await trio.sleep(0.001)
        name = await trio.to_thread.run_sync(lambda: "thread")
        await trio.testing.wait_all_tasks_blocked()
        ours, theirs = trio.socket.socketpair()
        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.send, b"socket")
                return [name, (await theirs.recv(10)).decode()]

    assert _in_guest(loop, wait_for_everything) == ["thread", "socket"]


@pytest.mark.parametrize("loop", [None, BlindLoop], ids=["watched", "blind"])
def test_a_guest_hears_of_what_the_host_does_without_a_word(loop: Any) -> None:
    """An event set and a deadline moved by asyncio code are noticed at once, not at the next occasion."""

    async def wait_for_host() -> bool:
        event, patience = trio.Event(), trio.CancelScope()
        running = asyncio.get_running_loop()
        running.call_later(0.001, event.set)
        await event.wait()
        running.call_later(0.001, setattr, patience, "deadline", trio.current_time())
        with patience:
            await trio.sleep_forever()
        return patience.cancelled_caught

    assert _in_guest(loop, wait_for_host)


def test_a_guest_leaves_no_descriptor_behind() -> None:
    """What the loop watched for the guest is closed with it."""

    async def main() -> int:
        return int((await Flujo(Step("echo", echo)).run_async(1)).output)

    asyncio.run(main())
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        asyncio.run(main())
    assert len(os.listdir("/dev/fd")) == before


def test_a_trio_of_another_make_drives_itself() -> None:
    """Where the parts of trio's own driver are not those that are known, it is left alone."""
    asked: list[object] = []
    with asyncio.Runner() as runner:
        assert guest_scheduler.watched_by_loop(lambda: None, runner.get_loop(), asked.append) is None
    assert not asked


def test_a_trio_that_nobody_has_tried_drives_itself(monkeypatch: pytest.MonkeyPatch, rounds: list[object]) -> None:
    """A newer release may have changed inside: runs then go the way that trio documents."""
    monkeypatch.setattr(guest_scheduler, "NEWEST_KNOWN", (0, 0))

    async def main() -> Any:
        return (await Flujo(Step("waiting", waiting)).run_async(1)).output

    assert asyncio.run(main()) == 1
    assert not rounds


def test_the_trio_of_the_tests_is_one_that_is_known(rounds: list[object]) -> None:
    """If this fails, compare `parked_guest` with the new trio's driver of guest runs, then raise NEWEST_KNOWN."""

    async def main() -> Any:
        return (await Flujo(Step("echo", echo)).run_async(1)).output

    assert asyncio.run(main()) == 1
    assert rounds
