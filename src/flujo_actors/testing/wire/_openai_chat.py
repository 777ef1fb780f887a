"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from ._replies import ToolCall, Usage
from ._requests import Asked, Body, Called, Message, Received, Request, Tool, text_of
from ._said import CREATED, Event, Events, Said, cut


def read(body: Received) -> Asked:
    """The conversation, the tools and the response format of a request."""
    return Asked(
        messages=tuple(_message(entry) for entry in body.get("messages", ())),
        tools=tuple(_tool(entry["function"]) for entry in body.get("tools", ()) if "function" in entry),
        response_format=(body.get("response_format") or {}).get("type", "text"),
    )


def _message(entry: Received) -> Message:
    calls = tuple(
        Called(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in entry.get("tool_calls") or ()
    )
    text = text_of(entry.get("content"))
    return Message(role=entry["role"], text=text, calls=calls, call_id=entry.get("tool_call_id"))


def _tool(function: Received) -> Tool:
    return Tool(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )


def answer(said: Said, request: Request) -> Body:
    """The body of an answer that is not streamed."""
    message: Body = {"role": "assistant", "content": _content(said), "refusal": said.refusal}
    if said.calls:
        message["tool_calls"] = [_call(call, request, at) for at, call in enumerate(said.calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
    return _envelope(request, "chat.completion") | {"choices": [choice], "usage": _usage(said.usage)}


def events(said: Said, request: Request) -> Events:
    """The events of a streamed answer; usage comes last, and only if it was asked for."""
    begin = [_delta(request, {"role": "assistant", "content": ""})]
    begin += [_delta(request, {"content": piece}) for piece in said.deltas]
    if said.refusal is not None:
        begin.append(_delta(request, {"refusal": said.refusal}))
    for at, call in enumerate(said.calls):
        begin += _call_events(call, request, at)
    end = [_delta(request, {}, finish=_finish(said))]
    if (request.body.get("stream_options") or {}).get("include_usage"):
        end.append(Event(data=_chunk(request) | {"choices": [], "usage": _usage(said.usage)}))
    return Events(begin=tuple(begin), end=(*end, Event(data="[DONE]")))


def error(status: int, message: str, code: str | None) -> Body:
    """The body of an error."""
    kind = {429: "rate_limit_error"}.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _content(said: Said) -> str | None:
    return None if said.refusal is not None or (said.calls and not said.deltas) else said.text


def _finish(said: Said) -> str:
    return "tool_calls" if said.calls and said.finish == "stop" else said.finish


def _call(call: ToolCall, request: Request, at: int) -> Body:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": f"call_{request.index}_{at}", "type": "function", "function": function}


def _call_events(call: ToolCall, request: Request, at: int) -> list[Event]:
    opened = _call(call, request, at) | {"index": at, "function": {"name": call.name, "arguments": ""}}
    pieces = [{"index": at, "function": {"arguments": piece}} for piece in cut(call.arguments_json)]
    return [_delta(request, {"tool_calls": [entry]}) for entry in (opened, *pieces)]


def _delta(request: Request, delta: Body, finish: str | None = None) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return Event(data=_chunk(request) | {"choices": [choice]})


def _chunk(request: Request) -> Body:
    return _envelope(request, "chat.completion.chunk")


def _envelope(request: Request, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{request.index}", "object": kind, "created": CREATED, "model": request.model}


def _usage(usage: Usage) -> Body:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
