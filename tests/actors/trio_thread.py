"""A trio run with a mock clock in a thread of its own, driven step by step from synchronous code."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

T = TypeVar("T")


class TrioThread:
    """Time stands still in there unless `clock.jump` is called."""

    def __init__(self) -> None:
        self.clock = MockClock()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._thread = threading.Thread(target=trio.run, args=(self._main,), kwargs={"clock": self.clock})
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._ready.set()
            await trio.sleep_forever()

    def call(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in there and return what it returns."""
        return trio.from_thread.run(act, trio_token=self._token)

    def call_sync(self, act: Callable[..., T], *args: object) -> T:
        """Call a plain function in there."""
        return trio.from_thread.run_sync(act, *args, trio_token=self._token)

    def in_background(self, act: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task in there."""
        self.call_sync(self._nursery.start_soon, act, *args)

    def settle(self) -> None:
        """Return when every task in there waits for something."""
        self.call(wait_all_tasks_blocked)

    def close(self) -> None:
        """Cancel what is left and wait for the end of the thread."""
        self.call_sync(self._nursery.cancel_scope.cancel)
        self._thread.join()
