"""Response plan of a reply, decided before a byte is written.

1. A reply with model output ends with a complete body, streamed or not as requested.
2. `RateLimitReply` and `ServerError` are never streamed: an error status has an error body.
3. `TruncatedStream` announces more than it sends: `cut_off` closes the connection where the rest was due.
   `in_order` announces no more than it sends.
4. `SlowBytes` waits before each chunk but the first; streamed or not it has as many chunks as characters.
5. `Hang` is `NoResponse`.

Sections:

- Anthropic's messages: `POST /v1/messages`.
- OpenAI's Responses API: `POST /v1/responses`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, assert_never

import attrs

from . import _openai_chat
from ._openai_chat import CREATED, Event, ModelOutput, StreamEvents, cut, say
from ._openai_chat import error as error
from ._reply_types import (
    Body,
    Called,
    ChatMessage,
    ClientRequest,
    Dialect,
    Hang,
    HttpRequest,
    Json,
    MalformedReply,
    RateLimitReply,
    Received,
    Refusal,
    Reply,
    ReplyUsage,
    ServerError,
    SlowBytes,
    TextReply,
    Tool,
    ToolCall,
    ToolCalls,
    TruncatedStream,
    text_of,
    to_bytes,
    to_text,
)

# --- Anthropic's messages -----------------------------------------------------------------------------------------


_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read_anthropic(body: Received) -> ClientRequest:
    """Return the conversation, the tools and the response format of a request."""
    output = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return ClientRequest(
        messages=tuple(_anthropic_messages(body)),
        tools=tuple(_anthropic_tool(entry) for entry in body.get("tools", ()) if "input_schema" in entry),
        response_format=output.get("type", "text"),
    )


def _anthropic_messages(body: Received) -> Iterator[ChatMessage]:
    if body.get("system"):
        yield ChatMessage(role="system", text=text_of(body["system"]))
    for entry in body.get("messages", ()):
        yield from _entry(entry["role"], entry["content"])


def _entry(role: str, content: Any) -> Iterator[ChatMessage]:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        if block.get("type") == "tool_result":
            yield ChatMessage(role="tool", text=text_of(block.get("content")), call_id=block["tool_use_id"])
    calls = tuple(_called(block) for block in blocks if block.get("type") == "tool_use")
    text = "".join(text_of(block) for block in blocks if block.get("type") == "text")
    if text or calls:
        yield ChatMessage(role=role, text=text, calls=calls)


def _called(block: Received) -> Called:
    return Called(id=block["id"], name=block["name"], arguments=to_text(block["input"]))


def _anthropic_tool(entry: Received) -> Tool:
    return Tool(name=entry["name"], description=entry.get("description") or "", parameters=entry["input_schema"])


def anthropic_answer(said: ModelOutput, request: HttpRequest) -> Body:
    """Return the body of an answer that is not streamed."""
    content: list[Body] = [{"type": "text", "text": said.text}] if said.deltas else []
    content += [_call(call, request, at) | {"input": _input(call)} for at, call in enumerate(said.calls)]
    return _message(request) | {"content": content, "usage": _anthropic_usage(said.usage), **_stop(said)}


def anthropic_events(said: ModelOutput, request: HttpRequest) -> StreamEvents:
    """Return a streamed answer's events, block after block."""
    blocks = [_text_block(said)] if said.deltas else []
    blocks += [_call_block(call, request, at, len(blocks) + at) for at, call in enumerate(said.calls)]
    begin: list[Body] = [_opening(request, said)]
    for block in blocks[:-1]:
        begin += block
    begin += blocks[-1][:-1] if blocks else []
    usage = {"output_tokens": said.usage.output_tokens}
    end = blocks[-1][-1:] if blocks else []
    end += [{"type": "message_delta", "delta": _stop(said), "usage": usage}, {"type": "message_stop"}]
    return StreamEvents(begin=tuple(map(_event, begin)), end=tuple(map(_event, end)))


def anthropic_error(status: int, message: str, code: str | None) -> Body:
    """Return the body of an error; `code`, if given, is its type."""
    kind = code or _ERROR_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _event(body: Body) -> Event:
    return Event(name=str(body["type"]), data=body)


def _opening(request: HttpRequest, said: ModelOutput) -> Body:
    usage = _anthropic_usage(said.usage) | {"output_tokens": 0}
    unsettled: Body = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return {"type": "message_start", "message": _message(request) | unsettled}


def _text_block(said: ModelOutput) -> list[Body]:
    return _block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in said.deltas])


def _call_block(call: ToolCall, request: HttpRequest, number: int, index: int) -> list[Body]:
    pieces: list[Body] = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(call.arguments_json)]
    return _block(index, _call(call, request, number) | {"input": {}}, pieces)


def _block(index: int, start: Body, deltas: list[Body]) -> list[Body]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _message(request: HttpRequest) -> Body:
    return {"id": f"msg_{request.index}", "type": "message", "role": "assistant", "model": request.model}


def _call(call: ToolCall, request: HttpRequest, at: int) -> Body:
    return {"type": "tool_use", "id": f"toolu_{request.index}_{at}", "name": call.name}


def _input(call: ToolCall) -> object:
    # The format has no place for arguments that are not JSON; as a string they reach the client unchanged.
    try:
        return json.loads(call.arguments_json)
    except ValueError:
        return call.arguments_json


def _stop(said: ModelOutput) -> Body:
    if said.refusal is not None:
        details = {"type": "refusal", "category": None, "explanation": said.refusal}
        return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
    reason = "max_tokens" if said.finish == "length" else "tool_use" if said.calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _anthropic_usage(usage: ReplyUsage) -> Body:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


# --- OpenAI's Responses API ---------------------------------------------------------------------------------------


def read_responses(body: Received) -> ClientRequest:
    """Return the conversation, the tools and the response format of a request."""
    return ClientRequest(
        messages=tuple(_responses_messages(body)),
        tools=tuple(_responses_tool(entry) for entry in body.get("tools", ()) if entry.get("type") == "function"),
        response_format=((body.get("text") or {}).get("format") or {}).get("type", "text"),
    )


def _responses_messages(body: Received) -> Iterator[ChatMessage]:
    if body.get("instructions"):
        yield ChatMessage(role="system", text=body["instructions"])
    items = body.get("input", ())
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        yield from _item(item)


def _item(item: Received) -> Iterator[ChatMessage]:
    match item:
        case {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}:
            yield ChatMessage(role="assistant", calls=(Called(id=id, name=name, arguments=arguments),))
        case {"type": "function_call_output", "call_id": id, "output": output}:
            yield ChatMessage(role="tool", text=text_of(output), call_id=id)
        case {"role": role}:
            yield ChatMessage(role=role, text=text_of(item.get("content")))


def _responses_tool(entry: Received) -> Tool:
    return Tool(
        name=entry["name"],
        description=entry.get("description") or "",
        parameters=entry.get("parameters") or {},
    )


def responses_answer(said: ModelOutput, request: HttpRequest) -> Body:
    """Return the body of an answer that is not streamed."""
    return _response(request, said, output=_items(said, request))


def _items(said: ModelOutput, request: HttpRequest) -> list[Body]:
    items = [_message_item(request, _part(said))] if _speaks(said) else []
    return items + [_call_item(call, request, at) for at, call in enumerate(said.calls)]


def _speaks(said: ModelOutput) -> bool:
    return bool(said.deltas) or said.refusal is not None or not said.calls


def responses_events(said: ModelOutput, request: HttpRequest) -> StreamEvents:
    """Return the events of a streamed answer, each numbered in order."""
    opening = _response(request, None, output=[])
    begin: list[Body] = [{"type": f"response.{kind}", "response": opening} for kind in ("created", "in_progress")]
    if _speaks(said):
        begin += _message_opens(said, request)
    first = len(_items(said, request)) - len(said.calls)
    closed = [_message_closes(said, request)] if _speaks(said) else []
    for at, call in enumerate(said.calls):
        begin += [event for events_ in closed for event in events_]
        begin += _call_opens(call, request, at, first + at)
        closed = [_call_closes(call, request, at, first + at)]
    end = [event for events_ in closed for event in events_]
    settled = responses_answer(said, request)
    end.append({"type": f"response.{settled['status']}", "response": settled})
    return _numbered(begin, end)


def _numbered(begin: list[Body], end: list[Body]) -> StreamEvents:
    numbered = tuple(
        Event(name=str(event["type"]), data=event | {"sequence_number": number})
        for number, event in enumerate([*begin, *end])
    )
    return StreamEvents(begin=numbered[: len(begin)], end=numbered[len(begin) :])


def _message_opens(said: ModelOutput, request: HttpRequest) -> list[Body]:
    at = {"output_index": 0, "content_index": 0, "item_id": f"msg_{request.index}"}
    item = _message_item(request, None)
    opens: list[Body] = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    opens.append({"type": "response.content_part.added", "part": _part(said, empty=True), **at})
    if said.refusal is not None:
        return [*opens, {"type": "response.refusal.delta", "delta": said.refusal, **at}]
    delta = {"type": "response.output_text.delta", "logprobs": [], **at}
    return opens + [delta | {"delta": piece} for piece in said.deltas]


def _message_closes(said: ModelOutput, request: HttpRequest) -> list[Body]:
    at = {"output_index": 0, "content_index": 0, "item_id": f"msg_{request.index}"}
    done: Body = {"type": "response.output_text.done", "text": said.text, "logprobs": [], **at}
    if said.refusal is not None:
        done = {"type": "response.refusal.done", "refusal": said.refusal, **at}
    item = _message_item(request, _part(said))
    return [
        done,
        {"type": "response.content_part.done", "part": _part(said), **at},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


def _call_opens(call: ToolCall, request: HttpRequest, number: int, output_index: int) -> list[Body]:
    item = _call_item(call, request, number)
    at = {"output_index": output_index, "item_id": item["id"]}
    added = {
        "type": "response.output_item.added",
        "output_index": output_index,
        "item": item | {"arguments": "", "status": "in_progress"},
    }
    delta = {"type": "response.function_call_arguments.delta", **at}
    return [added, *(delta | {"delta": piece} for piece in cut(call.arguments_json))]


def _call_closes(call: ToolCall, request: HttpRequest, number: int, output_index: int) -> list[Body]:
    item = _call_item(call, request, number)
    at = {"output_index": output_index, "item_id": item["id"]}
    done = {"type": "response.function_call_arguments.done", "arguments": call.arguments_json, **at}
    return [
        done | {"name": call.name},
        {"type": "response.output_item.done", "output_index": output_index, "item": item},
    ]


def _part(said: ModelOutput, *, empty: bool = False) -> Body:
    if said.refusal is not None:
        return {"type": "refusal", "refusal": "" if empty else said.refusal}
    return {"type": "output_text", "text": "" if empty else said.text, "annotations": [], "logprobs": []}


def _message_item(request: HttpRequest, part: Body | None) -> Body:
    return {
        "id": f"msg_{request.index}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress" if part is None else "completed",
        "content": [] if part is None else [part],
    }


def _call_item(call: ToolCall, request: HttpRequest, number: int) -> Body:
    return {
        "id": f"fc_{request.index}_{number}",
        "type": "function_call",
        "call_id": f"call_{request.index}_{number}",
        "name": call.name,
        "arguments": call.arguments_json,
        "status": "completed",
    }


def _response(request: HttpRequest, said: ModelOutput | None, *, output: list[Body]) -> dict[str, object]:
    status = "in_progress" if said is None else "completed" if said.finish == "stop" else "incomplete"
    return {
        "id": f"resp_{request.index}",
        "object": "response",
        "created_at": CREATED,
        "model": request.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if said is None else _responses_usage(said.usage),
    }


def _responses_usage(usage: ReplyUsage) -> Body:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


# --- Response plan of a reply -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Format:
    """Wire format of one provider: requests, answers, streams and errors."""

    dialect: Dialect
    read: Callable[[Received], ClientRequest]
    answer: Callable[[ModelOutput, HttpRequest], Body]
    events: Callable[[ModelOutput, HttpRequest], StreamEvents]
    error: Callable[[int, str, str | None], Body]
    delta_name: str | None
    """The name of the event in which text arrives."""


@attrs.frozen(kw_only=True)
class ResponsePlan:
    """Response: status, headers and body chunks."""

    pieces: tuple[bytes, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    length: int | None = None
    """The length announced; None for a body in chunks."""
    pause_s: float = 0.0
    cut_off: bool = False


@attrs.frozen
class NoResponse:
    """Response that is never sent."""


Plan: TypeAlias = ResponsePlan | NoResponse

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
        read=read_responses,
        answer=responses_answer,
        events=responses_events,
        error=error,
        delta_name="response.output_text.delta",
    ),
    "/v1/messages": Format(
        dialect="anthropic",
        read=read_anthropic,
        answer=anthropic_answer,
        events=anthropic_events,
        error=anthropic_error,
        delta_name="content_block_delta",
    ),
}
"""The format spoken at each path."""

_EVENT_STREAM = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))


def plan(reply: Reply, request: HttpRequest, spoken: Format) -> Plan:
    """Return the response plan of a reply to the request."""
    match reply:
        case TextReply() | ToolCall() | ToolCalls() | Json() | Refusal():
            return _whole(say(reply, request), request, spoken)
        case RateLimitReply():
            return _rate_limited(reply, spoken)
        case ServerError():
            return refuse(spoken.error(reply.status, reply.message, reply.code), reply.status)
        case TruncatedStream():
            return _truncated(reply, request, spoken)
        case MalformedReply():
            return _malformed(reply, request, spoken)
        case SlowBytes():
            return _slow(reply, request, spoken)
        case Hang():
            return NoResponse()
        case _:
            assert_never(reply)


def refuse(body: Body, status: int, *headers: tuple[str, str]) -> ResponsePlan:
    """Return an error with its body."""
    return _plain(to_bytes(to_text(body)), status=status, headers=(("content-type", "application/json"), *headers))


def _whole(said: ModelOutput, request: HttpRequest, spoken: Format) -> ResponsePlan:
    if request.stream:
        events = spoken.events(said, request)
        return _streamed((*events.begin, *events.end))
    return _plain(_body(said, request, spoken))


def _rate_limited(reply: RateLimitReply, spoken: Format) -> ResponsePlan:
    waiting = () if reply.retry_after is None else (("retry-after", f"{reply.retry_after:g}"),)
    return refuse(spoken.error(429, reply.message, "rate_limit_error"), 429, *waiting)


def _truncated(reply: TruncatedStream, request: HttpRequest, spoken: Format) -> ResponsePlan:
    shown = reply.text[: reply.after] if request.stream else reply.text
    said = say(TextReply(shown) if reply.tool is None else ToolCall(reply.tool, shown), request)
    if request.stream:
        return _streamed(spoken.events(said, request).begin, cut_off=not reply.in_order)
    body = _body(said, request, spoken)
    return _plain(body[: min(reply.after, len(body) - 1)], length=len(body), cut_off=True)


def _malformed(reply: MalformedReply, request: HttpRequest, spoken: Format) -> ResponsePlan:
    if not request.stream:
        return _plain(to_bytes(reply.body))
    events = spoken.events(say(TextReply(""), request), request)
    return _streamed((*events.begin, Event(data=reply.body, name=spoken.delta_name), *events.end))


def _slow(reply: SlowBytes, request: HttpRequest, spoken: Format) -> ResponsePlan:
    said = say(TextReply(reply.text, tuple(reply.text)), request)
    sending = _whole(said, request, spoken)
    if not request.stream:
        sending = attrs.evolve(sending, pieces=_split(sending.pieces[0], len(reply.text)))
    return attrs.evolve(sending, pause_s=reply.seconds_between)


def _body(said: ModelOutput, request: HttpRequest, spoken: Format) -> bytes:
    return to_bytes(to_text(spoken.answer(said, request)))


def _plain(
    body: bytes,
    *,
    status: int = 200,
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),),
    length: int | None = None,
    cut_off: bool = False,
) -> ResponsePlan:
    announced = len(body) if length is None else length
    return ResponsePlan(pieces=(body,), status=status, headers=headers, length=announced, cut_off=cut_off)


def _streamed(events: Iterable[Event], *, cut_off: bool = False) -> ResponsePlan:
    return ResponsePlan(pieces=tuple(event.encode() for event in events), headers=_EVENT_STREAM, cut_off=cut_off)


def _split(body: bytes, count: int) -> tuple[bytes, ...]:
    size = max(1, math.ceil(len(body) / max(1, count)))
    return tuple(body[at : at + size] for at in range(0, len(body), size))
