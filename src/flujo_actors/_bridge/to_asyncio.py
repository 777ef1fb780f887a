"""Calls from trio into asyncio, in this thread or in another.

Rules:

1. The coroutine becomes a task of the asyncio loop, with the caller's contextvars.
2. Cancelling the trio caller cancels that task and waits for its end: cleanup is over when the call returns.
   An unstarted task is cancelled at its first `await`, as in trio; a queued call (see `StartQueue`) does not start.
3. A call always returns: also from a task that other code cancelled, or whose loop was closed.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Abort

from .._core.attempt_results import PLAIN
from .guest_scheduler import GuestScheduler, IdleTimer
from .host_loop import CHUNKS_IN_A_ROW
from .loop_call import Deferred, LoopCall, StartQueue, cancel_once, context_for_asyncio, was_cancelled

if TYPE_CHECKING:
    from .host_loop import ChunkConsumer

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")
H = TypeVar("H")

STREAM_BUFFER = 64
"""Maximum number of chunks ahead of a reader in another thread."""

CROSSING_S = 0.001
"""Batching time after a crossing, which takes a tenth of it."""

_LEFT = "the stream was closed: its reader was cancelled"


class ChunkQueue(Protocol[T_contra]):
    """Chunk queue of a producer on the loop."""

    def accept(self, chunk: T_contra) -> bool:
        """Accept a chunk; after False, await `wait_for_room` before the next one."""

    async def wait_for_room(self) -> None:
        """Wait until another chunk is accepted."""


class SameThreadQueue(Generic[T, H]):
    """Chunk queue of a reader in the loop's thread (rule 2)."""

    __slots__ = ("_held", "_in_a_row", "_taker", "_task")

    def __init__(self, taker: ChunkConsumer[T, H]) -> None:
        self._taker, self._task = taker, asyncio.current_task()
        self._held: H | None = None
        self._in_a_row = 0

    def accept(self, chunk: T) -> bool:
        if self._task is not None and self._task.cancelling():
            raise asyncio.CancelledError(_LEFT)
        self._held = self._taker.accept(chunk)
        self._in_a_row += 1
        return self._held is None and self._in_a_row < CHUNKS_IN_A_ROW

    async def wait_for_room(self) -> None:
        """Wait for room, or yield after a number of chunks."""
        self._in_a_row = 0
        if self._held is None:
            await asyncio.sleep(0)
        else:
            held, self._held = self._held, None
            await self._accepted(held)

    async def _accepted(self, held: H) -> None:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[Value[object] | Error] = loop.create_future()

        def settle(what: Value[object] | Error) -> None:
            if not accepted.done() and not loop.is_closed():
                accepted.set_result(what)

        box = self._taker.box
        assert box is not None
        box.put_or_wait(held, settle)
        try:
            (await accepted).unwrap()
        finally:
            box.withdraw(settle)


class CrossThreadQueue(Generic[T, R]):
    """Chunk queue of a reader in another thread (rule 3)."""

    def __init__(self, produce: Callable[[ChunkQueue[T]], Awaitable[R]]) -> None:
        self._produce = produce
        self._chunks: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self._ended: Value[R] | Error | None = None
        self._stopped = False
        self._changed: asyncio.Event
        self._crossed_at = -math.inf

    # --- the producer's side ---

    async def _run(self) -> None:
        try:
            self._ended = Value(await self._produce(self))
        except BaseException as error:  # carried to the reader after the earlier chunks
            self._ended = Error(error)
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)

    def accept(self, chunk: T) -> bool:
        if self._stopped:
            raise asyncio.CancelledError(_LEFT)
        self._chunks.append(chunk)
        if len(self._chunks) == 1:  # there is no waiter while there are chunks
            self._changed.set()
        return len(self._chunks) < STREAM_BUFFER

    async def wait_for_room(self) -> None:
        """Wait until the reader has fetched the batch."""
        while len(self._chunks) >= STREAM_BUFFER:
            self._changed.clear()
            await self._changed.wait()

    # --- the reader's side, on the loop ---

    async def batch(self) -> list[T]:
        """Return the chunks since the last batch; empty at the end."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._changed = asyncio.Event()
            self._task = loop.create_task(self._run())
        try:
            await self._gathered(self._task, loop)
        except asyncio.CancelledError:
            self._stop(self._task)  # at once: the reader's own call of `stop` takes another crossing
            raise
        pieces, self._chunks = self._chunks, []
        self._crossed_at = loop.time()
        self._changed.set()
        return pieces

    async def _gathered(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        while not self._chunks and not task.done():
            self._changed.clear()
            await self._changed.wait()
        left_s = self._crossed_at + CROSSING_S - loop.time()
        if left_s > 0 and len(self._chunks) < STREAM_BUFFER and not task.done():
            await asyncio.sleep(left_s)

    async def stop(self) -> None:
        """End the producer and wait for its cleanup."""
        if self._task is not None:
            self._stop(self._task)
            await asyncio.wait([self._task])

    def _stop(self, task: asyncio.Task[None]) -> None:
        self._stopped = True
        cancel_once(task)

    def result(self) -> R:
        """Return the producer's result, or raise its exception."""
        assert self._ended is not None
        return self._ended.unwrap()


async def pumped(
    bridge: AsyncioLoop, produce: Callable[[ChunkQueue[T]], Awaitable[R]], taker: ChunkConsumer[T, H]
) -> R:
    """Run a producer for another thread's trio task; return its result."""
    pump: CrossThreadQueue[T, R] = CrossThreadQueue(produce)
    try:
        pieces = await bridge.call(pump.batch)
        while pieces:
            for chunk in pieces:
                held = taker.accept(chunk)
                if held is not None and taker.box is not None:
                    await taker.box.put(held)
            # A producer that never waits has its next chunks ready before a cancellation could reach the fetching.
            await trio.lowlevel.checkpoint_if_cancelled()
            pieces = await bridge.call_nested(pump.batch)
    finally:
        with trio.CancelScope(shield=True):
            await bridge.call_nested(pump.stop)
    return pump.result()


async def stream_chunks(make: Callable[[], object], last: tuple[type, ...], intake: ChunkQueue[object]) -> object:
    """Pass an iterator's chunks to a queue; return a final `last`."""
    source: Any = make()
    if not hasattr(source, "__aiter__"):
        source = await source
    try:
        async for chunk in source:
            if type(chunk) not in PLAIN and isinstance(chunk, last):
                return chunk
            if not intake.accept(chunk):
                await intake.wait_for_room()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
    return None


P = TypeVar("P")


@attrs.frozen(eq=False)
class AsyncioLoop:
    """asyncio loop callable by trio tasks, from its own thread or another."""

    loop: asyncio.AbstractEventLoop
    rounds: GuestScheduler | None = None
    """Guest scheduler of the loop's thread; `None` for other threads."""
    starts: StartQueue = attrs.field(
        init=False, default=attrs.Factory(lambda self: StartQueue(self.loop), takes_self=True)
    )
    """The calls that wait for their turn to begin."""

    @property
    def same_thread(self) -> bool:
        """Return whether callers run on the loop's own thread, as a guest."""
        return self.rounds is not None

    @property
    def keep_awake(self) -> IdleTimer | None:
        """Return the wake-keeper of the guest run."""
        return None if self.rounds is None else self.rounds.keep_awake

    def call(self, make: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Return the result of `make()` on the loop; see the module's rules."""
        if self.rounds is not None:
            return LoopCall(self, Deferred(make), eager=False).run()
        return ThreadCall(self.loop, self.starts, make).run()

    async def call_nested(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call from another thread as part of a started call, without queueing."""
        return await ThreadCall(self.loop, StartQueue(self.loop), make).run()

    def finish(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await an existing awaitable on the loop of this thread."""
        return LoopCall(self, awaitable, eager=True).run()

    def produced(self, produce: Callable[[ChunkQueue[P]], Awaitable[T]], taker: ChunkConsumer[P, H]) -> Awaitable[T]:
        """Return a producer's result while its chunks are consumed."""
        if self.rounds is None:
            return pumped(self, produce, taker)
        return LoopCall(self, Deferred(lambda: produce(SameThreadQueue(taker))), eager=False).run()


class ThreadCall(Generic[T]):
    """One call from trio to another thread's loop and back."""

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

    def __init__(self, loop: asyncio.AbstractEventLoop, starts: StartQueue, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._starts, self._make = loop, starts, make
        self._token = trio.lowlevel.current_trio_token()
        self._task = trio.lowlevel.current_task()
        self._result: Value[T] | Error | None = None
        self._running: asyncio.Task[None] | None = None
        self._begun = self._cancelled = False
        self._raise_cancel: Callable[[], object] | None = None

    async def run(self) -> T:
        """Return the trio side."""
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
            return Abort.SUCCEEDED  # there is no waiter any more
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
        self._starts.running += 1
        self._running.add_done_callback(self._ensure_awaited)

    async def _main(self) -> None:
        self._begun = True
        if self._cancelled and (myself := asyncio.current_task()) is not None:
            myself.cancel()
        try:
            result: Value[T] | Error = Value(await self._make())
        except BaseException as error:  # carried to the trio side, which is where it is dealt with
            result = Error(error)
        self._starts.running -= 1
        self._token.run_sync_soon(self._arrive, result)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._running is None:
            self._cancel_unstarted()
        elif self._begun:
            cancel_once(self._running)

    def _ensure_awaited(self, task: asyncio.Task[None]) -> None:
        if not self._begun:
            self._starts.running -= 1
            self._cancel_unstarted()

    def _cancel_unstarted(self) -> None:
        _dismiss(self._make)
        self._token.run_sync_soon(self._arrive, Error(asyncio.CancelledError("cancelled before it began")))


def _dismiss(make: Callable[[], Awaitable[object]]) -> None:
    """Close what will never be awaited, without a warning."""
    close = getattr(make(), "close", None)
    if close is not None:
        close()


_under_way: set[ThreadCall[Any]] = set()


_waiting: list[object] = []


@contextlib.contextmanager
def waiting_on_trio() -> Iterator[None]:
    """Mark a call whose asyncio code waits for the trio clock."""
    _waiting.append(None)
    try:
        yield
    finally:
        _waiting.pop()


def calls_in_flight() -> int:
    """Return the number of open calls that do not wait for trio."""
    return max(0, len(_under_way) - len(_waiting))


# --- one loop for programs that have none -------------------------------------------------------------------


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped.

    asyncio leaves its loop when a task raises `KeyboardInterrupt` or `SystemExit`. Here the exception is in the task's
    result, which has a waiter, and the other tasks must continue.
    """
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


class _LoopThread:
    """asyncio loop in a daemon thread, from first call to process end."""

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
        """Drop the loop after a fork, which has no thread for it."""
        self.__init__()  # type: ignore[misc]


def _announce_shutdown(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop's async generators, as `asyncio.run` does."""
    closing = asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop)
    with contextlib.suppress(concurrent.futures.TimeoutError):
        closing.result(timeout=5)


_loop_thread = _LoopThread()
atexit.register(_loop_thread.stop)
os.register_at_fork(after_in_child=_loop_thread.forget)


def helper_loop() -> AsyncioLoop:
    """Return the process's asyncio loop for code under a trio host."""
    return _loop_thread.bridge()
