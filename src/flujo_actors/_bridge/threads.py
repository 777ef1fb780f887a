"""The executor of synchronous user code: worker threads, with a limit of their own.

1. A thread cannot be stopped. When its step is cancelled the thread is left behind: it keeps its place in the limit
   until it ends, it is counted, and the log names it.
2. To be told by a thread, a loop is woken through a socket and goes around three times, while the two threads take the
   interpreter from each other. So for a function that is quick (`Pace`) the loop's thread waits where it is, for as
   long as a quick call takes and no longer; a slow one is known by its first call, and then the loop goes on at once.
3. The function sees the context variables of whoever called it, and may set them for itself alone.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import trio
from outcome import Outcome
from sniffio import current_async_library_cvar
from trio.lowlevel import (
    Abort,
    Task,
    current_task,
    enable_ki_protection,
    reschedule,
    start_thread_soon,
    wait_task_rescheduled,
)

from .._core.default_settings import SYNC_STEP_THREADS
from .._dsl.call_plan import QUICK_S, Pace
from .arrivals import way_in

T = TypeVar("T")

_Stage: TypeAlias = Literal["begins", "runs", "ended", "void"]
"""How far a call is; one that was given up before it ran is void."""

logger = logging.getLogger("flujo_actors")

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("flujo_actors sync steps")
_left_behind: dict[_Call[Any], str] = {}
_awaited: set[_Call[Any]] = set()
_lock = threading.Lock()


def abandoned_threads() -> tuple[str, ...]:
    """The sync steps that were cancelled and whose threads still run, by step name."""
    with _lock:
        return tuple(_left_behind.values())


def threads_under_way() -> bool:
    """Whether somebody waits for a thread."""
    return bool(_awaited)


@enable_ki_protection
async def in_thread(
    fn: Callable[[], T],
    *,
    label: str,
    pace: Pace | None = None,
    limit: int = SYNC_STEP_THREADS,
    if_left: Callable[[], None] | None = None,
) -> T:
    """Call `fn` in a worker thread; cancellation leaves the thread behind, and says so to `if_left`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    pace = pace or Pace(quick=False)
    is_quick = pace.quick
    call = _Call(fn, label, pace, _limiter_of(limit))
    await call.begin()
    if not (is_quick and call.ends_soon()):
        try:
            await call.end()
        except trio.Cancelled:
            if call.leave() and if_left is not None:
                if_left()
            raise
    return call.answer()


class _Call(Generic[T]):
    """One call in a thread: how far it is, and whether anybody still waits for it."""

    __slots__ = (
        "_answers",
        "_context",
        "_fn",
        "_label",
        "_limiter",
        "_over",
        "_pace",
        "_post",
        "_stage",
        "_task",
        "_waits",
    )

    def __init__(self, fn: Callable[[], T], label: str, pace: Pace, limiter: trio.CapacityLimiter) -> None:
        self._fn, self._label, self._pace, self._limiter = fn, label, pace, limiter
        self._context = contextvars.copy_context()
        self._context.run(current_async_library_cvar.set, None)  # whatever is set there, a thread runs no such loop
        self._post = way_in()
        self._stage: _Stage = "begins"
        self._answers: list[Outcome[T]] = []
        self._over = threading.Lock()
        self._over.acquire()
        self._task: Task | None = None
        """Who is told that the call has ended, by the loop; nobody as long as the loop's thread waits where it is."""
        self._waits = False

    # --- in the loop's thread ---

    async def begin(self) -> None:
        """Start the thread, as soon as there is a place for it."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(self)
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        try:
            start_thread_soon(self._work, self._ended)
        except RuntimeError:  # the system has no thread to give; the place is free for another
            self._limiter.release_on_behalf_of(self)
            raise

    def ends_soon(self) -> bool:
        """Wait where we are, for as long as a quick call takes; whether it has ended."""
        if not self._over.acquire(timeout=QUICK_S):
            return False
        self._limiter.release_on_behalf_of(self)
        return True

    async def end(self) -> None:
        """Let the loop go on until the call has ended."""
        with _lock:
            has_ended = self._stage == "ended"
            self._task = None if has_ended else current_task()
        if has_ended:
            self._limiter.release_on_behalf_of(self)
            return
        self._waits = True
        _awaited.add(self)
        try:
            await wait_task_rescheduled(self._give_up)
        finally:
            _awaited.discard(self)

    def answer(self) -> T:
        """What the function returned; what it raised, is raised."""
        return self._answers.pop().unwrap()  # kept nowhere: an error that is refers to itself by its traceback

    def leave(self) -> bool:
        """Say of a call that was given up that its thread runs on, if it does."""
        with _lock:
            if self._stage != "runs":
                self._stage = "void" if self._stage == "begins" else self._stage
                return False
            _left_behind[self] = self._label
        logger.warning("step %r was cancelled, but its thread cannot be stopped and runs on", self._label)
        return True

    def _give_up(self, _: object) -> Abort:
        self._waits = False
        return Abort.SUCCEEDED

    def _wake(self, task: Task) -> None:
        self._limiter.release_on_behalf_of(self)
        if self._waits:
            reschedule(task)

    # --- in the thread of the call ---

    def _work(self) -> T:
        with _lock:
            if self._stage == "void":  # cancelled while the thread was starting: then the step never begins
                raise RuntimeError(f"step {self._label!r} was cancelled before it began")
            self._stage = "runs"
        begun = time.perf_counter()
        try:
            return self._context.run(self._fn)
        finally:
            self._pace.took(time.perf_counter() - begun)

    def _ended(self, answer: Outcome[T]) -> None:
        self._answers.append(answer)
        with _lock:
            self._stage = "ended"
            _left_behind.pop(self, None)
            task = self._task
        self._over.release()
        if task is not None:
            self._post(functools.partial(self._wake, task))


def _limiter_of(limit: int) -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(limit)
        _limiter.set(limiter)
        return limiter
