"""Anthropic's messages: `POST /v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ._replies import ToolCall, Usage, to_text
from ._requests import Asked, Body, Called, Message, Received, Request, Tool, text_of
from ._said import Event, Events, Said, cut

_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read(body: Received) -> Asked:
    """The conversation, the tools and the response format of a request."""
    output = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Asked(
        messages=tuple(_messages(body)),
        tools=tuple(_tool(entry) for entry in body.get("tools", ()) if "input_schema" in entry),
        response_format=output.get("type", "text"),
    )


def _messages(body: Received) -> Iterator[Message]:
    if body.get("system"):
        yield Message(role="system", text=text_of(body["system"]))
    for entry in body.get("messages", ()):
        yield from _entry(entry["role"], entry["content"])


def _entry(role: str, content: Any) -> Iterator[Message]:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        if block.get("type") == "tool_result":
            yield Message(role="tool", text=text_of(block.get("content")), call_id=block["tool_use_id"])
    calls = tuple(_called(block) for block in blocks if block.get("type") == "tool_use")
    text = "".join(text_of(block) for block in blocks if block.get("type") == "text")
    if text or calls:
        yield Message(role=role, text=text, calls=calls)


def _called(block: Received) -> Called:
    return Called(id=block["id"], name=block["name"], arguments=to_text(block["input"]))


def _tool(entry: Received) -> Tool:
    return Tool(name=entry["name"], description=entry.get("description") or "", parameters=entry["input_schema"])


def answer(said: Said, request: Request) -> Body:
    """The body of an answer that is not streamed."""
    content: list[Body] = [{"type": "text", "text": said.text}] if said.deltas else []
    content += [_call(call, request, at) | {"input": _input(call)} for at, call in enumerate(said.calls)]
    return _message(request) | {"content": content, "usage": _usage(said.usage), **_stop(said)}


def events(said: Said, request: Request) -> Events:
    """The events of a streamed answer: one content block after the other."""
    blocks = [_text_block(said)] if said.deltas else []
    blocks += [_call_block(call, request, at, len(blocks) + at) for at, call in enumerate(said.calls)]
    begin: list[Body] = [_opening(request, said)]
    for block in blocks[:-1]:
        begin += block
    begin += blocks[-1][:-1] if blocks else []
    usage = {"output_tokens": said.usage.output_tokens}
    end = blocks[-1][-1:] if blocks else []
    end += [{"type": "message_delta", "delta": _stop(said), "usage": usage}, {"type": "message_stop"}]
    return Events(begin=tuple(map(_event, begin)), end=tuple(map(_event, end)))


def error(status: int, message: str, code: str | None) -> Body:
    """The body of an error; `code`, if given, is its type."""
    kind = code or _ERROR_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _event(body: Body) -> Event:
    return Event(name=str(body["type"]), data=body)


def _opening(request: Request, said: Said) -> Body:
    usage = _usage(said.usage) | {"output_tokens": 0}
    unsettled: Body = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return {"type": "message_start", "message": _message(request) | unsettled}


def _text_block(said: Said) -> list[Body]:
    return _block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in said.deltas])


def _call_block(call: ToolCall, request: Request, number: int, index: int) -> list[Body]:
    pieces: list[Body] = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(call.arguments_json)]
    return _block(index, _call(call, request, number) | {"input": {}}, pieces)


def _block(index: int, start: Body, deltas: list[Body]) -> list[Body]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _message(request: Request) -> Body:
    return {"id": f"msg_{request.index}", "type": "message", "role": "assistant", "model": request.model}


def _call(call: ToolCall, request: Request, at: int) -> Body:
    return {"type": "tool_use", "id": f"toolu_{request.index}_{at}", "name": call.name}


def _input(call: ToolCall) -> object:
    # The format has no place for arguments that are not JSON; as a string they reach the client unchanged.
    try:
        return json.loads(call.arguments_json)
    except ValueError:
        return call.arguments_json


def _stop(said: Said) -> Body:
    if said.refusal is not None:
        details = {"type": "refusal", "category": None, "explanation": said.refusal}
        return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
    reason = "max_tokens" if said.finish == "length" else "tool_use" if said.calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: Usage) -> Body:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
