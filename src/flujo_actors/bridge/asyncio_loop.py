"""Coroutines that need asyncio, called from trio tasks.

Rules:

1. The coroutine becomes a task of the asyncio loop, with the caller's contextvars.
2. Cancelling the trio caller cancels that task and waits for its end: cleanup is over when the call returns.
   A task that has not begun is cancelled at its first `await`, as trio would do it.
3. A call always comes back: also from a task that somebody else cancelled, or whose loop was closed.
4. A stream is pumped by one task into a bounded buffer and fetched in batches, so that a crossing is paid per
   batch, and a slow reader stops the pump. In the loop's own thread a batch needs no task of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import CoroutineType
from typing import Any, Generic, TypeVar

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Abort

from .errand import Errand, cancel_once, context_for_asyncio, was_cancelled
from .rounds import Rounds
from .vigil import Vigil

T = TypeVar("T")

STREAM_BUFFER = 64
"""How many pieces of a stream may be ahead of their reader."""


@attrs.frozen(eq=False)
class AsyncioLoop:
    """An asyncio loop that trio tasks may call into, from its own thread or another."""

    loop: asyncio.AbstractEventLoop
    rounds: Rounds | None = None
    """Of the guest run on the loop's own thread; `None` if the callers are in another thread."""

    @property
    def same_thread(self) -> bool:
        """Whether callers run on the loop's own thread, as a guest."""
        return self.rounds is not None

    @property
    def vigil(self) -> Vigil | None:
        """What keeps the guest run awake."""
        return None if self.rounds is None else self.rounds.vigil

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await `make()` on the loop and return its result; see the module's rules."""
        if self.rounds is not None:
            return await Errand(self.loop, self.rounds, _made(make)).run()
        return await _Trip(self.loop, make).there_and_back()

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await what was made elsewhere on the loop, whose thread this is."""
        assert self.rounds is not None
        coroutine = awaitable if type(awaitable) is CoroutineType else _awaited(awaitable)
        return Errand(self.loop, self.rounds, coroutine).run()

    def stream(self, make: Callable[[], AsyncIterator[T] | Awaitable[AsyncIterator[T]]]) -> AsyncioStream[T]:
        """The pieces of an asynchronous iterator that lives on the loop."""
        return AsyncioStream(self, make)


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _Trip(Generic[T]):
    """One call from a trio task to a loop in another thread and back."""

    __slots__ = ("_begun", "_cancelled", "_loop", "_make", "_passenger", "_raise_cancel", "_result", "_task", "_token")

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._make = loop, make
        self._token = trio.lowlevel.current_trio_token()
        self._task = trio.lowlevel.current_task()
        self._result: Value[T] | Error | None = None
        self._passenger: asyncio.Task[None] | None = None
        self._begun = self._cancelled = False
        self._raise_cancel: Callable[[], Any] | None = None

    async def there_and_back(self) -> T:
        """The trio side."""
        _under_way.add(self)
        try:
            return await self._travel()
        finally:
            _under_way.discard(self)

    async def _travel(self) -> T:
        if self._loop.is_closed():
            _dismiss(self._make)
            raise RuntimeError("the asyncio loop that this call needs is closed")
        self._loop.call_soon_threadsafe(self._depart, context_for_asyncio(contextvars.copy_context()))
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self._result is not None
        if self._raise_cancel is not None and was_cancelled(self._result):
            self._raise_cancel()
        return self._result.unwrap()

    def _abort(self, raise_cancel: Callable[[], Any]) -> Abort:
        if self._loop.is_closed():
            return Abort.SUCCEEDED  # nobody is left to answer
        self._raise_cancel = raise_cancel
        self._loop.call_soon_threadsafe(self._cancel)
        return Abort.FAILED

    def _arrive(self, result: Value[T] | Error) -> None:
        self._result = result
        trio.lowlevel.reschedule(self._task)

    # --- on the loop ---

    def _depart(self, context: contextvars.Context) -> None:
        self._passenger = self._loop.create_task(self._ride(), context=context)
        self._passenger.add_done_callback(self._make_sure)

    async def _ride(self) -> None:
        self._begun = True
        if self._cancelled and (myself := asyncio.current_task()) is not None:
            myself.cancel()
        try:
            result: Value[T] | Error = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._token.run_sync_soon(self._arrive, result)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._begun and self._passenger is not None:
            cancel_once(self._passenger)

    def _make_sure(self, passenger: asyncio.Task[None]) -> None:
        if not self._begun:
            _dismiss(self._make)
            self._token.run_sync_soon(self._arrive, Error(asyncio.CancelledError("cancelled before it began")))


def _dismiss(make: Callable[[], Awaitable[Any]]) -> None:
    """Let go of what will never be awaited, without a warning about it."""
    close = getattr(make(), "close", None)
    if close is not None:
        close()


_under_way: set[_Trip[Any]] = set()


def calls_under_way() -> int:
    """How many calls of trio tasks have not come back from another thread's loop, in the whole process."""
    return len(_under_way)


class AsyncioStream(Generic[T]):
    """The trio end of a stream on the loop: iterate it, then `aclose` it."""

    def __init__(self, bridge: AsyncioLoop, make: Callable[[], AsyncIterator[T] | Awaitable[AsyncIterator[T]]]) -> None:
        self._bridge = bridge
        self._pump: _Pump[T] = _Pump(make)
        self._ready: deque[T] = deque()

    def __aiter__(self) -> AsyncioStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._ready:
            return self._ready.popleft()
        await self._fetch()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def _fetch(self) -> None:
        # A source that never waits has its next pieces ready before a cancellation could reach the fetching.
        await trio.lowlevel.checkpoint_if_cancelled()
        rounds, pump = self._bridge.rounds, self._pump
        if rounds is None or not pump.begun:
            self._ready.extend(await self._bridge.call(pump.batch))
            return
        if not pump.has_news:
            await self._news(rounds)
        self._ready.extend(pump.fetched())

    async def _news(self, rounds: Rounds) -> None:
        """Wait for the pump of a loop in this thread: it wakes the reader by itself, without a task to ask it."""
        reader = trio.lowlevel.current_task()

        def wake() -> None:
            rounds.vigil.wake()
            trio.lowlevel.reschedule(reader)

        def give_up(_: object) -> Abort:
            self._pump.tell = None
            if not self._bridge.loop.is_closed():
                self._pump.give_up()
            return Abort.SUCCEEDED

        rounds.vigil.keep()
        self._pump.tell = wake
        await trio.lowlevel.wait_task_rescheduled(give_up)

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
        self._stopped = False
        self._changed: asyncio.Event
        self.tell: Callable[[], None] | None = None
        """Whom to tell of news, once; only on the loop's own thread."""

    @property
    def begun(self) -> bool:
        """Whether there is a task that reads the source."""
        return self._task is not None

    @property
    def has_news(self) -> bool:
        """Whether pieces are waiting, or the source has ended."""
        return bool(self._pieces) or self._task is None or self._task.done()

    async def batch(self) -> list[T]:
        """What has come since the last batch, at least one piece; nothing at the end of the stream."""
        if self._task is None:
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            await self._news(self._task)
        except asyncio.CancelledError:
            self._stop(self._task)  # at once: the reader's own way to `stop` takes another crossing
            raise
        return self.fetched()

    def fetched(self) -> list[T]:
        """What has come by now, on the loop's own thread; nothing at the end of the stream, or what it ended with."""
        if not self._pieces:
            self._raise_error()
            return []
        pieces, self._pieces = self._pieces, []
        self._changed.set()
        return pieces

    async def _news(self, task: asyncio.Task[None]) -> None:
        while not self._pieces and not task.done():
            self._changed.clear()
            await self._changed.wait()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _run(self) -> None:
        try:
            await self._read()
        except BaseException as error:  # carried to the reader, after the pieces that came before it
            self._error = error
        finally:
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._changed.set()
        if self.tell is not None:
            tell, self.tell = self.tell, None
            tell()

    async def _read(self) -> None:
        source = self._make()
        if not hasattr(source, "__aiter__"):
            source = await source
        try:
            async for piece in source:
                if self._stopped:
                    break  # a source that ignores its cancellation is left at its next piece
                self._pieces.append(piece)
                if len(self._pieces) == 1:  # nobody waits for news while there are some
                    self._announce()
                elif len(self._pieces) >= STREAM_BUFFER:
                    await self._room()
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()

    async def _room(self) -> None:
        while len(self._pieces) >= STREAM_BUFFER:
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """End the source; what its cleanup raises is raised here."""
        if self._task is None:
            return
        self._stop(self._task)
        await asyncio.wait([self._task])
        if not isinstance(self._error, asyncio.CancelledError):
            self._raise_error()

    def give_up(self) -> None:
        """Let the source end, without waiting for its end."""
        if self._task is not None:
            self._stop(self._task)

    def _stop(self, task: asyncio.Task[None]) -> None:
        self._stopped = True
        cancel_once(task)


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
