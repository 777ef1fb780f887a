"""The pieces of one stream: kept for the step's output, and shown to whoever can see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from .._core.chunks import MakeChunk, chunk_maker
from .._core.outcomes import Chunk
from .._run.messages import Work
from .._run.outlet import Outlet
from .._run.run import Run
from .agent import joined

T = TypeVar("T")


class ShownPieces:
    """Takes the pieces of one call. `numbers` goes on over all calls of an attempt.

    For those who are not there nothing is made: no chunk without a reader, no text for watchers without one.
    """

    __slots__ = ("_pieces", "box", "take")

    def __init__(self, run: Run, work: Work, *, numbers: Iterator[int]) -> None:
        self.box = run.chunks_of(work.span)
        """Where chunks go, if somebody reads them."""
        self._pieces = work.tally.pieces = []
        self.take = _taking(run, work, self.box, chunk_maker(work.name, work.attempt, numbers, work.span))

    async def within(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read to the end; there are no bounds."""
        return await read()

    def whole(self) -> object:
        """All that the stream delivered."""
        return joined(self._pieces)


def _taking(run: Run, work: Work, box: Outlet | None, chunk_of: MakeChunk) -> Callable[[object], Chunk | None]:
    """Keeps a piece and shows it; what comes back is its chunk, if there was no room for it."""
    # A closure, as `chunk_maker` is: it is called for each piece of a stream.
    keep, show, path, attempt = work.tally.pieces.append, run.show, work.span, work.attempt

    def take(piece: object) -> Chunk | None:
        keep(piece)
        show(path, attempt, piece)
        if box is None or box.offer(chunk := chunk_of(piece)):
            return None
        return chunk

    return take
