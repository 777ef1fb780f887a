"""Trio as a guest on an asyncio loop: one guest run per loop, shared by every caller.

Rules:

1. The guest starts with the first call on its loop and ends when the loop shuts down, which asyncio announces
   by closing its async generators: one of them is ours.
2. A caller's contextvars are those of the trio task that works for it.
3. Cancelling the asyncio caller cancels the trio task, and the call returns when that task has ended.
4. A guest belongs to one thread and one loop; a closed loop's guest is forgotten.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio
from outcome import Error, Outcome, Value

T = TypeVar("T")


class Guest:
    """The trio run of one asyncio loop."""

    nursery: trio.Nursery
    token: trio.lowlevel.TrioToken

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._watch = self._until_loop_shutdown()

    async def _until_loop_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.nursery.cancel_scope.cancel()
            await self._done

    async def start(self) -> None:
        """Begin the guest run; returns when it takes calls."""
        await anext(self._watch)
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=self._loop.call_soon,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,
            restrict_keyboard_interrupt_to_checkpoints=True,
        )

    async def ready(self) -> None:
        """Wait until the guest takes calls."""
        await asyncio.shield(self._ready)

    def _ended(self, result: Outcome[None]) -> None:
        _guests.pop(self._loop, None)
        if isinstance(result, Error) and not isinstance(result.error, KeyboardInterrupt):
            self._done.set_exception(result.error)
        else:
            self._done.set_result(None)

    async def _main(self) -> None:
        async with trio.open_nursery() as self.nursery:
            self.token = trio.lowlevel.current_trio_token()
            self._ready.set_result(None)
            await trio.sleep_forever()

    async def call(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await a trio function from asyncio; see the module's rules."""
        call: _Call[T] = _Call(self._loop, fn, args)
        contextvars.copy_context().run(self.nursery.start_soon, call.work)
        return await call.result()


class _Call(Generic[T]):
    """One call from an asyncio task to the guest and back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self._fn, self._args = fn, args
        self._scope = trio.CancelScope()
        self._answer: asyncio.Future[Value[T] | Error] = loop.create_future()

    async def work(self) -> None:
        """The trio task: it never raises, except when the guest itself is ending."""
        answer: Value[T] | Error = Error(asyncio.CancelledError("the run was cancelled"))
        try:
            with self._scope:
                answer = await self._attempt()
        finally:
            self._answer.set_result(answer)

    async def _attempt(self) -> Value[T] | Error:
        try:
            return Value(await self._fn(*self._args))
        except trio.Cancelled:
            raise
        except BaseException as error:  # carried to the asyncio caller, where it is raised again
            return Error(error)

    async def result(self) -> T:
        cancelled = False
        while not self._answer.done():
            try:
                await asyncio.shield(self._answer)
            except asyncio.CancelledError:
                cancelled = True
                self._scope.cancel()
        answer = self._answer.result()
        if cancelled:
            raise asyncio.CancelledError
        return answer.unwrap()


_guests: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Guest] = weakref.WeakKeyDictionary()


async def current_guest() -> Guest:
    """The guest run of the running asyncio loop, started if there is none."""
    loop = asyncio.get_running_loop()
    guest = _guests.get(loop)
    if guest is None:
        guest = _guests[loop] = Guest(loop)
        await guest.start()
    await guest.ready()
    return guest
