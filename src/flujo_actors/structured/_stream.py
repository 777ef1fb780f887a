"""Stream buffer: incremental decoder, bounds, and linear-cost previews.

1. A chunk may end anywhere: inside a character, an escape, a surrogate pair. An incomplete part waits.
2. Bytes and chunks are counted before they are kept; past a bound the stream is refused, with the text so far.
3. Chunks are joined in blocks, and all of them once at the end: the work is linear, the memory that of the text.
4. A preview is computed only when the text has grown by half since the last one: together they are linear too.
"""

from __future__ import annotations

import codecs
from typing import Any

from pydantic_core import from_json

from ..errors import StreamLimitExceeded, StructuredOutputError
from ._candidates import THINK_CLOSE

_PIECES_PER_BLOCK = 512
_HIGH_SURROGATES = ("\ud800", "\udbff")


class StreamBuffer:
    """The text of one stream, chunk by chunk."""

    def __init__(self, *, max_bytes: int = 64_000_000, max_chunks: int = 1_000_000) -> None:
        self.max_bytes: int = max_bytes
        """Most bytes of the stream."""
        self.max_chunks: int = max_chunks
        """Most chunks of the stream."""
        self.bytes: int = 0
        """Number of bytes so far."""
        self.chunks: int = 0
        """Number of chunks so far."""
        self.chars: int = 0
        """Number of characters so far."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._blocks: list[str] = []
        self._chunks: list[str] = []
        self._half = ""

    def feed(self, chunk: str | bytes) -> str:
        """Add the chunk; return the text it completes, maybe empty.

        Args:
            chunk: next part of the text.
        """
        if isinstance(chunk, bytes):
            self._count(len(chunk))
            chunk = self._decoded(chunk)
        elif chunk.isascii() and not self._half:
            self._count(len(chunk))
        else:
            chunk = self._paired(chunk)
        if chunk:
            self._append(chunk)
        return chunk

    def finish(self) -> str:
        """Return the text; raise `StructuredOutputError` inside a character."""
        if rest := self._decoded(b"", final=True):
            self._append(rest)
        if self._half:
            raise self._broken("the stream ended inside a character")
        return self.text

    @property
    def text(self) -> str:
        """Return the complete text so far."""
        if self._chunks or len(self._blocks) > 1:
            self._blocks = ["".join((*self._blocks, *self._chunks))]
            self._chunks = []
        return self._blocks[0] if self._blocks else ""

    def _count(self, size: int) -> None:
        if self.chunks >= self.max_chunks:
            raise self._over(f"more than {self.max_chunks} chunks")
        if self.bytes + size > self.max_bytes:
            raise self._over(f"more than {self.max_bytes} bytes")
        self.chunks += 1
        self.bytes += size

    def _decoded(self, chunk: bytes, *, final: bool = False) -> str:
        try:
            return self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            raise self._broken(f"the stream is not UTF-8: {error.reason}") from None

    def _paired(self, chunk: str) -> str:
        """Count the text; hold back an unpaired surrogate."""
        size, has_halves = _measured(chunk)
        self._count(size)
        if not has_halves and not self._half:
            return chunk
        whole, self._half = self._half + chunk, ""
        if whole and _HIGH_SURROGATES[0] <= whole[-1] <= _HIGH_SURROGATES[1]:
            whole, self._half = whole[:-1], whole[-1]
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def _append(self, chunk: str) -> None:
        self.chars += len(chunk)
        self._chunks.append(chunk)
        if len(self._chunks) >= _PIECES_PER_BLOCK:
            self._blocks.append("".join(self._chunks))
            self._chunks = []

    def _over(self, what: str) -> StreamLimitExceeded:
        error = StreamLimitExceeded(f"the stream delivered {what}; {self.chars} characters were kept")
        error.partial_text = self.text
        return error

    def _broken(self, what: str) -> StructuredOutputError:
        error = StructuredOutputError(what)
        error.stage, error.text_excerpt = "parse", self.text[-200:]
        return error


def _measured(text: str) -> tuple[int, bool]:
    """Return a text's UTF-8 size, and any lone surrogates."""
    try:
        return len(text.encode()), False
    except UnicodeEncodeError:
        return len(text.encode("utf-8", "surrogatepass")), True


class Preview:
    """Value of a structured stream so far; never a final value.

    Args:
        growth: factor by which the text grows between two previews.
        first_at: characters of the first preview.
    """

    def __init__(self, *, growth: float = 1.5, first_at: int = 32) -> None:
        self._growth = growth
        self.next_at: int = first_at
        """Number of characters for the next preview."""

    def partial_value(self, buffer: StreamBuffer) -> Any:
        """Return a new preview if the text grew enough, or None.

        Args:
            buffer: text of the stream.
        """
        if buffer.chars < self.next_at:
            return None
        self.next_at = int(buffer.chars * self._growth) + 1
        return partial_value(buffer.text)


def partial_value(text: str) -> Any:
    """Return the container that `text` begins, or None.

    Args:
        text: start of a JSON text.
    """
    thoughts = [found.end() for found in THINK_CLOSE.finditer(text)]
    begin = thoughts[-1] if thoughts else 0
    starts = [at for at in (text.find("{", begin), text.find("[", begin)) if at >= 0]
    if not starts:
        return None
    try:
        return from_json(text[min(starts) :], allow_partial="trailing-strings", allow_inf_nan=False)
    except (ValueError, TypeError):
        return None
