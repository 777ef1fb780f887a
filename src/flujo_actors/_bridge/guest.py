"""Trio in guest mode on an asyncio event loop: one guest run per loop, shared by every caller.

Rules:

1. The guest starts with the first call on its loop and ends when the loop shuts down, which asyncio announces
   by closing its async generators: one of them is ours.
2. A caller's contextvars are those of the trio task that works for it.
3. Cancelling the asyncio caller cancels the trio task, and the call returns, with the very cancellation it
   was given, when that task has ended.
4. A guest belongs to one thread and one loop. A loop that was closed without announcing it leaves its guest
   behind: it is brought to its end by the next who needs the thread, or when the process ends.
5. Ctrl-C is the host's business: one that trio caught is handed back to the loop.
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

from .guest_rounds import Rounds
from .host import Box
from .to_trio import TrioCall

T = TypeVar("T")

ORPHAN_GRACE_S = 5.0
"""How long the guest of a closed loop may do nothing before it is given up."""


class Guest:
    """The trio run of one asyncio loop."""

    nursery: trio.Nursery
    host: Any = None
    """Who makes calls for the programs on this loop, once somebody has asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rounds = Rounds(loop)
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
        """Begin the guest run; whoever waits until it is ready learns of a failure, too."""
        await anext(self._watch)
        try:
            self._begin()
        except BaseException as error:  # told to everybody who waits for this guest, the caller among them
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
        if self.rounds.take_over():
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
            call.lose(result)
        if self._interrupt is not None:
            raise self._interrupt  # into the loop, which it stops
        result.unwrap()  # an error is reported by the loop

    def _forget(self) -> None:
        if _guests.get(self._loop) is self:
            del _guests[self._loop]

    def why_cut_short(self) -> BaseException:
        """What a call raises that ends with the guest: the interrupt, if it is the first to hear of it."""
        interrupt, self._interrupt = self._interrupt, None
        return interrupt or asyncio.CancelledError("the run was cancelled: its loop is shutting down")

    # --- after its loop was closed ---

    @property
    def orphaned(self) -> bool:
        """Whether the loop was closed without ending the guest, and this is the thread to do it."""
        return self._loop.is_closed() and self.thread == threading.get_ident()

    def end_alone(self) -> None:
        """End the guest of a closed loop by taking the loop's place."""
        hooks = sys.get_asyncgen_hooks()
        self._scope.cancel()
        try:
            while _guests.get(self._loop) is self:
                self.rounds.take_without_loop(ORPHAN_GRACE_S)
        except queue.Empty:
            self._forget()
        finally:
            sys.set_asyncgen_hooks(*hooks)  # a run that ends brings back the hooks it found, here a dead loop's

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
        self.rounds.keep_awake.keep()  # the caller may well have another call to make

    async def receive(self, box: Box[T]) -> T:
        """The next item of a box that trio tasks put into, without a task of the guest's to wait for it."""
        arrival: asyncio.Future[Value[T] | Error] | None = self._loop.create_future()

        def deliver(what: Value[T] | Error) -> None:
            if arrival is not None and not arrival.done() and not self._loop.is_closed():
                arrival.set_result(what)

        box.hand_next_to(deliver)
        assert arrival is not None
        try:
            return (await arrival).unwrap()
        except trio.EndOfChannel:
            if self._scope.cancel_called:  # then it is not the box that came to its end
                raise self.why_cut_short() from None
            raise
        finally:
            box.withdraw(deliver)
            arrival = None  # it holds the end of the box, whose traceback holds this frame and, with it, the whole run

    def spawn(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a trio task with the caller's contextvars."""
        if self._ended.is_set():
            raise asyncio.CancelledError("the loop is shutting down: its trio run has ended")
        self.rounds.keep_awake.wake()
        self.nursery.start_soon(fn, *args)


_guests: dict[asyncio.AbstractEventLoop, Guest] = {}


async def current_guest() -> Guest:
    """The guest run of the running asyncio loop, started if there is none."""
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
