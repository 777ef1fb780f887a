"""A call from a guest run to the event loop of its own thread, which begins at once.

Rules:

1. The coroutine belongs to a task of the loop, with the contextvars of the trio task that called it: what it sets,
   its caller sees, as if it had been awaited there.
2. It begins when the trio round is over, not when the loop has a turn for its task. Most steps answer without ever
   waiting, and those cost no turn at all: the caller stays awake for one round, and the answer is there. On loops that
   may be run inside themselves it begins with a turn of the loop (see `eager_tasks`), and until it has answered its
   caller is in no round: a loop inside it may take that round, and their contextvars are in use by then.
3. What it does first is done inside its task, too: `asyncio.current_task()` is the same from beginning to end.
4. Its task takes over where it first waits. A cancellation that comes before that cancels what it waits for, as it
   does in any task.
5. Cancelling the trio caller cancels the task and waits for its end. A coroutine always begins, and is cancelled at
   its first `await`, as trio would do it.

What is known to wait, as agents do, is called in another way: see `long_call`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from outcome import Error, Value
from sniffio import current_async_library_cvar
from trio.lowlevel import Abort, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from .eager_tasks import begin_task, runs_inside_itself
from .guest_rounds import Rounds
from .own_context import context_of_caller

T = TypeVar("T")


class EagerCall(Generic[T]):
    """One call from a trio task to the loop of its own thread."""

    __slots__ = (
        "_begun",
        "_caller",
        "_context",
        "_coroutine",
        "_loop",
        "_parked",
        "_raise_cancel",
        "_result",
        "_rounds",
        "_task",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rounds: Rounds, coroutine: Coroutine[object, object, T]
    ) -> None:
        self._loop, self._rounds, self._coroutine = loop, rounds, coroutine
        self._caller = caller = current_task()
        self._context = context_of_caller(caller)
        self._begun = self._parked = False
        self._result: Value[T] | Error | None = None
        self._task: asyncio.Task[None] | None = None
        self._raise_cancel: Callable[[], object] | None = None

    async def run(self) -> T:
        """The trio side of what most often answers at once (rule 2)."""
        self._leave()
        if not runs_inside_itself(self._loop):
            await cancel_shielded_checkpoint()
        if self._result is None:
            await self._park()
        assert self._result is not None
        return self._result.unwrap()

    def _leave(self) -> None:
        if self._loop.is_closed():
            self._coroutine.close()
            raise RuntimeError("the asyncio loop that this call needs is closed")
        self._rounds.at_the_end(self._begin)

    async def _park(self) -> None:
        self._rounds.keep_awake.keep()
        self._parked = True
        await wait_task_rescheduled(self._abort)
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()

    def _abort(self, raise_cancel: Callable[[], object]) -> Abort:
        if self._loop.is_closed():
            self._parked = False
            return Abort.SUCCEEDED  # nobody is left to answer
        self._raise_cancel = raise_cancel
        self._rounds.give_way()
        if self._begun and self._task is not None:
            cancel_once(self._task)
        return Abort.FAILED

    # --- on the loop ---

    def _begin(self) -> None:
        main, context = self._main(), context_for_asyncio(self._context)
        try:
            self._task = task = begin_task(self._loop, main, context)
        except BaseException as error:  # of the program's own task factory; carried to the trio side
            main.close()
            self._coroutine.close()
            self._arrive(Error(error))
            return
        if not self._begun:
            task.add_done_callback(self._make_sure)

    def _make_sure(self, _: asyncio.Task[None]) -> None:
        """Somebody else may cancel a task to which the loop has not come yet, as a loop does that shuts down."""
        if not self._begun:
            self._coroutine.close()
            self._arrive(Error(asyncio.CancelledError("cancelled before it began")))

    async def _main(self) -> None:
        self._begun = True
        if self._raise_cancel is not None and (task := asyncio.current_task()) is not None:
            cancel_once(task)  # whose caller was cancelled before it began
        try:
            result: Value[T] | Error = Value(await self._coroutine)
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._arrive(result)

    def _arrive(self, result: Value[T] | Error) -> None:
        self._result = result
        del self._coroutine  # ten thousand branches that answered may wait for the round in which they go on
        if self._parked:
            self._rounds.keep_awake.wake()
            reschedule(self._caller)


def context_for_asyncio(context: contextvars.Context) -> contextvars.Context:
    """The contextvars, but for the one in which a program may note that it runs on trio: over there it does not."""
    if context.get(current_async_library_cvar) != "trio":
        return context
    context = context.copy()
    context.run(current_async_library_cvar.set, "asyncio")
    return context


def cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task, unless it is being cancelled: a second time would cut its cleanup short.

    A loop that shuts down cancels every task there is, ours as well as our callers.
    """
    if not task.cancelling():
        task.cancel()


def was_cancelled(result: Value[object] | Error | None) -> bool:
    """Whether a coroutine ended with asyncio's cancellation."""
    return isinstance(result, Error) and isinstance(result.error, asyncio.CancelledError)
