"""OpenAI's Responses API: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator

from ._openai_chat import error as error
from ._replies import ToolCall, Usage
from ._requests import Asked, Body, Called, Message, Received, Request, Tool, text_of
from ._said import CREATED, Event, Events, Said, cut


def read(body: Received) -> Asked:
    """The conversation, the tools and the response format of a request."""
    return Asked(
        messages=tuple(_messages(body)),
        tools=tuple(_tool(entry) for entry in body.get("tools", ()) if entry.get("type") == "function"),
        response_format=((body.get("text") or {}).get("format") or {}).get("type", "text"),
    )


def _messages(body: Received) -> Iterator[Message]:
    if body.get("instructions"):
        yield Message(role="system", text=body["instructions"])
    items = body.get("input", ())
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        yield from _item(item)


def _item(item: Received) -> Iterator[Message]:
    match item:
        case {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}:
            yield Message(role="assistant", calls=(Called(id=id, name=name, arguments=arguments),))
        case {"type": "function_call_output", "call_id": id, "output": output}:
            yield Message(role="tool", text=text_of(output), call_id=id)
        case {"role": role}:
            yield Message(role=role, text=text_of(item.get("content")))


def _tool(entry: Received) -> Tool:
    return Tool(
        name=entry["name"],
        description=entry.get("description") or "",
        parameters=entry.get("parameters") or {},
    )


def answer(said: Said, request: Request) -> Body:
    """The body of an answer that is not streamed."""
    return _response(request, said, output=_items(said, request))


def _items(said: Said, request: Request) -> list[Body]:
    items = [_message_item(request, _part(said))] if _speaks(said) else []
    return items + [_call_item(call, request, at) for at, call in enumerate(said.calls)]


def _speaks(said: Said) -> bool:
    return bool(said.deltas) or said.refusal is not None or not said.calls


def events(said: Said, request: Request) -> Events:
    """The events of a streamed answer, each numbered in order."""
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
    settled = answer(said, request)
    end.append({"type": f"response.{settled['status']}", "response": settled})
    return _numbered(begin, end)


def _numbered(begin: list[Body], end: list[Body]) -> Events:
    numbered = tuple(
        Event(name=str(event["type"]), data=event | {"sequence_number": number})
        for number, event in enumerate([*begin, *end])
    )
    return Events(begin=numbered[: len(begin)], end=numbered[len(begin) :])


def _message_opens(said: Said, request: Request) -> list[Body]:
    at = {"output_index": 0, "content_index": 0, "item_id": f"msg_{request.index}"}
    item = _message_item(request, None)
    opens: list[Body] = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    opens.append({"type": "response.content_part.added", "part": _part(said, empty=True), **at})
    if said.refusal is not None:
        return [*opens, {"type": "response.refusal.delta", "delta": said.refusal, **at}]
    delta = {"type": "response.output_text.delta", "logprobs": [], **at}
    return opens + [delta | {"delta": piece} for piece in said.deltas]


def _message_closes(said: Said, request: Request) -> list[Body]:
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


def _call_opens(call: ToolCall, request: Request, number: int, output_index: int) -> list[Body]:
    item = _call_item(call, request, number)
    at = {"output_index": output_index, "item_id": item["id"]}
    added = {
        "type": "response.output_item.added",
        "output_index": output_index,
        "item": item | {"arguments": "", "status": "in_progress"},
    }
    delta = {"type": "response.function_call_arguments.delta", **at}
    return [added, *(delta | {"delta": piece} for piece in cut(call.arguments_json))]


def _call_closes(call: ToolCall, request: Request, number: int, output_index: int) -> list[Body]:
    item = _call_item(call, request, number)
    at = {"output_index": output_index, "item_id": item["id"]}
    done = {"type": "response.function_call_arguments.done", "arguments": call.arguments_json, **at}
    return [
        done | {"name": call.name},
        {"type": "response.output_item.done", "output_index": output_index, "item": item},
    ]


def _part(said: Said, *, empty: bool = False) -> Body:
    if said.refusal is not None:
        return {"type": "refusal", "refusal": "" if empty else said.refusal}
    return {"type": "output_text", "text": "" if empty else said.text, "annotations": [], "logprobs": []}


def _message_item(request: Request, part: Body | None) -> Body:
    return {
        "id": f"msg_{request.index}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress" if part is None else "completed",
        "content": [] if part is None else [part],
    }


def _call_item(call: ToolCall, request: Request, number: int) -> Body:
    return {
        "id": f"fc_{request.index}_{number}",
        "type": "function_call",
        "call_id": f"call_{request.index}_{number}",
        "name": call.name,
        "arguments": call.arguments_json,
        "status": "completed",
    }


def _response(request: Request, said: Said | None, *, output: list[Body]) -> dict[str, object]:
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
        "usage": None if said is None else _usage(said.usage),
    }


def _usage(usage: Usage) -> Body:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
