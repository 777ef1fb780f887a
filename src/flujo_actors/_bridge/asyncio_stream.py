"""Streams of asyncio, whose pieces are taken by the trio run.

Rules:

1. A producer is a coroutine of the loop that gives its pieces to an intake, and waits where the intake has no room.
2. In the loop's own thread a piece is taken where it is made, in the producer's own task: no trio task is woken for it,
   and nothing is held back to be handed over together.
3. From another thread pieces are fetched in batches out of a bounded buffer: a crossing is paid per batch. A piece that
   comes first, or after a pause, goes at once; those that follow within `CROSSING_S` go together.
4. A slow reader stops the producer.
5. A reader that is cancelled stops the producer at once, and waits for its cleanup.
6. A producer that goes on after its cancellation is left at its next piece.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import trio
from outcome import Error, Value

from .._core.attempts import PLAIN
from .eager_call import cancel_once
from .host import PIECES_IN_A_ROW

if TYPE_CHECKING:
    from .taking import Taker
    from .to_asyncio import AsyncioLoop

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")
H = TypeVar("H")

STREAM_BUFFER = 64
"""How many pieces of a stream may be ahead of a reader in another thread."""

CROSSING_S = 0.001
"""How long the next batch is gathered after one has crossed; a crossing takes about a tenth of it."""

_LEFT = "the stream was left: whoever reads it was cancelled"


class Intake(Protocol[T_contra]):
    """Where a producer on the loop gives its pieces."""

    def take(self, piece: T_contra) -> bool:
        """Take a piece; if this is false, wait for `room` before the next one."""

    async def room(self) -> None:
        """Wait until another piece may come."""


class Here(Generic[T, H]):
    """The intake of a reader in the loop's own thread (rule 2); made in the producer's task."""

    __slots__ = ("_held", "_in_a_row", "_taker", "_task")

    def __init__(self, taker: Taker[T, H]) -> None:
        self._taker, self._task = taker, asyncio.current_task()
        self._held: H | None = None
        self._in_a_row = 0

    def take(self, piece: T) -> bool:
        if self._task is not None and self._task.cancelling():
            raise asyncio.CancelledError(_LEFT)
        self._held = self._taker.take(piece)
        self._in_a_row += 1
        return self._held is None and self._in_a_row < PIECES_IN_A_ROW

    async def room(self) -> None:
        """Wait for room, or give way to others after so many pieces."""
        self._in_a_row = 0
        if self._held is None:
            await asyncio.sleep(0)
        else:
            held, self._held = self._held, None
            await self._accepted(held)

    async def _accepted(self, held: H) -> None:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[Value[object] | Error] = loop.create_future()

        def tell(what: Value[object] | Error) -> None:
            if not accepted.done() and not loop.is_closed():
                accepted.set_result(what)

        box = self._taker.box
        assert box is not None
        box.put_when_room(held, tell)
        try:
            (await accepted).unwrap()
        finally:
            box.withdraw(tell)


class Pump(Generic[T, R]):
    """The intake of a reader in another thread (rule 3), and the task of the producer that fills it."""

    def __init__(self, produce: Callable[[Intake[T]], Awaitable[R]]) -> None:
        self._produce = produce
        self._pieces: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self._ended: Value[R] | Error | None = None
        self._stopped = False
        self._changed: asyncio.Event
        self._crossed_at = -math.inf

    # --- the producer's side ---

    async def _run(self) -> None:
        try:
            self._ended = Value(await self._produce(self))
        except BaseException as error:  # carried to the reader, after the pieces that came before it
            self._ended = Error(error)
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)

    def take(self, piece: T) -> bool:
        if self._stopped:
            raise asyncio.CancelledError(_LEFT)
        self._pieces.append(piece)
        if len(self._pieces) == 1:  # nobody waits for news while there are some
            self._changed.set()
        return len(self._pieces) < STREAM_BUFFER

    async def room(self) -> None:
        """Wait until the reader has fetched what there is."""
        while len(self._pieces) >= STREAM_BUFFER:
            self._changed.clear()
            await self._changed.wait()

    # --- the reader's side, on the loop ---

    async def batch(self) -> list[T]:
        """What has come since the last batch, at least one piece; nothing at the end of the stream."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._changed = asyncio.Event()
            self._task = loop.create_task(self._run())
        try:
            await self._gathered(self._task, loop)
        except asyncio.CancelledError:
            self._stop(self._task)  # at once: the reader's own way to `stop` takes another crossing
            raise
        pieces, self._pieces = self._pieces, []
        self._crossed_at = loop.time()
        self._changed.set()
        return pieces

    async def _gathered(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        while not self._pieces and not task.done():
            self._changed.clear()
            await self._changed.wait()
        left_s = self._crossed_at + CROSSING_S - loop.time()
        if left_s > 0 and len(self._pieces) < STREAM_BUFFER and not task.done():
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
        """What the producer came to, or what it ended with."""
        assert self._ended is not None
        return self._ended.unwrap()


async def pumped(bridge: AsyncioLoop, produce: Callable[[Intake[T]], Awaitable[R]], taker: Taker[T, H]) -> R:
    """From a trio task of another thread: what the producer comes to, after its pieces were taken."""
    pump: Pump[T, R] = Pump(produce)
    try:
        pieces = await bridge.call(pump.batch)
        while pieces:
            for piece in pieces:
                held = taker.take(piece)
                if held is not None and taker.box is not None:
                    await taker.box.put(held)
            # A producer that never waits has its next pieces ready before a cancellation could reach the fetching.
            await trio.lowlevel.checkpoint_if_cancelled()
            pieces = await bridge.go_on(pump.batch)
    finally:
        with trio.CancelScope(shield=True):
            await bridge.go_on(pump.stop)
    return pump.result()


async def read(make: Callable[[], object], last: tuple[type, ...], intake: Intake[object]) -> object:
    """Give the pieces of an asynchronous iterator to an intake; one of type `last` ends it and is returned."""
    source: Any = make()
    if not hasattr(source, "__aiter__"):
        source = await source
    try:
        async for piece in source:
            if type(piece) not in PLAIN and isinstance(piece, last):
                return piece
            if not intake.take(piece):
                await intake.room()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
    return None
