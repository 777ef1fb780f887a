"""The programs the library is embedded in: one case per way to run an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import pytest
import trio
import uvloop


@attrs.frozen
class HostCase:
    """A way to run an async main function, and the library that its code is written for."""

    name: str
    library: str
    run: Callable[[Callable[[], Awaitable[Any]]], Any]


TRIO_HOSTS = (
    HostCase("trio", "trio", trio.run),
    HostCase("anyio-trio", "trio", lambda main: anyio.run(main, backend="trio")),
)

ASYNCIO_HOSTS = (
    HostCase("asyncio", "asyncio", lambda main: asyncio.run(main())),
    HostCase("anyio-asyncio", "asyncio", lambda main: anyio.run(main, backend="asyncio")),
    HostCase("uvloop", "asyncio", lambda main: uvloop.run(main())),
)


def _each(hosts: tuple[HostCase, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("host", hosts, ids=[host.name for host in hosts])


each_host = _each(TRIO_HOSTS + ASYNCIO_HOSTS)
each_trio_host = _each(TRIO_HOSTS)
each_asyncio_host = _each(ASYNCIO_HOSTS)


def living() -> tuple[int, int]:
    """How many trio tasks and asyncio tasks live in this thread's run."""
    try:
        asyncio_tasks = len(asyncio.all_tasks())
    except RuntimeError:
        asyncio_tasks = 0
    return trio.lowlevel.current_statistics().tasks_living, asyncio_tasks


async def come_down_to(before: tuple[int, int]) -> None:
    """Wait a few rounds until no more tasks live than before; fail if that does not happen."""
    for _ in range(50):
        if living() <= before:
            return
        await anyio.sleep(0.001)
    assert living() <= before, "tasks are left running"


class TrioRounds(trio.abc.Instrument):
    """Counts the scheduling rounds of this thread's trio run from here on."""

    def __init__(self) -> None:
        self.count = 0
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1

    async def until(self, condition: Callable[[], bool]) -> int:
        """Give way until the condition holds; how many rounds that took."""
        deadline = anyio.current_time() + 5
        while not condition():
            assert anyio.current_time() < deadline, "it never came to that"
            await anyio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(self)
        return self.count


async def rounds(count: int) -> None:
    """Give way a few times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
