"""The executor of synchronous user code: worker threads, with a limit of their own.

A thread cannot be stopped. When its step is cancelled the thread is left behind: it keeps its place in the
limit until it ends, it is counted, and the log names it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from .._core.default_settings import SYNC_STEP_THREADS

T = TypeVar("T")

logger = logging.getLogger("flujo_actors")

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("flujo_actors sync steps")
_left_behind: dict[int, str] = {}
_lock = threading.Lock()


def abandoned_threads() -> tuple[str, ...]:
    """The sync steps that were cancelled and whose threads still run, by step name."""
    with _lock:
        return tuple(_left_behind.values())


async def in_thread(
    fn: Callable[..., T],
    *args: object,
    label: str,
    limit: int = SYNC_STEP_THREADS,
    if_left: Callable[[], None] | None = None,
) -> T:
    """Call `fn(*args)` in a worker thread; cancellation leaves the thread behind, and says so to `if_left`."""
    ticket = _Ticket(label)
    try:
        # In a tuple, because trio takes a returned coroutine for a mistake, and here it is an answer.
        (answer,) = await trio.to_thread.run_sync(
            ticket.work, fn, args, abandon_on_cancel=True, limiter=_limiter_of(limit)
        )
        return answer
    except trio.Cancelled:
        if ticket.leave() and if_left is not None:
            if_left()
        raise


class _Ticket:
    """One call in a thread: whether it runs, and whether anybody still waits for it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.running = self.void = False

    def work(self, fn: Callable[..., T], args: tuple[object, ...]) -> tuple[T]:
        with _lock:
            if self.void:  # cancelled while the thread was starting: then the step never begins
                raise RuntimeError(f"step {self.label!r} was cancelled before it began")
            self.running = True
        try:
            return (fn(*args),)
        finally:
            with _lock:
                self.running = False
                _left_behind.pop(id(self), None)

    def leave(self) -> bool:
        """Give the call up; whether its thread runs on."""
        with _lock:
            if not self.running:
                self.void = True
                return False
            _left_behind[id(self)] = self.label
        logger.warning("step %r was cancelled, but its thread cannot be stopped and runs on", self.label)
        return True


def _limiter_of(limit: int) -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(limit)
        _limiter.set(limiter)
        return limiter
