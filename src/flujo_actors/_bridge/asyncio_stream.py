"""Streams of asyncio, read by trio tasks.

Rules:

1. A stream is pumped by one task of the loop into a bounded buffer and fetched in batches, so that a crossing is paid
   per batch, and a slow reader stops the pump.
2. In the loop's own thread the pump wakes its reader by itself. In another thread each batch is a call.
3. A reader that is cancelled stops the pump at once; closing the stream waits for the source's cleanup.
4. A source that goes on after its cancellation is left at its next piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import trio
from trio.lowlevel import Abort

from .eager_call import cancel_once
from .guest_rounds import Rounds

if TYPE_CHECKING:
    from .to_asyncio import AsyncioLoop

T = TypeVar("T")

STREAM_BUFFER = 64
"""How many pieces of a stream may be ahead of their reader."""


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
            rounds.keep_awake.wake()
            trio.lowlevel.reschedule(reader)

        def give_up(_: object) -> Abort:
            self._pump.tell = None
            rounds.give_way()
            if not self._bridge.loop.is_closed():
                self._pump.give_up()
            return Abort.SUCCEEDED

        rounds.keep_awake.keep()
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
