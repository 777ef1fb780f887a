"""What a scripted provider may answer: frozen values, one closed union.

A reply says what happens, in no provider's words; the dialects turn it into theirs. What the replies of a
language model have in common (text, tool calls, how it ended, what it cost) is in `Said`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import attrs

Finish: TypeAlias = Literal["stop", "length"]
"""Why the model stopped: it was done, or it ran into the limit on output tokens."""


@attrs.frozen
class Usage:
    """Tokens a reply reports. `input_tokens` counts the cached ones too."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


def _pieces(chunks: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if chunks is None else tuple(chunks)


@attrs.frozen
class Text:
    """A message of text. `chunks` says where a stream cuts it; without them it is cut word by word."""

    text: str
    chunks: tuple[str, ...] | None = attrs.field(default=None, converter=_pieces)
    finish: Finish = attrs.field(default="stop", kw_only=True)
    usage: Usage | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.chunks is not None and "".join(self.chunks) != self.text:
            raise ValueError(f"chunks join to {''.join(self.chunks)!r}, but the text is {self.text!r}")


@attrs.frozen
class ToolCall:
    """A call of one tool. `arguments` given as text are sent as they are, also when they are no JSON."""

    name: str
    arguments: Mapping[str, Any] | str = attrs.field(factory=dict)
    finish: Finish = attrs.field(default="stop", kw_only=True)
    usage: Usage | None = attrs.field(default=None, kw_only=True)

    @property
    def arguments_json(self) -> str:
        """The arguments as they stand on the wire."""
        return self.arguments if isinstance(self.arguments, str) else to_text(dict(self.arguments))


def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


@attrs.frozen
class ToolCalls:
    """Several tool calls in one reply, after some `text` if there is any."""

    calls: tuple[ToolCall, ...] = attrs.field(converter=_calls)
    text: str = ""
    usage: Usage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Json:
    """The structured answer: the text of a message, or the arguments of the output tool if there is one."""

    value: Any
    usage: Usage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Refusal:
    """The model declines, the way each provider says so (`refusal`, or the stop reason of that name)."""

    text: str
    usage: Usage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class RateLimited:
    """429, with a `retry-after` header unless it is None."""

    retry_after: float | None = None
    message: str = attrs.field(default="Rate limit reached", kw_only=True)


@attrs.frozen
class ServerError:
    """An error status (500 if not said otherwise) with the provider's own error body."""

    status: int = 500
    message: str = attrs.field(default="The server had an error", kw_only=True)
    code: str | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class TruncatedStream:
    """The connection closes after `after` characters of the text (of the body, where nothing is streamed).

    With `tool`, the text is the arguments of a call of that tool.
    """

    text: str
    after: int
    tool: str | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Malformed:
    """Status 200 and a body (in a stream: an event, after a good beginning) that is not JSON."""

    body: str = '{"id": "broken", '


@attrs.frozen
class SlowBytes:
    """The text one character at a time. It ends early, and is counted as a hangup, when the client leaves."""

    text: str
    seconds_between: float


@attrs.frozen
class Hang:
    """No answer, not even a status line, until the client hangs up or the stub closes."""


Reply: TypeAlias = (
    Text
    | ToolCall
    | ToolCalls
    | Json
    | Refusal
    | RateLimited
    | ServerError
    | TruncatedStream
    | Malformed
    | SlowBytes
    | Hang
)


def to_text(value: object) -> str:
    """JSON as models write it: text stays readable in every language."""
    return json.dumps(value, ensure_ascii=False)


def to_bytes(text: str) -> bytes:
    """UTF-8, in which a lone surrogate (only ever inside a JSON string) is written as its escape."""
    return text.encode("utf-8", "backslashreplace")
