"""The aggregator: buffers a structured stream before its JSON is read.

Rules:

1. Every piece goes through the aggregator, which keeps it and shows it to whoever watches, in order, as it comes.
2. Bytes, chunks and time are bounded. Past a bound the producer is closed, what had arrived is kept, and the step
   fails: nothing cut off is passed off as whole.
3. Previews (`Chunk.partial_value`) are throttled by the buffer's growth, end where they would hold up the loop, and
   are never used as the value. Where nobody reads chunks there are none.
4. A stream of values, not of text, is the list of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio
from outcome import Error, Value

from .._bridge.guard import guarded
from .._core.chunks import chunk_maker
from .._core.outcomes import Chunk
from .._run.messages import Work
from .._run.run import Run
from ..errors import StreamLimitExceeded, StructuredOutputError
from ..structured._stream import Preview, StreamBuffer

T = TypeVar("T")

_TEXT = (str, bytes)
_PREVIEWED_CHARS = 1_000_000
"""Beyond, one preview would take the loop more than 10 ms."""


class Aggregator:
    """Takes the pieces of one call; see the module's rules. `numbers` goes on over all calls of an attempt."""

    def __init__(self, run: Run, work: Work, *, numbers: Iterator[int]) -> None:
        self.box = run.chunks_of(work.span)
        """Where chunks go, if somebody reads them."""
        self._run, self._work = run, work
        self._chunk_of = chunk_maker(work.name, work.attempt, numbers, work.span)
        self._settings = settings = run.settings.aros.streaming
        self._buffer = StreamBuffer(max_bytes=settings.max_bytes, max_chunks=settings.max_chunks)
        self._values: list[object] = []
        self._preview = Preview()
        self._error: StructuredOutputError | None = None

    async def within(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read to the end, within the bounds."""
        got: Value[T] | Error | None = None
        try:
            with trio.move_on_after(self._settings.max_seconds) as scope:
                got = await guarded(read)
            if scope.cancelled_caught:
                self._error = self._late()
        finally:
            self._work.tally.pieces = self._arrived()
        if self._error is not None:  # whatever the producer made of it
            raise self._error
        assert got is not None
        return got.unwrap()

    def take(self, piece: object) -> Chunk | None:
        """Keep a piece and show it; its chunk, if there was no room for it."""
        try:
            self._keep(piece)
        except StructuredOutputError as error:
            self._error = error
            if not isinstance(error, StreamLimitExceeded):
                error.stage = "stream"
            raise
        self._run.show(self._work.span, self._work.attempt, piece)
        if self.box is None or self.box.offer(chunk := self._chunk_of(piece, self._previewed())):
            return None
        return chunk

    def _keep(self, piece: object) -> None:
        if isinstance(piece, _TEXT) and not self._values:
            self._buffer.feed(piece)
            return
        self._values = self._values or self._arrived()
        if len(self._values) >= self._settings.max_chunks:
            raise StreamLimitExceeded(f"the stream delivered more than {self._settings.max_chunks} chunks")
        self._values.append(piece)

    def _arrived(self) -> list[object]:
        if self._values:
            return self._values
        return [self._buffer.text] if self._buffer.chars else []

    def whole(self) -> object:
        """All that the stream delivered."""
        if self._values:
            return self._values
        try:
            return self._buffer.finish()
        except StructuredOutputError as error:
            error.stage = "stream"
            raise

    def _previewed(self) -> object:
        chars = self._buffer.chars
        if chars < self._preview.next_at or chars > _PREVIEWED_CHARS or self._values:
            return None
        return self._preview.partial_value(self._buffer)

    def _late(self) -> StreamLimitExceeded:
        error = StreamLimitExceeded(f"the stream took longer than {self._settings.max_seconds:g} seconds")
        error.partial_text = self._buffer.text
        return error
