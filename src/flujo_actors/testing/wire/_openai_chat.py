"""OpenAI's chat completions: `POST /v1/chat/completions`.

Sections:

- Model output of a reply, independent of a provider's format.
"""

from __future__ import annotations

import re
from typing import TypeAlias, assert_never

import attrs

from ._reply_types import (
    Body,
    Called,
    ChatMessage,
    ClientRequest,
    Finish,
    HttpRequest,
    Json,
    Received,
    Refusal,
    ReplyUsage,
    TextReply,
    Tool,
    ToolCall,
    ToolCalls,
    text_of,
    to_bytes,
    to_text,
)

# --- Model output of a reply --------------------------------------------------------------------------------------


Spoken: TypeAlias = TextReply | ToolCall | ToolCalls | Json | Refusal
"""The replies in which a model speaks and the connection works."""

ARGUMENTS_CUT = 12
"""Characters of tool arguments in one event of a stream."""

CREATED = 1_700_000_000
"""Constant creation time: replies are the same in every run."""


@attrs.frozen(kw_only=True)
class ModelOutput:
    """Text as a stream cuts it, then tool calls; or a refusal."""

    deltas: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    finish: Finish = "stop"
    usage: ReplyUsage

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self.deltas)


def say(reply: Spoken, request: HttpRequest) -> ModelOutput:
    """Return this request's output, counting words without usage."""
    match reply:
        case TextReply():
            deltas = words(reply.text) if reply.chunks is None else reply.chunks
            said = ModelOutput(deltas=deltas, finish=reply.finish, usage=_NONE)
        case ToolCall():
            said = ModelOutput(calls=(reply,), finish=reply.finish, usage=_NONE)
        case ToolCalls():
            said = ModelOutput(deltas=words(reply.text), calls=reply.calls, usage=_NONE)
        case Json():
            said = _structured(reply, request)
        case Refusal():
            said = ModelOutput(refusal=reply.text, usage=_NONE)
        case _:
            assert_never(reply)
    return attrs.evolve(said, usage=reply.usage or count(said, request))


def _structured(reply: Json, request: HttpRequest) -> ModelOutput:
    if request.output_tool is None:
        return ModelOutput(deltas=words(to_text(reply.value)), usage=_NONE)
    return ModelOutput(calls=(ToolCall(request.output_tool, reply.value),), usage=_NONE)


def count(said: ModelOutput, request: HttpRequest) -> ReplyUsage:
    """One token for each word."""
    spoken = " ".join((said.text, said.refusal or "", *(call.arguments_json for call in said.calls)))
    return ReplyUsage(len(request.text.split()), len(spoken.split()))


def words(text: str) -> tuple[str, ...]:
    """Return the text split before each word; joining gives the same text."""
    return tuple(re.findall(r"\S+\s*|\s+", text))


def cut(text: str, size: int = ARGUMENTS_CUT) -> tuple[str, ...]:
    """Return the text in chunks of `size` characters."""
    return tuple(text[at : at + size] for at in range(0, len(text), size))


_NONE = ReplyUsage(0, 0)


@attrs.frozen(kw_only=True)
class Event:
    """One server-sent event. `data` is JSON, as an object or written out."""

    data: dict[str, object] | str
    name: str | None = None

    def encode(self) -> bytes:
        """Return the event's bytes on the wire."""
        data = self.data if isinstance(self.data, str) else to_text(self.data)
        head = f"event: {self.name}\n" if self.name else ""
        return to_bytes(f"{head}data: {data}\n\n")


@attrs.frozen(kw_only=True)
class StreamEvents:
    """A stream in two parts: a truncated one has no `end`."""

    begin: tuple[Event, ...]
    end: tuple[Event, ...]


# --- OpenAI's chat completions ------------------------------------------------------------------------------------


def read(body: Received) -> ClientRequest:
    """Return the conversation, the tools and the response format of a request."""
    return ClientRequest(
        messages=tuple(_message(entry) for entry in body.get("messages", ())),
        tools=tuple(_tool(entry["function"]) for entry in body.get("tools", ()) if "function" in entry),
        response_format=(body.get("response_format") or {}).get("type", "text"),
    )


def _message(entry: Received) -> ChatMessage:
    calls = tuple(
        Called(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in entry.get("tool_calls") or ()
    )
    text = text_of(entry.get("content"))
    return ChatMessage(role=entry["role"], text=text, calls=calls, call_id=entry.get("tool_call_id"))


def _tool(function: Received) -> Tool:
    return Tool(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )


def answer(said: ModelOutput, request: HttpRequest) -> Body:
    """Return the body of an answer that is not streamed."""
    message: Body = {"role": "assistant", "content": _content(said), "refusal": said.refusal}
    if said.calls:
        message["tool_calls"] = [_call(call, request, at) for at, call in enumerate(said.calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
    return _envelope(request, "chat.completion") | {"choices": [choice], "usage": _usage(said.usage)}


def events(said: ModelOutput, request: HttpRequest) -> StreamEvents:
    """Return a streamed answer's events; usage last, on request."""
    begin = [_delta(request, {"role": "assistant", "content": ""})]
    begin += [_delta(request, {"content": piece}) for piece in said.deltas]
    if said.refusal is not None:
        begin.append(_delta(request, {"refusal": said.refusal}))
    for at, call in enumerate(said.calls):
        begin += _call_events(call, request, at)
    end = [_delta(request, {}, finish=_finish(said))]
    if (request.body.get("stream_options") or {}).get("include_usage"):
        end.append(Event(data=_chunk(request) | {"choices": [], "usage": _usage(said.usage)}))
    return StreamEvents(begin=tuple(begin), end=(*end, Event(data="[DONE]")))


def error(status: int, message: str, code: str | None) -> Body:
    """Return the body of an error."""
    kind = {429: "rate_limit_error"}.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _content(said: ModelOutput) -> str | None:
    return None if said.refusal is not None or (said.calls and not said.deltas) else said.text


def _finish(said: ModelOutput) -> str:
    return "tool_calls" if said.calls and said.finish == "stop" else said.finish


def _call(call: ToolCall, request: HttpRequest, at: int) -> Body:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": f"call_{request.index}_{at}", "type": "function", "function": function}


def _call_events(call: ToolCall, request: HttpRequest, at: int) -> list[Event]:
    opened = _call(call, request, at) | {"index": at, "function": {"name": call.name, "arguments": ""}}
    pieces = [{"index": at, "function": {"arguments": piece}} for piece in cut(call.arguments_json)]
    return [_delta(request, {"tool_calls": [entry]}) for entry in (opened, *pieces)]


def _delta(request: HttpRequest, delta: Body, finish: str | None = None) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return Event(data=_chunk(request) | {"choices": [choice]})


def _chunk(request: HttpRequest) -> Body:
    return _envelope(request, "chat.completion.chunk")


def _envelope(request: HttpRequest, kind: str) -> dict[str, object]:
    return {"id": f"chatcmpl-{request.index}", "object": kind, "created": CREATED, "model": request.model}


def _usage(usage: ReplyUsage) -> Body:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
