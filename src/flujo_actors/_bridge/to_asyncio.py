"""Calls from trio into asyncio: coroutines that need its event loop, in this thread or in another.

Rules:

1. The coroutine becomes a task of the asyncio loop, with the caller's contextvars.
2. Cancelling the trio caller cancels that task and waits for its end: cleanup is over when the call returns.
   A task that has not begun is cancelled at its first `await`, as trio would do it; a call whose turn to begin has not
   come (see `starts`) does not begin.
3. A call always comes back: also from a task that somebody else cancelled, or whose loop was closed.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Abort

from .asyncio_stream import Here, Intake, pumped
from .eager_call import EagerCall, cancel_once, context_for_asyncio, was_cancelled
from .guest_rounds import KeepAwake, Rounds
from .long_call import LongCall
from .starts import Starts

if TYPE_CHECKING:
    from .taking import Taker

T = TypeVar("T")
P = TypeVar("P")
H = TypeVar("H")


@attrs.frozen(eq=False)
class AsyncioLoop:
    """An asyncio loop that trio tasks may call into, from its own thread or another."""

    loop: asyncio.AbstractEventLoop
    rounds: Rounds | None = None
    """Of the guest run on the loop's own thread; `None` if the callers are in another thread."""
    starts: Starts = attrs.field(init=False, default=attrs.Factory(lambda self: Starts(self.loop), takes_self=True))
    """The calls that wait for their turn to begin."""

    @property
    def same_thread(self) -> bool:
        """Whether callers run on the loop's own thread, as a guest."""
        return self.rounds is not None

    @property
    def keep_awake(self) -> KeepAwake | None:
        """What keeps the guest run awake."""
        return None if self.rounds is None else self.rounds.keep_awake

    def call(self, make: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """What `make()` comes to on the loop; see the module's rules."""
        if self.rounds is not None:
            return LongCall(self.loop, self.rounds, self.starts, make).run()
        return ThreadCall(self.loop, self.starts, make).run()

    async def go_on(self, make: Callable[[], Awaitable[T]]) -> T:
        """As `call`, from another thread, for what is part of a call that has begun: it waits for no turn."""
        return await ThreadCall(self.loop, Starts(self.loop), make).run()

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await what was made elsewhere on the loop, whose thread this is."""
        assert self.rounds is not None
        coroutine = awaitable if type(awaitable) is CoroutineType else _awaited(awaitable)
        return EagerCall(self.loop, self.rounds, coroutine).run()

    def produced(self, produce: Callable[[Intake[P]], Awaitable[T]], taker: Taker[P, H]) -> Awaitable[T]:
        """What a producer on the loop comes to, whose pieces are taken meanwhile; see `asyncio_stream`."""
        if self.rounds is None:
            return pumped(self, produce, taker)
        return LongCall(self.loop, self.rounds, self.starts, lambda: produce(Here(taker))).run()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class ThreadCall(Generic[T]):
    """One call from a trio task to a loop in another thread and back."""

    __slots__ = (
        "_begun",
        "_cancelled",
        "_loop",
        "_make",
        "_raise_cancel",
        "_result",
        "_running",
        "_starts",
        "_task",
        "_token",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, starts: Starts, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._starts, self._make = loop, starts, make
        self._token = trio.lowlevel.current_trio_token()
        self._task = trio.lowlevel.current_task()
        self._result: Value[T] | Error | None = None
        self._running: asyncio.Task[None] | None = None
        self._begun = self._cancelled = False
        self._raise_cancel: Callable[[], object] | None = None

    async def run(self) -> T:
        """The trio side."""
        _under_way.add(self)
        try:
            return await self._crossed()
        finally:
            _under_way.discard(self)

    async def _crossed(self) -> T:
        if self._loop.is_closed():
            _dismiss(self._make)
            raise RuntimeError("the asyncio loop that this call needs is closed")
        begin = functools.partial(self._begin, context_for_asyncio(contextvars.copy_context()))
        self._loop.call_soon_threadsafe(self._starts.add, begin)
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self._result is not None
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()
        return self._result.unwrap()

    def _abort(self, raise_cancel: Callable[[], object]) -> Abort:
        if self._loop.is_closed():
            return Abort.SUCCEEDED  # nobody is left to answer
        self._raise_cancel = raise_cancel
        self._loop.call_soon_threadsafe(self._cancel)
        return Abort.FAILED

    def _arrive(self, result: Value[T] | Error) -> None:
        self._result = result
        trio.lowlevel.reschedule(self._task)

    # --- on the loop ---

    def _begin(self, context: contextvars.Context) -> None:
        if self._cancelled:
            return
        self._running = self._loop.create_task(self._main(), context=context)
        self._starts.under_way += 1
        self._running.add_done_callback(self._make_sure)

    async def _main(self) -> None:
        self._begun = True
        if self._cancelled and (myself := asyncio.current_task()) is not None:
            myself.cancel()
        try:
            result: Value[T] | Error = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._starts.under_way -= 1
        self._token.run_sync_soon(self._arrive, result)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._running is None:
            self._give_up()
        elif self._begun:
            cancel_once(self._running)

    def _make_sure(self, task: asyncio.Task[None]) -> None:
        if not self._begun:
            self._starts.under_way -= 1
            self._give_up()

    def _give_up(self) -> None:
        _dismiss(self._make)
        self._token.run_sync_soon(self._arrive, Error(asyncio.CancelledError("cancelled before it began")))


def _dismiss(make: Callable[[], Awaitable[object]]) -> None:
    """Let go of what will never be awaited, without a warning about it."""
    close = getattr(make(), "close", None)
    if close is not None:
        close()


_under_way: set[ThreadCall[Any]] = set()


def calls_under_way() -> int:
    """How many calls of trio tasks have not come back from another thread's loop, in the whole process."""
    return len(_under_way)


# --- one loop for programs that have none -------------------------------------------------------------------


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is told to stop.

    asyncio leaves its loop when a task raises `KeyboardInterrupt` or `SystemExit`. Here the exception is in the task's
    result, which somebody waits for, and the other tasks have to go on.
    """
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


class _LoopThread:
    """An asyncio loop in a daemon thread: started at the first call, alive until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bridge: AsyncioLoop | None = None
        self._thread: threading.Thread | None = None

    def bridge(self) -> AsyncioLoop:
        with self._lock:
            if self._bridge is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop,), name="flujo_actors asyncio", daemon=True)
                self._thread.start()
                self._bridge = AsyncioLoop(loop)
            return self._bridge

    def stop(self) -> None:
        with self._lock:
            bridge, thread = self._bridge, self._thread
            self._bridge = self._thread = None
        if bridge is not None and thread is not None:
            _announce_shutdown(bridge.loop)
            bridge.loop.call_soon_threadsafe(bridge.loop.stop)
            thread.join(timeout=5)
            if not thread.is_alive():
                bridge.loop.close()

    def forget(self) -> None:
        """After a fork the thread is gone in the child; a new one is started when it is needed."""
        self.__init__()  # type: ignore[misc]


def _announce_shutdown(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop's async generators, as `asyncio.run` does: connection pools end with one of theirs."""
    closing = asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop)
    with contextlib.suppress(concurrent.futures.TimeoutError):
        closing.result(timeout=5)


_loop_thread = _LoopThread()
atexit.register(_loop_thread.stop)
os.register_at_fork(after_in_child=_loop_thread.forget)


def helper_loop() -> AsyncioLoop:
    """The process's own asyncio loop, for asyncio-only code under a trio host."""
    return _loop_thread.bridge()
