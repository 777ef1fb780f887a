"""The clock of `clock`, for asyncio: an event loop on which nobody waits.

Rules:

1. Time stands still while anything can be done, and jumps to the next timer when nothing can.
2. Work in threads (sync steps, `asyncio.to_thread`) goes on in real time; the clock waits for it. It does not know of
   threads that others keep, such as those of `anyio.to_thread`.
3. The trio run that is a guest on the loop goes by the loop's time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

import trio

from ._clock import PATIENCE_S, outside_work

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that jumps over waiting: `asyncio.Runner(loop_factory=JumpingLoop)`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._in_threads = 0
        self.trio_clock: trio.abc.Clock = _LoopClock(self)
        """What a trio run on this loop goes by."""
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds since the beginning, as the program experiences them."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    @property
    def waits_for_threads(self) -> bool:
        """Whether something may still come from outside the loop."""
        return self._in_threads > 0 or outside_work()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As any loop does it, but for the clock, which waits for the thread."""
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._back_from_thread)
        return future

    def _back_from_thread(self, _: object) -> None:
        self._in_threads -= 1

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        """As any loop does it, but for the clock: from Python 3.12 there is a time limit, which is not jumped to."""
        self._in_threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Finds I/O as any selector does; where it would wait for a timer, it lets time pass."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What there is to read and write, after a jump if there is nothing."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is None or self._loop.waits_for_threads:
            return super().select(PATIENCE_S)
        self._loop.jump(timeout)
        return []


class _LoopClock(trio.abc.Clock):
    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop

    def start_clock(self) -> None:
        """Nothing to do: the loop's time is there already."""

    def current_time(self) -> float:
        return self._loop.time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._loop.time()
