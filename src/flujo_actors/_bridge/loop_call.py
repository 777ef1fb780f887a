"""Calls from a guest run into its thread's asyncio loop.

Rules:

1. A call has one state: created → started → done, or cancelled. It is started when the first step of its coroutine
   runs, done when the result is set, cancelled when its caller left before the start or its loop was closed.
2. The coroutine runs in one task of the loop, with the contextvars of the calling trio task, from its first step on.
3. `eager=True` starts at the end of the caller's trio round, without a turn of the loop. The caller stays awake for one
   round: a coroutine that never waits costs no turn. It always starts, also if its caller is cancelled before.
4. `eager=False` is for agents and streams, which wait anyway. The caller parks at once, and the start may queue
   (`StartQueue`). A caller that is cancelled while queued is not started.
5. Cancelling the caller cancels the task, once, and waits for its end. A call that was not yet started is cancelled
   at its first `await`, as in trio.
6. A loop that can run inside itself (`nest_asyncio`), or that has a task factory of the program, gives every task its
   first turn by itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from outcome import Error, Value
from sniffio import current_async_library_cvar
from trio.lowlevel import Abort, Task, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

if TYPE_CHECKING:
    from .to_asyncio import AsyncioLoop

T = TypeVar("T")

State: TypeAlias = Literal["created", "started", "done", "cancelled"]
"""See rule 1."""

TASK_NAME = "flujo_actors step"
"""Name of the tasks in a list of all tasks."""


class LoopCall(Generic[T]):
    """One call from a trio task to its thread's loop (module rules)."""

    __slots__ = (
        "_bridge",
        "_caller",
        "_coroutine",
        "_eager",
        "_loop",
        "_parked",
        "_raise_cancel",
        "_result",
        "_rounds",
        "_state",
        "_task",
    )

    def __init__(self, loop: AsyncioLoop, coroutine: Awaitable[T], *, eager: bool) -> None:
        assert loop.rounds is not None
        self._bridge, self._loop, self._rounds = loop, loop.loop, loop.rounds
        self._coroutine, self._eager = coroutine, eager
        self._state: State = "created"
        self._parked = False
        self._result: Value[T] | Error | None = None
        self._task: asyncio.Task[None] | None = None
        self._raise_cancel: Callable[[], object] | None = None

    async def run(self) -> T:
        """Run the coroutine on the loop; return its result to trio."""
        if self._loop.is_closed():
            _close(self._coroutine)
            raise RuntimeError("the asyncio loop that this call needs is closed")
        self._caller: Task = current_task()
        self._schedule()
        if self._eager and not runs_inside_itself(self._loop):
            await cancel_shielded_checkpoint()
        if self._result is None:
            await self._park()
        assert self._result is not None
        return self._result.unwrap()

    def _schedule(self) -> None:
        if self._eager:
            self._rounds.at_the_end(self._start)
        elif self._loop.get_task_factory() is None:
            self._bridge.starts.add(self._start)
        else:  # a factory of the program may start the task, which must not happen inside a trio task
            self._rounds.at_the_end(lambda: self._bridge.starts.add(self._start))

    async def _park(self) -> None:
        self._rounds.keep_awake.keep()
        self._parked = True
        await wait_task_rescheduled(self._abort)
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()

    def _abort(self, raise_cancel: Callable[[], object]) -> Abort:
        queued = self._task is None and not self._eager
        if queued or self._loop.is_closed():
            self._parked, self._state = False, "cancelled"
            if queued:
                _close(self._coroutine)
            return Abort.SUCCEEDED
        self._raise_cancel = raise_cancel
        self._rounds.end_turn()
        if self._state == "started" and self._task is not None:
            cancel_once(self._task)
        return Abort.FAILED

    # --- on the loop ---

    def _start(self) -> None:
        if self._state == "cancelled":
            return
        if not self._eager:
            self._bridge.starts.running += 1
        main, create = self._main(), start_task if self._eager else create_task
        try:
            self._task = create(self._loop, main, context_for_asyncio(self._caller.context))
        except BaseException as error:  # raised by the program's task factory; delivered to the trio side
            main.close()
            self._fail(Error(error))
            return
        if self._state == "created":
            self._task.add_done_callback(self._fail_unstarted)

    def _fail_unstarted(self, _: asyncio.Task[None]) -> None:
        """Answer for a task cancelled before its first step."""
        if self._state == "created":
            self._fail(Error(asyncio.CancelledError("cancelled before it began")))

    def _fail(self, result: Error) -> None:
        _close(self._coroutine)
        self._deliver(result)

    async def _main(self) -> None:
        self._state = "started"
        if self._task is not None:
            self._task.remove_done_callback(self._fail_unstarted)
        if self._raise_cancel is not None and (task := asyncio.current_task()) is not None:
            cancel_once(task)  # its caller was cancelled before the start
        try:
            result: Value[T] | Error = Value(await self._coroutine)
        except BaseException as error:  # delivered to the trio side, which handles it
            result = Error(error)
        self._deliver(result)

    def _deliver(self, result: Value[T] | Error) -> None:
        self._result, self._state = result, "done"
        del self._coroutine  # ten thousand branches may have answered before their callers' next round
        if not self._eager:
            self._bridge.starts.running -= 1
        if self._parked:
            self._rounds.keep_awake.wake()
            reschedule(self._caller)


class Deferred(Generic[T]):
    """Awaitable made where it is awaited: in the loop's task."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, Any, T]:
        return self._make().__await__()


def _close(coroutine: Awaitable[object]) -> None:
    """Close a coroutine that is never awaited, without a warning."""
    close = getattr(coroutine, "close", None)
    if close is not None:
        close()


def context_for_asyncio(context: contextvars.Context) -> contextvars.Context:
    """Return the contextvars without the mark of a trio program."""
    if context.get(current_async_library_cvar) != "trio":
        return context
    context = context.copy()
    context.run(current_async_library_cvar.set, "asyncio")
    return context


def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task once: a second cancellation would interrupt its cleanup.

    A loop that shuts down cancels every task, ours as well as our callers.
    """
    if not task.cancelling():
        task.cancel()


def was_cancelled(result: Value[object] | Error | None) -> bool:
    """Return whether a coroutine ended with asyncio's cancellation."""
    return isinstance(result, Error) and isinstance(result.error, asyncio.CancelledError)


# --- start queue --------------------------------------------------------------------------------------------

FREELY = 128
MOST = 2


class StartQueue:
    """Start order of non-eager calls to one loop; used on its thread.

    Ten thousand agents that start in one turn of the loop are all half-way at once, each with tens of kilobytes of
    frames and contexts, and only one of them runs. So:

    1. While fewer than `FREELY` calls run, a call starts at once.
    2. Further ones start in order, at least one and at most `MOST` in every turn of the loop. The started ones
       continue in between, up to where they wait.
    3. The number of running calls has no bound: a call that waits for a provider blocks no other.
    """

    __slots__ = ("_loop", "_queued", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queued: deque[Callable[[], None]] = deque()
        self.running = 0
        """Calls that have started and not ended; counted by the calls."""

    def add(self, start: Callable[[], None]) -> None:
        """Start a call now, or in a later turn if many run."""
        if not self._queued:
            if self.running < FREELY:
                start()
                return
            self._loop.call_soon(self._start_some)
        self._queued.append(start)

    def _start_some(self) -> None:
        started = 0
        while self._queued and (started < MOST or self.running < FREELY):
            started += 1
            self._queued.popleft()()
        if self._queued:
            self._loop.call_soon(self._start_some)


# --- tasks --------------------------------------------------------------------------------------------------

Main: TypeAlias = Coroutine[object, object, None]


def create_task(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
    """Create a task that starts with a turn of the loop."""
    return loop.create_task(main, name=TASK_NAME, context=context)


def runs_inside_itself(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop is reentrant by a patch, like `nest_asyncio`.

    The first step of a task must be a step of the loop there: the loop could reach the task earlier.
    """
    return getattr(loop, "_nest_patched", False)


if sys.version_info >= (3, 12):

    def start_task(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
        """Create a task and run its first step, except under rule 6."""
        if runs_inside_itself(loop) or loop.get_task_factory() is not None:
            return create_task(loop, main, context)
        return asyncio.Task(main, loop=loop, name=TASK_NAME, context=context, eager_start=True)

else:
    # `eager_start` for Python 3.11. The first step runs with the new task as the current one; the task then waits for
    # the object that the coroutine waits for.
    from asyncio.tasks import _enter_task, _leave_task

    def start_task(loop: asyncio.AbstractEventLoop, main: Main, context: contextvars.Context) -> asyncio.Task[None]:
        """Create a task and run its first step, except under rule 6."""
        if runs_inside_itself(loop):
            return create_task(loop, main, context)
        halves = _in_two_halves(main)
        try:
            task = create_task(loop, halves, context)
        except BaseException:  # raised by the program's task factory
            halves.close()
            raise
        _enter_task(loop, task)
        try:
            context.run(halves.send, None)
        finally:
            _leave_task(loop, task)
        return task

    async def _in_two_halves(main: Main) -> None:
        try:
            awaited = main.send(None)
        except StopIteration:
            await _suspended()
        else:
            await _second_half(main, awaited)

    @types.coroutine
    def _suspended() -> Generator[None, None, None]:
        """Return control to `start_task`; the next step is one of the task."""
        yield

    @types.coroutine
    def _second_half(coroutine: Coroutine[object, object, T], awaited: Any) -> Generator[Any, None, T]:
        """Run the rest of a coroutine that waits for `awaited`."""
        owed: BaseException | None = None
        try:
            yield  # the end of the first half
        except asyncio.CancelledError as cancellation:
            if awaited is None or not awaited.cancel(*cancellation.args):
                owed = cancellation
        return (yield from _wait(coroutine, awaited, owed))

    def _wait(
        coroutine: Coroutine[object, object, T], awaited: object, owed: BaseException | None = None
    ) -> Generator[object, None, T]:
        try:
            yield awaited
        except GeneratorExit:  # the loop was closed, and the garbage collector may have closed the coroutine first
            coroutine.close()
            raise
        except BaseException as error:  # raised in the coroutine
            owed = error
        return (yield from _resume(coroutine, owed))

    def _resume(coroutine: Coroutine[object, object, T], owed: BaseException | None) -> Generator[object, None, T]:
        if owed is None:
            return (yield from coroutine.__await__())
        try:
            awaited = coroutine.throw(owed)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            owed = None  # it refers to this frame, and the frame to it
        return (yield from _wait(coroutine, awaited))
