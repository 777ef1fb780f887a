"""Replies of a scripted provider: frozen values, one closed union.

A reply is independent of a provider; the dialects translate it. Text, tool calls, finish reason and usage common to all
replies are in `ModelOutput`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import attrs

Finish: TypeAlias = Literal["stop", "length"]
"""Finish reason: done, or limit on output tokens."""


@attrs.frozen
class ReplyUsage:
    """Tokens reported by a reply. `input_tokens` includes the cached ones.

    Args:
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        cached_tokens: tokens of the prompt that were cached.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


def _pieces(chunks: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if chunks is None else tuple(chunks)


@attrs.frozen
class TextReply:
    """Text message with stream `chunks`, by default its words.

    Args:
        text: text of the message.
        chunks: parts of the text in a stream.
        finish: finish reason.
        usage: tokens that the reply reports.
    """

    text: str
    chunks: tuple[str, ...] | None = attrs.field(default=None, converter=_pieces)
    finish: Finish = attrs.field(default="stop", kw_only=True)
    usage: ReplyUsage | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.chunks is not None and "".join(self.chunks) != self.text:
            raise ValueError(f"chunks join to {''.join(self.chunks)!r}, but the text is {self.text!r}")


@attrs.frozen
class ToolCall:
    """Call of one tool; `arguments` as text are sent unchanged.

    Args:
        name: name of the tool.
        arguments: arguments, or their text.
        finish: finish reason.
        usage: tokens that the reply reports.
    """

    name: str
    arguments: Mapping[str, Any] | str = attrs.field(factory=dict)
    finish: Finish = attrs.field(default="stop", kw_only=True)
    usage: ReplyUsage | None = attrs.field(default=None, kw_only=True)

    @property
    def arguments_json(self) -> str:
        """Return the arguments as sent on the wire."""
        return self.arguments if isinstance(self.arguments, str) else to_text(dict(self.arguments))


def _calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


@attrs.frozen
class ToolCalls:
    """Several tool calls in one reply, after an optional `text`.

    Args:
        calls: calls of tools.
        text: text before the calls.
        usage: tokens that the reply reports.
    """

    calls: tuple[ToolCall, ...] = attrs.field(converter=_calls)
    text: str = ""
    usage: ReplyUsage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Json:
    """Structured answer: message text, or arguments of an output tool.

    Args:
        value: value of the answer.
        usage: tokens that the reply reports.
    """

    value: Any
    usage: ReplyUsage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Refusal:
    """Refusal of the model in each provider's form.

    Args:
        text: text of the refusal.
        usage: tokens that the reply reports.
    """

    text: str
    usage: ReplyUsage | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class RateLimitReply:
    """429, with a `retry-after` header unless it is None.

    Args:
        retry_after: seconds of the header.
        message: message of the error.
    """

    retry_after: float | None = None
    message: str = attrs.field(default="Rate limit reached", kw_only=True)


@attrs.frozen
class ServerError:
    """Error status (500 by default) with the provider's own error body.

    Args:
        status: HTTP status.
        message: message of the error.
        code: code of the error, in the provider's form.
    """

    status: int = 500
    message: str = attrs.field(default="The server had an error", kw_only=True)
    code: str | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class TruncatedStream:
    """Connection closed after `after` characters of the text or body.

    With `tool`, the text is the arguments of a call of that tool. With `in_order`, a stream is closed as if it were
    complete, as some proxies do: HTTP reports no error, and only the provider's last events are missing.

    Args:
        text: text that is cut off.
        after: characters that are sent.
        tool: tool whose arguments the text is.
        in_order: whether the stream is closed as if it were complete.
    """

    text: str
    after: int
    tool: str | None = attrs.field(default=None, kw_only=True)
    in_order: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class MalformedReply:
    """Status 200 with a body, or later event, without valid JSON.

    Args:
        body: body of the reply.
    """

    body: str = '{"id": "broken", '


@attrs.frozen
class SlowBytes:
    """Text by single characters; a leaving client counts as hangup.

    Args:
        text: text of the message.
        seconds_between: seconds between two characters.
    """

    text: str
    seconds_between: float


@attrs.frozen
class Hang:
    """No response until the client or the stub closes."""


Reply: TypeAlias = (
    TextReply
    | ToolCall
    | ToolCalls
    | Json
    | Refusal
    | RateLimitReply
    | ServerError
    | TruncatedStream
    | MalformedReply
    | SlowBytes
    | Hang
)


def to_text(value: object) -> str:
    """JSON as models write it: text stays readable in every language."""
    return json.dumps(value, ensure_ascii=False)


def to_bytes(text: str) -> bytes:
    """Return UTF-8 with lone surrogates (only inside JSON strings) escaped."""
    return text.encode("utf-8", "backslashreplace")


Body: TypeAlias = dict[str, object]
"""JSON object on the wire."""

Received: TypeAlias = dict[str, Any]
"""Received JSON object; a mismatch is the client's mistake."""

Dialect: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]
"""The wire format a request came in."""

OUTPUT_TOOL = "final_result"
"""Name prefix of pydantic-ai's output tools."""


@attrs.frozen(kw_only=True)
class Called:
    """Tool call that the client repeats from an earlier answer.

    Args:
        id: id of the call.
        name: name of the tool.
        arguments: arguments as JSON.
    """

    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class ChatMessage:
    """Entry of the conversation; tool results have the role `tool`.

    Args:
        role: role of the author.
        text: text of the message.
        calls: tool calls of the message.
        call_id: call whose result the message has.
    """

    role: str
    text: str = ""
    calls: tuple[Called, ...] = ()
    call_id: str | None = None


@attrs.frozen(kw_only=True)
class Tool:
    """Tool that the model may call, with its JSON Schema.

    Args:
        name: name of the tool.
        description: description for the model.
        parameters: JSON Schema of the arguments.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ClientRequest:
    """Request as parsed by a dialect."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    response_format: str = "text"


@attrs.frozen(kw_only=True)
class HttpRequest:
    """Request as seen by a script, with raw `body` and `headers`.

    Args:
        dialect: wire format of the request.
        model: name of the model.
        messages: the conversation.
        tools: tools that the model may call.
        stream: whether a stream is requested.
        body: JSON body of the request.
        headers: headers of the request.
    """

    index: int
    """0 for the first request of this stub."""
    dialect: Dialect
    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    stream: bool
    response_format: str
    """`text`, `json_object` or `json_schema`."""
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """Return all text of the conversation, a line per message."""
        return "\n".join(message.text for message in self.messages)

    @property
    def prompt(self) -> str:
        """Return the text of the last message a user wrote, or nothing."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def output_tool(self) -> str | None:
        """Return the tool for the run's structured output, or None."""
        return next((tool.name for tool in self.tools if tool.name.startswith(OUTPUT_TOOL)), None)


def text_of(content: object) -> str:
    """Return the text of a message's content in any form."""
    match content:
        case str():
            return content
        case list():
            return "".join(text_of(block) for block in content)
        case {"text": str() as text}:
            return text
        case {"content": inner}:
            return text_of(inner)
    return ""
