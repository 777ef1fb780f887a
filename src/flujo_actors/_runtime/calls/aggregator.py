"""Streaming aggregator: buffers a structured stream before its JSON is parsed.

Rules:

1. Every chunk goes through the inbox of the aggregator, which keeps it and publishes it to subscribers, in order.
2. Bytes, chunks and time are bounded. Past a bound the producer is closed, received chunks are kept, and the step
   fails: nothing truncated is passed off as whole.
3. Previews (`Chunk.partial_value`) are throttled by the buffer's growth, end where they would block the loop, and
   are never used as the value. Without a reader of chunks there are none.
4. A stream of values, not of text, is the list of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio
from outcome import Error, Value

from ..._bridge.user_code_guard import guarded
from ..._core.outcomes import chunk_maker
from ...actors._mailbox import Mailbox
from ...errors import StreamLimitExceeded, StructuredOutputError
from ...structured._stream import Preview, StreamBuffer
from ..run.messages import AttemptInput
from ..run.run_environment import Run

T = TypeVar("T")

_TEXT = (str, bytes)
_PREVIEWED_CHARS = 1_000_000
"""Beyond, one preview would take the loop more than 10 ms."""


INBOX = 64
"""Maximum number of chunks between producer and aggregator."""


class Aggregator:
    """Actor with its own task, a bounded inbox and one reply.

    `numbers` continues over all calls of an attempt.
    """

    def __init__(self, run: Run, work: AttemptInput, *, numbers: Iterator[int]) -> None:
        self.box: Mailbox[tuple[object]] = Mailbox(INBOX)
        """The inbox; a producer waits while it is full."""
        self._event_stream = run.chunks_of(work.span)
        self._run, self._work = run, work
        self._chunk_of = chunk_maker(work.name, work.attempt, numbers, work.span)
        self._settings = settings = run.settings.aros.streaming
        self._buffer = StreamBuffer(max_bytes=settings.max_bytes, max_chunks=settings.max_chunks)
        self._values: list[object] = []
        self._preview = Preview()
        self._error: StructuredOutputError | None = None

    def accept(self, chunk: object) -> tuple[object] | None:
        """Put a chunk into the inbox, or return it without room."""
        message = (chunk,)
        return None if self.box.offer(message) else message

    async def within(self, read: Callable[[], Awaitable[T]]) -> T:
        """Run the bounded producer, with the aggregator in its own task."""
        got: Value[T] | Error | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._act, nursery.cancel_scope, name=f"{self._work.span} (aggregator)")
                with trio.move_on_after(self._settings.max_seconds) as scope:
                    got = await guarded(read)
                if scope.cancelled_caught:
                    self._error = self._timeout_error()
                self.box.close()
        finally:
            self._work.state.chunks = self._arrived()
        if self._error is not None:  # whatever the producer made of it
            raise self._error
        assert got is not None
        return got.unwrap()

    async def _act(self, producer: trio.CancelScope) -> None:
        """Publish every chunk; stop the producer at an exceeded bound."""
        event_stream, show, path, attempt = self._event_stream, self._run.show, self._work.span, self._work.attempt
        async for (chunk,) in self.box:
            try:
                self._keep(chunk)
            except StructuredOutputError as error:
                self._error = error
                if not isinstance(error, StreamLimitExceeded):
                    error.stage = "stream"
                self.box.break_off()
                producer.cancel()
                return
            show(path, attempt, chunk)
            if event_stream is not None:
                await event_stream.put(self._chunk_of(chunk, self._previewed()))

    def _keep(self, chunk: object) -> None:
        if isinstance(chunk, _TEXT) and not self._values:
            self._buffer.feed(chunk)
            return
        self._values = self._values or self._arrived()
        if len(self._values) >= self._settings.max_chunks:
            raise StreamLimitExceeded(f"the stream delivered more than {self._settings.max_chunks} chunks")
        self._values.append(chunk)

    def _arrived(self) -> list[object]:
        if self._values:
            return self._values
        return [self._buffer.text] if self._buffer.chars else []

    def result(self) -> object:
        """Return all that the stream delivered."""
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

    def _timeout_error(self) -> StreamLimitExceeded:
        error = StreamLimitExceeded(f"the stream took longer than {self._settings.max_seconds:g} seconds")
        error.partial_text = self._buffer.text
        return error
