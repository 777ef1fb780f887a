"""Calls from asyncio into trio: trio functions of a run, awaited by asyncio code, on a guest run or in another thread.

Rules:

1. The function becomes a task of the trio run, with the caller's contextvars.
2. Cancelling the asyncio caller cancels the function and waits for its end; the caller then gets the very cancellation
   it was given.
3. What the function raises is raised in the caller. Nothing it raises can harm the trio run.
4. A call always comes back: also from a trio run that ends before it does.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import trio
from outcome import Error, Outcome, Value

from .guest_rounds import KeepAwake

T = TypeVar("T")


class Way(Protocol):
    """How the two libraries reach each other."""

    def into_trio(self, fn: Callable[..., object], *args: object) -> None:
        """From the loop's thread: call `fn` in the trio run's thread."""

    def into_asyncio(self, loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
        """From a trio task: call `fn` in the loop's thread, if the loop is open."""

    def why_cut_short(self) -> BaseException:
        """What a call raises that ends with the trio run."""


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
        """The trio task: it never raises, except when the trio run itself is ending."""
        reply: Value[T] | Error | None = None
        try:
            with self._scope:
                reply = Value(await self._fn(*self._args))
        except trio.Cancelled:
            raise
        except BaseException as error:  # carried to the asyncio caller, where it is raised again
            reply = Error(error)
        finally:
            self._way.into_asyncio(self._loop, self._arrive, reply or Error(self._why_cut_short()))

    def _why_cut_short(self) -> BaseException:
        if self._scope.cancel_called:
            return asyncio.CancelledError("the run was cancelled")
        return self._way.why_cut_short()

    # --- on asyncio ---

    def lose(self, result: Outcome[None]) -> None:
        """The trio run is gone with this result: if the work never ended, it never will."""
        if self._reply is None:
            self._arrive(result if isinstance(result, Error) else Error(self._why_cut_short()))

    def _arrive(self, reply: Value[T] | Error) -> None:
        self._reply = reply
        if not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    async def reply(self) -> Value[T] | Error:
        """Wait for the end of the work, whoever cancels; the first cancellation is raised when it is over."""
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
    """The way back into a trio run, made in a task of it for the asyncio code that works for the run.

    What it calls is a system task: it outlives the cancellation of the trio task whose asyncio code asked for it,
    because that code hears of it first and decides.
    """

    def __init__(self, keep_awake: KeepAwake | None = None) -> None:
        """`keep_awake` is that of the guest run, if trio is a guest on the asyncio loop's own thread."""
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
        """Whether trio is a guest on the thread of the asyncio loop."""
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

    def why_cut_short(self) -> BaseException:
        """The trio run ended before the call did."""
        return asyncio.CancelledError("the trio run was cancelled")
