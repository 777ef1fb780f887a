"""The aggregator: an actor that buffers a structured stream before its JSON is read.

Rules:

1. Every chunk goes through the aggregator's mailbox; it is shown to whoever watches, in order, as it comes.
2. Bytes, chunks and time are bounded. Past a bound the producer is closed, what had arrived is kept, and the step
   fails: nothing cut off is passed off as whole.
3. Previews (`Chunk.partial_value`) are throttled by the buffer's growth, end where they would hold up the loop, and
   are never used as the value.
4. A stream of values, not of text, is the list of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import trio
from outcome import Error, Value

from .._bridge.guard import guarded
from .._core.chunks import chunk_maker
from .._run.messages import Work
from .._run.run import Run
from ..actors._mailbox import Mailbox
from ..errors import StreamLimitExceeded, StructuredOutputError
from ..structured._stream import Preview, StreamBuffer

_MAILBOX = 64
_TEXT = (str, bytes)
_PREVIEWED_CHARS = 1_000_000
"""Beyond, one preview would take the loop more than 10 ms."""


class Aggregator:
    """Buffers the answer of one call; see the module's rules. `numbers` goes on over all calls of an attempt."""

    def __init__(self, run: Run, work: Work, *, numbers: Iterator[int]) -> None:
        self._run, self._work = run, work
        self._chunk_of = chunk_maker(work.name, work.attempt, numbers, work.span)
        self._settings = settings = run.settings.aros.streaming
        self._buffer = StreamBuffer(max_bytes=settings.max_bytes, max_chunks=settings.max_chunks)
        self._values: list[object] = []
        self._preview = Preview()
        self._box: Mailbox[Any] = Mailbox(_MAILBOX)
        self._error: StructuredOutputError | None = None

    async def gather(self, source: AsyncIterator[Any], *, last: type | tuple[type, ...] = ()) -> object:
        """Read the source to its end. A piece of type `last` ends it and is returned; else what it delivered is."""
        pumped: Value[object] | Error = Value(None)
        try:
            with trio.move_on_after(self._settings.max_seconds) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._aggregate)
                    pumped = await guarded(self._pump, source, last)
            if scope.cancelled_caught:
                self._error = self._late()
        finally:
            self._work.tally.pieces = self._arrived()
        if self._error is not None:
            raise self._error
        final = pumped.unwrap()
        return self._whole() if final is None else final

    async def _pump(self, source: AsyncIterator[Any], last: type | tuple[type, ...]) -> object:
        """The producer's side: the box is closed whatever happens, so that the aggregator ends by itself."""
        try:
            async for piece in source:
                if type(piece) not in _TEXT and isinstance(piece, last):
                    return piece
                if not self._box.offer(piece):
                    await self._box.put(piece)
        except trio.BrokenResourceError:
            if self._error is None:
                raise
            return None  # the aggregator refused; its error says why
        finally:
            self._box.close()
        return None

    async def _aggregate(self) -> None:
        outlet = self._run.chunks_of(self._work.span)
        async for piece in self._box:
            try:
                self._keep(piece)
            except StructuredOutputError as error:
                self._refuse(error)
                return
            self._run.show(self._work.span, self._work.attempt, piece)
            if outlet is not None and not outlet.offer(chunk := self._chunk_of(piece, self._previewed())):
                await outlet.put(chunk)

    def _keep(self, piece: object) -> None:
        if isinstance(piece, _TEXT) and not self._values:
            self._buffer.feed(piece)
            return
        self._values = self._values or self._arrived()
        if len(self._values) >= self._settings.max_chunks:
            raise StreamLimitExceeded(f"the stream delivered more than {self._settings.max_chunks} chunks")
        self._values.append(piece)

    def _refuse(self, error: StructuredOutputError) -> None:
        if not isinstance(error, StreamLimitExceeded):
            error.stage = "stream"
        self._error = error
        self._box.break_off()

    def _arrived(self) -> list[object]:
        if self._values:
            return self._values
        return [self._buffer.text] if self._buffer.chars else []

    def _whole(self) -> object:
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
