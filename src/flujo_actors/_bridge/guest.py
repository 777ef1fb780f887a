"""Trio in guest mode on asyncio: one guest run per loop.

Rules:

1. The guest starts with the first call on its loop and ends when the loop shuts down, which asyncio announces
   by closing its async generators: one of them is ours.
2. A caller's contextvars are those of its trio task.
3. Cancelling the asyncio caller cancels the trio task, and the call returns, with the same cancellation,
   when that task has ended.
4. A guest belongs to one thread and one loop. A loop that was closed without an announcement leaves its guest
   behind: it is ended by the next caller in the thread, or when the process ends.
5. Ctrl-C belongs to the host: one that trio caught is passed back to the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import trio
from outcome import Error, Outcome, Value

from .guest_scheduler import GuestScheduler
from .host_loop import ReceivePort
from .to_trio import TrioCall

T = TypeVar("T")

ORPHAN_GRACE_S = 5.0
"""Idle time after which a closed loop's guest is abandoned."""


class Guest:
    """The trio run of one asyncio loop."""

    nursery: trio.Nursery
    host: Any = None
    """Host of the programs on this loop, created on demand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rounds = GuestScheduler(loop)
        self.thread = threading.get_ident()
        self._loop = loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended = asyncio.Event()
        self._scope = trio.CancelScope()
        self._interrupt: KeyboardInterrupt | None = None
        self._calls: set[TrioCall[Any]] = set()
        self._watch = self._until_loop_shutdown()

    # --- from the first call to the last ---

    async def start(self) -> None:
        """Start the guest run; waiters get its failure, too."""
        await anext(self._watch)
        try:
            self._begin()
        except BaseException as error:  # passed to all waiters of this guest, the caller among them
            self._forget()
            self._ready.set_exception(error)

    def _begin(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self.rounds.soon_threadsafe,
            run_sync_soon_not_threadsafe=self.rounds.soon,
            done_callback=self._end,
            host_uses_signal_set_wakeup_fd=True,
            restrict_keyboard_interrupt_to_checkpoints=True,
            clock=getattr(self._loop, "trio_clock", None),  # of a loop that has a time of its own
        )
        if self.rounds.detach_loop():
            sys.set_asyncgen_hooks(*hooks)

    async def ready(self) -> None:
        """Wait until the guest takes calls."""
        if not self._ready.done():
            await asyncio.shield(self._ready)
        self._ready.result()

    async def _main(self) -> None:
        self.rounds.begin()
        with self._scope:
            async with trio.open_nursery() as self.nursery:
                self._ready.set_result(None)
                try:
                    await self.rounds.keep_awake.watch()
                except KeyboardInterrupt as interrupt:
                    self._interrupt = interrupt
                    self._scope.cancel()

    async def _until_loop_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if _guests.get(self._loop) is self:
                self._scope.cancel()
                await self._ended.wait()

    def _end(self, result: Outcome[None]) -> None:
        self._forget()
        self.rounds.end()
        self._ended.set()
        for call in self._calls:
            call.abort(result)
        if self._interrupt is not None:
            raise self._interrupt  # into the loop, which it stops
        result.unwrap()  # an error is reported by the loop

    def _forget(self) -> None:
        if _guests.get(self._loop) is self:
            del _guests[self._loop]

    def cancellation_error(self) -> BaseException:
        """Return the exception of a call that ends with the guest."""
        interrupt, self._interrupt = self._interrupt, None
        return interrupt or asyncio.CancelledError("the run was cancelled: its loop is shutting down")

    # --- after its loop was closed ---

    @property
    def orphaned(self) -> bool:
        """Return whether the loop closed without ending the guest, in this thread."""
        return self._loop.is_closed() and self.thread == threading.get_ident()

    def end_alone(self) -> None:
        """End the guest of a closed loop by taking the loop's place."""
        hooks = sys.get_asyncgen_hooks()
        self._scope.cancel()
        try:
            while _guests.get(self._loop) is self:
                self.rounds.next_without_loop(ORPHAN_GRACE_S)
        except queue.Empty:
            self._forget()
        finally:
            sys.set_asyncgen_hooks(*hooks)  # an ending run restores its previous hooks, here those of a dead loop

    # --- calls ---

    async def call(self, fn: Callable[..., Awaitable[T]], *args: object) -> T:
        """Await a trio function from asyncio; see the module's rules."""
        call: TrioCall[T] = TrioCall(self, self._loop, fn, args)
        self.spawn(call.work)
        self._calls.add(call)
        try:
            reply = await call.reply()
        finally:
            self._calls.discard(call)
        return reply.unwrap()

    def into_trio(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` in the trio run's thread, which is the loop's."""
        fn(*args)

    def into_asyncio(self, _: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
        """The same the other way."""
        fn(*args)
        self.rounds.keep_awake.keep()  # the caller may make another call

    async def receive(self, box: ReceivePort[T]) -> T:
        """Return the next item of a trio channel, without a guest task."""
        arrival: asyncio.Future[Value[T] | Error] | None = self._loop.create_future()

        def deliver(what: Value[T] | Error) -> None:
            if arrival is not None and not arrival.done() and not self._loop.is_closed():
                arrival.set_result(what)

        box.deliver_next(deliver)
        assert arrival is not None
        try:
            return (await arrival).unwrap()
        except trio.EndOfChannel:
            if self._scope.cancel_called:  # then it is not the end of the channel
                raise self.cancellation_error() from None
            raise
        finally:
            box.withdraw(deliver)
            arrival = (
                None  # it holds the end of the channel, whose traceback holds this frame and, with it, the whole run
            )

    def spawn(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a trio task with the caller's contextvars."""
        if self._ended.is_set():
            raise asyncio.CancelledError("the loop is shutting down: its trio run has ended")
        self.rounds.keep_awake.wake()
        self.nursery.start_soon(fn, *args)


_guests: dict[asyncio.AbstractEventLoop, Guest] = {}


async def current_guest() -> Guest:
    """Return the guest run of the running asyncio loop, started on demand."""
    loop = asyncio.get_running_loop()
    guest = _guests.get(loop)
    if guest is None:
        end_orphans()
        guest = _guests[loop] = Guest(loop)
        await guest.start()
    await guest.ready()
    return guest


def end_orphans() -> None:
    """End the guests that closed loops left behind in this thread."""
    for guest in list(_guests.values()):
        if guest.orphaned:
            guest.end_alone()


atexit.register(end_orphans)
