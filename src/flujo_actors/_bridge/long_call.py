"""A call from a guest run to the event loop of its own thread, of what is known to wait: agents and streams.

Rules:

1. The coroutine is an ordinary task of the loop, with the contextvars of the trio task that called it: what it sets,
   its caller sees, as if it had been awaited there. It takes many turns of the loop, so there is nothing to gain from
   beginning before the first of them, as short calls do (see `eager_call`).
2. No round is spent on an answer that cannot be there yet: the caller parks at once.
3. A call may have to wait for its turn to begin (see `starts`). If its caller is cancelled meanwhile, it does not
   begin at all.
4. Cancelling the trio caller cancels the task and waits for its end. A task that was made always begins, and is
   cancelled at its first `await`, as trio would do it; unless somebody else cancels it before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from outcome import Error, Value
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from .eager_call import cancel_once, context_for_asyncio, was_cancelled
from .eager_tasks import TASK_NAME
from .guest_rounds import Rounds
from .own_context import context_of_caller
from .starts import Starts

T = TypeVar("T")


class LongCall(Generic[T]):
    """One call from a trio task to the loop of its own thread."""

    __slots__ = (
        "_begun",
        "_caller",
        "_context",
        "_left",
        "_loop",
        "_make",
        "_raise_cancel",
        "_result",
        "_rounds",
        "_starts",
        "_task",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rounds: Rounds, starts: Starts, make: Callable[[], Awaitable[T]]
    ) -> None:
        self._loop, self._rounds, self._starts, self._make = loop, rounds, starts, make
        self._begun = self._left = False
        self._result: Value[T] | Error | None = None
        self._task: asyncio.Task[None] | None = None
        self._raise_cancel: Callable[[], object] | None = None

    async def run(self) -> T:
        """The trio side."""
        if self._loop.is_closed():
            raise RuntimeError("the asyncio loop that this call needs is closed")
        self._caller = caller = current_task()
        self._context = context_for_asyncio(context_of_caller(caller))
        if self._loop.get_task_factory() is None:
            self._starts.add(self._begin)
        else:  # the program's own may do anything, also begin at once: not in a task of trio
            self._rounds.at_the_end(lambda: self._starts.add(self._begin))
        self._rounds.keep_awake.keep()
        await wait_task_rescheduled(self._abort)
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()
        assert self._result is not None
        return self._result.unwrap()

    def _abort(self, raise_cancel: Callable[[], object]) -> Abort:
        if self._task is None or self._loop.is_closed():
            self._left = True
            return Abort.SUCCEEDED  # it has not begun (rule 3), or nobody is left to answer
        self._raise_cancel = raise_cancel
        self._rounds.give_way()
        if self._begun:
            cancel_once(self._task)
        return Abort.FAILED

    # --- on the loop ---

    def _begin(self) -> None:
        if self._left:
            return
        main = self._main()
        self._starts.under_way += 1
        try:
            self._task = self._loop.create_task(main, name=TASK_NAME, context=self._context)
        except BaseException as error:  # of the program's own task factory; carried to the trio side
            main.close()
            self._arrive(Error(error))
            return
        if not self._begun:
            self._task.add_done_callback(self._make_sure)

    def _make_sure(self, _: asyncio.Task[None]) -> None:
        """Somebody else may cancel a task to which the loop has not come yet, as a loop does that shuts down."""
        if not self._begun:
            self._arrive(Error(asyncio.CancelledError("cancelled before it began")))

    async def _main(self) -> None:
        self._begun = True
        task = self._task or asyncio.current_task()
        if task is not None:
            task.remove_done_callback(self._make_sure)
            if self._raise_cancel is not None:
                cancel_once(task)  # whose caller was cancelled before it began
        try:
            result: Value[T] | Error = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._arrive(result)

    def _arrive(self, result: Value[T] | Error) -> None:
        self._result = result
        del self._make  # ten thousand branches that answered may wait for the round in which they go on
        self._starts.under_way -= 1
        if not self._left:
            self._rounds.keep_awake.wake()
            reschedule(self._caller)
