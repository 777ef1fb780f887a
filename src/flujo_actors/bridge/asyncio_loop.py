"""Coroutines that need asyncio, called from trio tasks.

Rules:

1. The coroutine becomes a task of the asyncio loop, with the caller's contextvars.
2. Cancelling the trio caller cancels that task and waits for its end: cleanup is over when the call returns.
3. On the same thread (trio is a guest on the loop) the caller stays awake for a few rounds before it parks: an
   idle guest waits for I/O in a thread of its own, and waking it costs more than most calls take.
4. A stream is pumped by one task into a bounded buffer and fetched in batches, so that a crossing is paid per
   batch, and a slow reader stops the pump.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Abort

T = TypeVar("T")

ROUNDS_AWAKE = 10
"""How many scheduling rounds a caller on the loop's own thread waits before it parks."""

STREAM_BUFFER = 64
"""How many pieces of a stream may be ahead of their reader."""


@attrs.frozen(eq=False)
class AsyncioLoop:
    """An asyncio loop that trio tasks may call into, from its own thread or another."""

    loop: asyncio.AbstractEventLoop
    same_thread: bool

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await `make()` on the loop and return its result; see the module's rules."""
        trip: _Trip[T] = _Trip(self, make)
        self.soon(trip.start, contextvars.copy_context())
        if self.same_thread:
            await trip.stay_awake()
        return await trip.arrive()

    def soon(self, fn: Callable[..., object], *args: object) -> None:
        """Call `fn` on the loop's thread."""
        if self.same_thread:
            fn(*args)
        else:
            self.loop.call_soon_threadsafe(fn, *args)

    def stream(self, make: Callable[[], AsyncIterator[T] | Awaitable[AsyncIterator[T]]]) -> AsyncioStream[T]:
        """The pieces of an asynchronous iterator that lives on the loop."""
        return AsyncioStream(self, make)


class _Trip(Generic[T]):
    """One call from a trio task to the loop and back."""

    __slots__ = (
        "_asyncio_task",
        "_bridge",
        "_make",
        "_parked",
        "_raise_cancel",
        "_result",
        "_task",
        "_token",
    )

    def __init__(self, bridge: AsyncioLoop, make: Callable[[], Awaitable[T]]) -> None:
        self._bridge, self._make = bridge, make
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self._result: Value[T] | Error | None = None
        self._asyncio_task: asyncio.Task[None] | None = None
        self._raise_cancel: Callable[[], Any] | None = None
        self._parked = False

    # --- on the loop ---

    def start(self, context: contextvars.Context) -> None:
        self._asyncio_task = self._bridge.loop.create_task(self._ride(), context=context)

    async def _ride(self) -> None:
        result: Value[T] | Error
        try:
            result = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        if self._bridge.same_thread:
            self._finish(result)
        else:
            self._token.run_sync_soon(self._finish, result)

    def _cancel(self) -> None:
        if self._asyncio_task is not None:
            self._asyncio_task.cancel()

    # --- on the trio side ---

    def _finish(self, result: Value[T] | Error) -> None:
        self._result = result
        if self._parked:
            trio.lowlevel.reschedule(self._task)

    async def stay_awake(self) -> None:
        for _ in range(ROUNDS_AWAKE):
            await trio.lowlevel.cancel_shielded_checkpoint()
            if self._result is not None:
                return

    async def arrive(self) -> T:
        if self._result is None:
            self._parked = True
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self._result is not None
        if self._raise_cancel is not None and _was_cancelled(self._result):
            self._raise_cancel()
        return self._result.unwrap()

    def _abort(self, raise_cancel: Callable[[], Any]) -> Abort:
        self._raise_cancel = raise_cancel
        self._bridge.soon(self._cancel)
        return Abort.FAILED


def _was_cancelled(result: Value[Any] | Error) -> bool:
    return isinstance(result, Error) and isinstance(result.error, asyncio.CancelledError)


class AsyncioStream(Generic[T]):
    """The trio end of a stream on the loop: iterate it, then `aclose` it."""

    def __init__(self, bridge: AsyncioLoop, make: Callable[[], AsyncIterator[T] | Awaitable[AsyncIterator[T]]]) -> None:
        self._bridge = bridge
        self._pump: _Pump[T] = _Pump(make)
        self._ready: deque[T] = deque()

    def __aiter__(self) -> AsyncioStream[T]:
        return self

    async def __anext__(self) -> T:
        if not self._ready:
            self._ready.extend(await self._bridge.call(self._pump.batch))
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop the source and wait for its cleanup, also while the caller is being cancelled."""
        with trio.CancelScope(shield=True):
            await self._bridge.call(self._pump.stop)


class _Pump(Generic[T]):
    """The loop's end of a stream: a task that reads the source into a bounded buffer."""

    def __init__(self, make: Callable[[], AsyncIterator[T] | Awaitable[AsyncIterator[T]]]) -> None:
        self._make = make
        self._pieces: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._changed: asyncio.Event

    async def batch(self) -> list[T]:
        """What has come since the last batch, at least one piece; nothing at the end of the stream."""
        if self._task is None:
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        while not self._pieces and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        pieces, self._pieces = self._pieces, []
        self._changed.set()
        if not pieces and self._error is not None:
            raise self._error
        return pieces

    async def _run(self) -> None:
        try:
            await self._read()
        except BaseException as error:  # carried to the reader, after the pieces that came before it
            self._error = error
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)

    async def _read(self) -> None:
        source = self._make()
        if not hasattr(source, "__aiter__"):
            source = await source
        try:
            async for piece in source:
                self._pieces.append(piece)
                self._changed.set()
                while len(self._pieces) >= STREAM_BUFFER:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])


# --- one loop for programs that have none -------------------------------------------------------------------


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
                self._thread = threading.Thread(target=loop.run_forever, name="flujo_actors asyncio", daemon=True)
                self._thread.start()
                self._bridge = AsyncioLoop(loop, False)
            return self._bridge

    def stop(self) -> None:
        with self._lock:
            bridge, thread = self._bridge, self._thread
            self._bridge = self._thread = None
        if bridge is not None and thread is not None:
            bridge.loop.call_soon_threadsafe(bridge.loop.stop)
            thread.join(timeout=5)
            if not thread.is_alive():
                bridge.loop.close()

    def forget(self) -> None:
        """After a fork the thread is gone in the child; a new one is started when it is needed."""
        self.__init__()  # type: ignore[misc]


_loop_thread = _LoopThread()
atexit.register(_loop_thread.stop)
os.register_at_fork(after_in_child=_loop_thread.forget)


def helper_loop() -> AsyncioLoop:
    """The process's own asyncio loop, for asyncio-only code under a trio host."""
    return _loop_thread.bridge()
