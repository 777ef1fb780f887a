"""Coroutines that need asyncio, called from a guest run on the loop's own thread.

Rules:

1. The coroutine belongs to a task of the loop, with the contextvars of the trio task that called it: what it sets,
   its caller sees, as if it had been awaited there.
2. It begins when the trio round is over, not when the loop has a turn for its task. Most steps answer without ever
   waiting, and those cost no turn at all: the caller stays awake for one round, and the answer is there.
3. What it does first is done inside its task, too: `asyncio.current_task()` is the same from beginning to end.
4. Its task takes over where it first waits. A cancellation that comes before that cancels what it waits for, as it
   does in any task.
5. Cancelling the trio caller cancels the task and waits for its end. A coroutine always begins, and is cancelled at
   its first `await`, as trio would do it.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from outcome import Error, Value
from sniffio import current_async_library_cvar
from trio.lowlevel import Abort, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from .rounds import Rounds

T = TypeVar("T")


class Errand(Generic[T]):
    """One call from a trio task to the loop of its own thread."""

    __slots__ = ("_begun", "_caller", "_loop", "_make", "_parked", "_passenger", "_raise_cancel", "_result", "_rounds")

    def __init__(self, loop: asyncio.AbstractEventLoop, rounds: Rounds, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._rounds, self._make = loop, rounds, make
        self._caller = current_task()
        self._begun = self._parked = False
        self._result: Value[T] | Error | None = None
        self._passenger: asyncio.Task[None] | None = None
        self._raise_cancel: Callable[[], Any] | None = None

    async def run(self) -> T:
        """The trio side."""
        self._rounds.at_the_end(self._begin)
        await cancel_shielded_checkpoint()
        if self._result is None:
            await self._park()
        assert self._result is not None
        return self._result.unwrap()

    async def _park(self) -> None:
        self._rounds.vigil.keep()
        self._parked = True
        await wait_task_rescheduled(self._abort)
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()

    def _abort(self, raise_cancel: Callable[[], Any]) -> Abort:
        if self._loop.is_closed():
            self._parked = False
            return Abort.SUCCEEDED  # nobody is left to answer
        self._raise_cancel = raise_cancel
        if self._passenger is not None:
            cancel_once(self._passenger)
        return Abort.FAILED

    # --- on the loop ---

    def _begin(self) -> None:
        ride, context = self._ride(), context_for_asyncio(self._caller.context)
        try:
            self._passenger = task = self._loop.create_task(ride, context=context)
        except BaseException as error:  # of the program's own task factory; carried to the trio side
            ride.close()
            dismiss(self._make)
            self._result = Error(error)
            return
        if not self._begun:  # a factory of eager tasks has seen to it
            _run_inside(self._loop, task, context, ride)

    async def _ride(self) -> None:
        self._begun = True
        work = self._work()
        try:
            awaited = work.send(None)
        except StopIteration:
            await _take_over(None)
        else:
            await _take_over(work, awaited)

    async def _work(self) -> None:
        try:
            result: Value[T] | Error = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._result = result
        if self._parked:
            self._rounds.vigil.wake()
            reschedule(self._caller)


def _run_inside(
    loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[None],
    context: contextvars.Context,
    ride: Coroutine[Any, Any, None],
) -> None:
    """Run the first part of a task's coroutine without waiting for the loop, with the task as the current one."""
    _enter_task(loop, task)
    try:
        context.run(ride.send, None)
    finally:
        _leave_task(loop, task)


@types.coroutine
def _take_over(work: Coroutine[Any, Any, None] | None, awaited: Any = None) -> Generator[Any, None, None]:
    """Here the first part is over: what comes next is a step of the task, which waits for `awaited`."""
    owed: BaseException | None = None
    try:
        yield
    except asyncio.CancelledError as cancellation:
        if awaited is None or not awaited.cancel(*cancellation.args):
            owed = cancellation
    if work is not None:
        yield from _wait(work, awaited, owed)


def _wait(
    work: Coroutine[Any, Any, None], awaited: Any, owed: BaseException | None = None
) -> Generator[Any, None, None]:
    try:
        yield awaited
    except BaseException as error:  # meant for the coroutine, which gets it
        owed = error
    yield from _resume(work, owed)


def _resume(work: Coroutine[Any, Any, None], owed: BaseException | None) -> Generator[Any, None, None]:
    if owed is None:
        yield from work.__await__()
        return
    try:
        awaited = work.throw(owed)
    except StopIteration:
        return
    finally:
        owed = None  # it holds this frame, and the frame holds it
    yield from _wait(work, awaited)


def context_for_asyncio(context: contextvars.Context) -> contextvars.Context:
    """The contextvars, but for the one in which a program may note that it runs on trio: over there it does not."""
    if context.get(current_async_library_cvar) != "trio":
        return context
    context = context.copy()
    context.run(current_async_library_cvar.set, "asyncio")
    return context


def dismiss(make: Callable[[], Awaitable[Any]]) -> None:
    """Let go of what will never be awaited, without a warning about it."""
    close = getattr(make(), "close", None)
    if close is not None:
        close()


def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task, unless it is being cancelled: a second time would cut its cleanup short.

    A loop that shuts down cancels every task there is, ours as well as our callers.
    """
    if not task.cancelling():
        task.cancel()


def was_cancelled(result: Value[Any] | Error | None) -> bool:
    """Whether a coroutine ended with asyncio's cancellation."""
    return isinstance(result, Error) and isinstance(result.error, asyncio.CancelledError)
