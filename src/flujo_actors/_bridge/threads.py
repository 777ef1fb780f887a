"""Executor of synchronous user code: worker threads with their own limit.

1. A thread cannot be stopped. When its step is cancelled the thread is left behind: it keeps its place in the limit
   until it ends, it is counted, and the log names it.
2. The loop's thread never waits for a worker thread, however quick the function is.
3. The function sees the context variables of its caller, and may set them for itself alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import trio
from outcome import Error, Outcome, capture
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

from .._core import seams
from .._core.default_settings import SYNC_STEP_THREADS

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Arrival: TypeAlias = Callable[[], object]

Post: TypeAlias = Callable[[Arrival], object]
"""From any thread: have something called in the run's."""

_post: trio.lowlevel.RunVar[Post | None] = trio.lowlevel.RunVar("flujo_actors arrivals", None)


def way_in() -> Post:
    """Return a callback into the current trio run for other threads."""
    return _post.get() or _through(trio.lowlevel.current_trio_token())


def _through(token: trio.lowlevel.TrioToken) -> Post:
    def post(arrival: Arrival) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(arrival)

    return post


class ThreadWakeups:
    """Thread callbacks for a guest run driven by an asyncio loop."""

    __slots__ = ("_come", "_hear", "_loop", "_over", "_token")

    def __init__(self, loop: AbstractEventLoop, hear: Callable[[], object]) -> None:
        self._loop, self._hear = loop, hear
        """Loop, and its callback that processes arrivals."""
        self._come: deque[Arrival] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._over = False
        _post.set(self.post)

    def end(self) -> None:
        """The run is over: nothing is called any more."""
        self._over = True
        self._come.clear()

    def post(self, arrival: Arrival) -> None:
        """From any thread: see `Post`."""
        self._come.append(arrival)
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:  # the loop was closed
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._hear)

    def take(self) -> None:
        """Call the arrived callbacks."""
        while self._come and not self._over:
            got = capture(self._come.popleft())
            if isinstance(got, Error):
                self._token.run_sync_soon(got.unwrap)  # which ends the run, as it does in a trio program


T = TypeVar("T")

logger = logging.getLogger("flujo_actors")

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("flujo_actors sync steps")
_abandoned: dict[_Call[Any], str] = {}
_awaited: set[_Call[Any]] = set()


def abandoned_threads() -> tuple[str, ...]:
    """Return the names of cancelled sync steps whose threads still run."""
    return tuple(_abandoned.copy().values())


def threads_in_flight() -> bool:
    """Return whether a caller waits for a thread."""
    return bool(_awaited)


@enable_ki_protection
async def in_thread(
    fn: Callable[[], T],
    *,
    label: str,
    limit: int = SYNC_STEP_THREADS,
    if_left: Callable[[], None] | None = None,
    waited: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Call `fn` in a worker thread; cancellation abandons it via `if_left`.

    `waited` is awaited after a wait for a free thread, and may refuse the call by raising.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    call = _Call(fn, label, _limiter_of(limit))
    await call.begin(waited)
    try:
        await call.end()
    except trio.Cancelled:
        if call.abandon() and if_left is not None:
            if_left()
        raise
    return call.answer()


class _Call(Generic[T]):
    """One call in a thread, without locks shared with the loop.

    Each race between them is decided by one atomic operation.
    """

    __slots__ = ("_answers", "_context", "_fn", "_label", "_limiter", "_post", "_task", "_unclaimed")

    def __init__(self, fn: Callable[[], T], label: str, limiter: trio.CapacityLimiter) -> None:
        self._fn, self._label, self._limiter = fn, label, limiter
        self._context = contextvars.copy_context()
        self._context.run(current_async_library_cvar.set, None)  # whatever is set there, a thread runs no such loop
        self._post = way_in()
        self._answers: list[Outcome[T]] = []
        self._unclaimed = [True]
        """Popped by the starting thread, or by a caller leaving earlier."""
        self._task: Task | None = None
        """Task that waits for the end of the call."""

    # --- in the loop's thread ---

    async def begin(self, waited: Callable[[], Awaitable[None]] | None) -> None:
        """Start the thread as soon as there is a place for it."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(self)
            waited = None
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        started = False
        try:
            if waited is not None:
                await waited()
            (seams.start_thread or start_thread_soon)(self._work, self._ended)
            started = True
        finally:
            if not started:  # it was refused, or the system has no thread; the place is free for another
                self._limiter.release_on_behalf_of(self)

    async def end(self) -> None:
        """Wait until the call has ended."""
        if self._answers:
            return
        self._task = current_task()
        _awaited.add(self)
        try:
            await wait_task_rescheduled(self._abort_wait)
        finally:
            _awaited.discard(self)

    def answer(self) -> T:
        """Return the function's result, or raise its exception."""
        return self._answers.pop().unwrap()  # kept nowhere: a kept error refers to itself by its traceback

    def abandon(self) -> bool:
        """Report the thread of an abandoned call, if it is still running."""
        if self._claimed() or self._answers:
            return False
        _abandoned[self] = self._label
        if self._answers:  # it has ended meanwhile, and may have looked before this entry was made
            _abandoned.pop(self, None)
            return False
        logger.warning("step %r was cancelled, but its thread cannot be stopped and runs on", self._label)
        return True

    def _abort_wait(self, _: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED

    def _wake(self) -> None:
        self._limiter.release_on_behalf_of(self)
        if self._task is not None:
            task, self._task = self._task, None
            reschedule(task)

    # --- in either thread ---

    def _claimed(self) -> bool:
        """Return whether this caller is the first that asks."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    # --- in the thread of the call ---

    def _work(self) -> T:
        if not self._claimed():  # cancelled while the thread was starting: then the step never begins
            raise RuntimeError(f"step {self._label!r} was cancelled before it began")
        return self._context.run(self._fn)

    def _ended(self, answer: Outcome[T]) -> None:
        self._answers.append(answer)
        _abandoned.pop(self, None)
        self._post(self._wake)


def _limiter_of(limit: int) -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(limit)
        _limiter.set(limiter)
        return limiter
