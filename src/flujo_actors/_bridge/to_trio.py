"""Trio functions of a run, awaited by the asyncio code that works for the run.

Rules:

1. The function becomes a task of the trio run, with the caller's contextvars. It is a system task: it outlives the
   cancellation of the trio task whose asyncio code asked for it, because that code hears of it first and decides.
2. Cancelling the asyncio caller cancels the function and waits for its end; the caller then gets the very cancellation
   it was given.
3. What the function raises is raised in the caller. Nothing it raises can harm the trio run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio
from outcome import Error, Value

from .keep_awake import Vigil

T = TypeVar("T")


class TrioCaller:
    """The way back into a trio run, made in a task of it for asyncio code in the same thread or another."""

    def __init__(self, vigil: Vigil | None = None) -> None:
        """`vigil` is that of the guest run, if trio is a guest on the asyncio loop's own thread."""
        self._vigil = vigil
        self._token = trio.lowlevel.current_trio_token()

    async def call(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await `fn(*args)` on trio, from asyncio; see the module's rules."""
        visit: _Visit[T] = _Visit(self, fn, args)
        self.soon(visit.begin, contextvars.copy_context())
        answer = await visit.answer()
        if self._vigil is not None:
            self._vigil.keep()
        return answer.unwrap()

    @property
    def same_thread(self) -> bool:
        """Whether trio is a guest on the thread of the asyncio loop."""
        return self._vigil is not None

    def soon(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` in the trio run's thread."""
        if self._vigil is None:
            self._token.run_sync_soon(fn, *args)
        else:
            self._vigil.keep()
            fn(*args)


class _Visit(Generic[T]):
    """One call from an asyncio task to the trio run and back."""

    __slots__ = ("_answer", "_args", "_caller", "_fn", "_loop", "_scope", "_waiter")

    def __init__(self, caller: TrioCaller, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self._caller, self._fn, self._args = caller, fn, args
        self._loop = asyncio.get_running_loop()
        self._scope = trio.CancelScope()
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._answer: Value[T] | Error | None = None

    # --- on trio ---

    def begin(self, context: contextvars.Context) -> None:
        """Start the task."""
        trio.lowlevel.spawn_system_task(self._work, context=context)

    async def _work(self) -> None:
        answer: Value[T] | Error = Error(asyncio.CancelledError("the trio run was cancelled"))
        try:
            with self._scope:
                answer = Value(await self._fn(*self._args))
        except trio.Cancelled:
            raise  # the trio run itself is ending
        except BaseException as error:  # carried to the asyncio caller, where it is raised again
            answer = Error(error)
        finally:
            self._send_back(answer)

    def _send_back(self, answer: Value[T] | Error) -> None:
        if self._loop.is_closed():
            return
        if self._caller.same_thread:
            self._arrive(answer)
        else:
            self._loop.call_soon_threadsafe(self._arrive, answer)

    # --- on asyncio ---

    def _arrive(self, answer: Value[T] | Error) -> None:
        self._answer = answer
        if not self._waiter.done():
            self._waiter.set_result(None)

    async def answer(self) -> Value[T] | Error:
        """Wait for the end of the work, whoever cancels; the first cancellation is raised when it is over."""
        cancelled: asyncio.CancelledError | None = None
        while self._answer is None:
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self._waiter = self._loop.create_future()
                self._caller.soon(self._scope.cancel)
        try:
            if cancelled is not None:
                raise cancelled
            return self._answer
        finally:
            del cancelled  # it holds this frame, and the frame holds it
