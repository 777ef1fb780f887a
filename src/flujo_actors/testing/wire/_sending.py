"""What goes over the socket for a reply: a decision, taken before a byte is written.

1. A reply in which the model speaks ends with a complete body, streamed or not as the request asks.
2. `RateLimited` and `ServerError` are never streamed: an error status has an error body.
3. `TruncatedStream` promises more than it sends: `cut_off` closes the connection where the rest was due.
4. `SlowBytes` waits before each piece but the first; streamed or not it has as many pieces as characters.
5. `Hang` is `Silence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias, assert_never

import attrs

from . import _anthropic, _openai_chat, _openai_responses
from ._replies import (
    Hang,
    Json,
    Malformed,
    RateLimited,
    Refusal,
    Reply,
    ServerError,
    SlowBytes,
    Text,
    ToolCall,
    ToolCalls,
    TruncatedStream,
    to_bytes,
    to_text,
)
from ._requests import Asked, Body, Dialect, Received, Request
from ._said import Event, Events, Said, say


@attrs.frozen(kw_only=True)
class Format:
    """How one provider writes: what it reads, its answers, its streams and its errors."""

    dialect: Dialect
    read: Callable[[Received], Asked]
    answer: Callable[[Said, Request], Body]
    events: Callable[[Said, Request], Events]
    error: Callable[[int, str, str | None], Body]
    delta_name: str | None
    """The name of the event in which text arrives."""


@attrs.frozen(kw_only=True)
class Sending:
    """A response: status, headers and body, piece by piece."""

    pieces: tuple[bytes, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    length: int | None = None
    """The length announced; None for a body in chunks."""
    pause_s: float = 0.0
    cut_off: bool = False


@attrs.frozen
class Silence:
    """Nothing is sent."""


Plan: TypeAlias = Sending | Silence

FORMATS: dict[str, Format] = {
    "/v1/chat/completions": Format(
        dialect="openai-chat",
        read=_openai_chat.read,
        answer=_openai_chat.answer,
        events=_openai_chat.events,
        error=_openai_chat.error,
        delta_name=None,
    ),
    "/v1/responses": Format(
        dialect="openai-responses",
        read=_openai_responses.read,
        answer=_openai_responses.answer,
        events=_openai_responses.events,
        error=_openai_responses.error,
        delta_name="response.output_text.delta",
    ),
    "/v1/messages": Format(
        dialect="anthropic",
        read=_anthropic.read,
        answer=_anthropic.answer,
        events=_anthropic.events,
        error=_anthropic.error,
        delta_name="content_block_delta",
    ),
}
"""The format spoken at each path."""

_EVENT_STREAM = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))


def plan(reply: Reply, request: Request, spoken: Format) -> Plan:
    """How the reply is sent in answer to the request."""
    match reply:
        case Text() | ToolCall() | ToolCalls() | Json() | Refusal():
            return _whole(say(reply, request), request, spoken)
        case RateLimited():
            return _rate_limited(reply, spoken)
        case ServerError():
            return refuse(spoken.error(reply.status, reply.message, reply.code), reply.status)
        case TruncatedStream():
            return _truncated(reply, request, spoken)
        case Malformed():
            return _malformed(reply, request, spoken)
        case SlowBytes():
            return _slow(reply, request, spoken)
        case Hang():
            return Silence()
        case _:
            assert_never(reply)


def refuse(body: Body, status: int, *headers: tuple[str, str]) -> Sending:
    """An error with its body."""
    return _plain(to_bytes(to_text(body)), status=status, headers=(("content-type", "application/json"), *headers))


def _whole(said: Said, request: Request, spoken: Format) -> Sending:
    if request.stream:
        events = spoken.events(said, request)
        return _streamed((*events.begin, *events.end))
    return _plain(_body(said, request, spoken))


def _rate_limited(reply: RateLimited, spoken: Format) -> Sending:
    waiting = () if reply.retry_after is None else (("retry-after", f"{reply.retry_after:g}"),)
    return refuse(spoken.error(429, reply.message, "rate_limit_error"), 429, *waiting)


def _truncated(reply: TruncatedStream, request: Request, spoken: Format) -> Sending:
    shown = reply.text[: reply.after] if request.stream else reply.text
    said = say(Text(shown) if reply.tool is None else ToolCall(reply.tool, shown), request)
    if request.stream:
        return _streamed(spoken.events(said, request).begin, cut_off=True)
    body = _body(said, request, spoken)
    return _plain(body[: min(reply.after, len(body) - 1)], length=len(body), cut_off=True)


def _malformed(reply: Malformed, request: Request, spoken: Format) -> Sending:
    if not request.stream:
        return _plain(to_bytes(reply.body))
    events = spoken.events(say(Text(""), request), request)
    return _streamed((*events.begin, Event(data=reply.body, name=spoken.delta_name), *events.end))


def _slow(reply: SlowBytes, request: Request, spoken: Format) -> Sending:
    said = say(Text(reply.text, tuple(reply.text)), request)
    sending = _whole(said, request, spoken)
    if not request.stream:
        sending = attrs.evolve(sending, pieces=_split(sending.pieces[0], len(reply.text)))
    return attrs.evolve(sending, pause_s=reply.seconds_between)


def _body(said: Said, request: Request, spoken: Format) -> bytes:
    return to_bytes(to_text(spoken.answer(said, request)))


def _plain(
    body: bytes,
    *,
    status: int = 200,
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),),
    length: int | None = None,
    cut_off: bool = False,
) -> Sending:
    announced = len(body) if length is None else length
    return Sending(pieces=(body,), status=status, headers=headers, length=announced, cut_off=cut_off)


def _streamed(events: Iterable[Event], *, cut_off: bool = False) -> Sending:
    return Sending(pieces=tuple(event.encode() for event in events), headers=_EVENT_STREAM, cut_off=cut_off)


def _split(body: bytes, count: int) -> tuple[bytes, ...]:
    size = max(1, math.ceil(len(body) / max(1, count)))
    return tuple(body[at : at + size] for at in range(0, len(body), size))
