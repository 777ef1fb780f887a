"""The aggregator: an actor that buffers a structured stream before its JSON is read.

Rules:

1. Every chunk goes through the aggregator's mailbox; it is shown to whoever watches, in order, as it comes.
2. Bytes, chunks and time are bounded. Past a bound the producer is closed, what had arrived is kept, and the step
   fails: nothing cut off is passed off as whole.
3. Previews (`Chunk.partial_value`) are throttled by the buffer's growth and never used as the value.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import trio
from outcome import Error, Value

from ..bridge.guard import guarded
from ..core.outcomes import Chunk
from ..core.settings import StreamingSettings
from ..errors import StreamLimitExceeded, StructuredOutputError
from ..structured.stream import Preview, StreamBuffer
from .composites import Work
from .mailbox import Mailbox
from .run import Run

_MAILBOX = 64


class Aggregator:
    """Buffers the text of one attempt; see the module's rules."""

    def __init__(self, run: Run, work: Work, settings: StreamingSettings) -> None:
        self._run, self._work, self._settings = run, work, settings
        self._buffer = StreamBuffer(max_bytes=settings.max_bytes, max_chunks=settings.max_chunks)
        self._preview = Preview()
        self._box: Mailbox[str | bytes] = Mailbox(_MAILBOX)
        self._error: StructuredOutputError | None = None

    async def gather(self, source: AsyncIterator[Any], *, last: type | tuple[type, ...] = ()) -> Any:
        """Read the source to its end. A piece of type `last` ends it and is returned; else the whole text is."""
        pumped: Value[Any] | Error = Value(None)
        try:
            with trio.move_on_after(self._settings.max_seconds) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._aggregate)
                    pumped = await guarded(self._pump, source, last)
            if scope.cancelled_caught:
                self._error = self._late()
        finally:
            self._work.tally.pieces = [self._buffer.text] if self._buffer.chars else []
        if self._error is not None:
            raise self._error
        final = pumped.unwrap()
        return self._buffer.finish() if final is None else final

    async def _pump(self, source: AsyncIterator[Any], last: type | tuple[type, ...]) -> Any:
        """The producer's side: the box is closed whatever happens, so that the aggregator ends by itself."""
        try:
            async for piece in source:
                if last and isinstance(piece, last):
                    return piece
                await self._box.put(piece)
        except trio.BrokenResourceError:
            return None  # the aggregator refused; its error says why
        finally:
            self._box.close()
        return None

    async def _aggregate(self) -> None:
        seq = 0
        async for piece in self._box:
            try:
                self._buffer.feed(piece)
            except StructuredOutputError as error:
                self._error = error
                self._box.break_off()
                return
            if self._run.outlet is not None:
                await self._run.outlet.put(self._chunk(piece, seq))
            seq += 1

    def _chunk(self, piece: str | bytes, seq: int) -> Chunk:
        return Chunk(
            data=piece,
            step_name=self._work.name,
            attempt=self._work.attempt,
            seq=seq,
            partial_value=self._preview.partial_value(self._buffer),
        )

    def _late(self) -> StreamLimitExceeded:
        error = StreamLimitExceeded(f"the stream took longer than {self._settings.max_seconds:g} seconds")
        error.partial_text = self._buffer.text
        return error
