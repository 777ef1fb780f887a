"""Calls from asyncio into trio: trio functions awaited by asyncio code.

Rules:

1. The function becomes a task of the trio run, with the caller's contextvars.
2. Cancelling the asyncio caller cancels the function and waits for its end; the caller then gets the same
   cancellation.
3. Exceptions of the function are raised in the caller. None can harm the trio run.
4. A call always returns: also from a trio run that ends before it does.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import trio
from outcome import Error, Outcome, Value

from .guest_scheduler import IdleTimer

T = TypeVar("T")


class Way(Protocol):
    """Interface between the two libraries."""

    def into_trio(self, fn: Callable[..., object], *args: object) -> None:
        """From the loop's thread: call `fn` in the trio run's thread."""

    def into_asyncio(self, loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` in the loop's thread from trio, if open."""

    def cancellation_error(self) -> BaseException:
        """Return the exception of a call that ends with the trio run."""


class TrioCall(Generic[T]):
    """One call from an asyncio task to a trio run and back."""

    __slots__ = ("_args", "_fn", "_loop", "_reply", "_scope", "_waiter", "_way")

    def __init__(
        self, way: Way, loop: asyncio.AbstractEventLoop, fn: Callable[..., Awaitable[T]], args: tuple[object, ...]
    ) -> None:
        self._way, self._loop, self._fn, self._args = way, loop, fn, args
        self._scope = trio.CancelScope()
        self._waiter: asyncio.Future[None] = loop.create_future()
        self._reply: Value[T] | Error | None = None

    # --- on trio ---

    async def work(self) -> None:
        """Run the trio task; raises only at the trio run's end."""
        reply: Value[T] | Error | None = None
        try:
            with self._scope:
                reply = Value(await self._fn(*self._args))
        except trio.Cancelled:
            raise
        except BaseException as error:  # carried to the asyncio caller, where it is raised again
            reply = Error(error)
        finally:
            self._way.into_asyncio(self._loop, self._arrive, reply or Error(self._cancellation_error()))

    def _cancellation_error(self) -> BaseException:
        if self._scope.cancel_called:
            return asyncio.CancelledError("the run was cancelled")
        return self._way.cancellation_error()

    # --- on asyncio ---

    def abort(self, result: Outcome[None]) -> None:
        """End an unfinished call with the trio run's result."""
        if self._reply is None:
            self._arrive(result if isinstance(result, Error) else Error(self._cancellation_error()))

    def _arrive(self, reply: Value[T] | Error) -> None:
        self._reply = reply
        if not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    async def reply(self) -> Value[T] | Error:
        """Wait for the work's end despite cancellation, then raise that."""
        cancelled: asyncio.CancelledError | None = None
        while self._reply is None:
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self._waiter = self._loop.create_future()
                self._way.into_trio(self._scope.cancel)
        try:
            if cancelled is not None:
                raise cancelled
            return self._reply
        finally:
            del cancelled  # it holds this frame, and the frame holds it


class TrioCaller:
    """Return path into a trio run for its asyncio code.

    Its calls are system tasks: they outlive the cancellation of the trio task whose asyncio code made them, because
    that code sees the cancellation first and decides.
    """

    def __init__(self, keep_awake: IdleTimer | None = None) -> None:
        """Create the caller; `keep_awake` belongs to a same-thread guest."""
        self._keep_awake = keep_awake
        self._token = trio.lowlevel.current_trio_token()

    async def call(self, fn: Callable[..., Awaitable[T]], *args: object) -> T:
        """Await `fn(*args)` on trio, from asyncio; see the module's rules."""
        call: TrioCall[T] = TrioCall(self, asyncio.get_running_loop(), fn, args)
        self.into_trio(self._start, call, contextvars.copy_context())
        reply = await call.reply()
        if self._keep_awake is not None:
            self._keep_awake.keep()
        return reply.unwrap()

    @property
    def same_thread(self) -> bool:
        """Return whether trio is a guest on the loop's thread."""
        return self._keep_awake is not None

    @staticmethod
    def _start(call: TrioCall[Any], context: contextvars.Context) -> None:
        trio.lowlevel.spawn_system_task(call.work, context=context)

    def into_trio(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` in the trio run's thread."""
        if self._keep_awake is None:
            self._token.run_sync_soon(fn, *args)
        else:
            self._keep_awake.keep()
            fn(*args)

    def into_asyncio(self, loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` in the loop's thread."""
        if loop.is_closed():
            return
        if self.same_thread:
            fn(*args)
        else:
            loop.call_soon_threadsafe(fn, *args)

    def cancellation_error(self) -> BaseException:
        """Return the trio run ended before the call did."""
        return asyncio.CancelledError("the trio run was cancelled")
