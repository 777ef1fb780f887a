"""What the model says in a reply, before a provider's format is put around it."""

from __future__ import annotations

import re
from typing import TypeAlias, assert_never

import attrs

from ._replies import Finish, Json, Refusal, Text, ToolCall, ToolCalls, Usage, to_bytes, to_text
from ._requests import Request

Spoken: TypeAlias = Text | ToolCall | ToolCalls | Json | Refusal
"""The replies in which a model speaks and the connection works."""

ARGUMENTS_CUT = 12
"""Characters of tool arguments in one event of a stream."""

CREATED = 1_700_000_000
"""The creation time of every answer: replies are the same in every run."""


@attrs.frozen(kw_only=True)
class Said:
    """Text as a stream cuts it, then tool calls; or a refusal."""

    deltas: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    finish: Finish = "stop"
    usage: Usage

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.deltas)


def say(reply: Spoken, request: Request) -> Said:
    """What is said in answer to this request, with the words counted where the reply gives no usage."""
    match reply:
        case Text():
            deltas = words(reply.text) if reply.chunks is None else reply.chunks
            said = Said(deltas=deltas, finish=reply.finish, usage=_NONE)
        case ToolCall():
            said = Said(calls=(reply,), finish=reply.finish, usage=_NONE)
        case ToolCalls():
            said = Said(deltas=words(reply.text), calls=reply.calls, usage=_NONE)
        case Json():
            said = _structured(reply, request)
        case Refusal():
            said = Said(refusal=reply.text, usage=_NONE)
        case _:
            assert_never(reply)
    return attrs.evolve(said, usage=reply.usage or count(said, request))


def _structured(reply: Json, request: Request) -> Said:
    if request.output_tool is None:
        return Said(deltas=words(to_text(reply.value)), usage=_NONE)
    return Said(calls=(ToolCall(request.output_tool, reply.value),), usage=_NONE)


def count(said: Said, request: Request) -> Usage:
    """One token for each word."""
    spoken = " ".join((said.text, said.refusal or "", *(call.arguments_json for call in said.calls)))
    return Usage(len(request.text.split()), len(spoken.split()))


def words(text: str) -> tuple[str, ...]:
    """The text cut before each word; joined again it is the same text."""
    return tuple(re.findall(r"\S+\s*|\s+", text))


def cut(text: str, size: int = ARGUMENTS_CUT) -> tuple[str, ...]:
    """The text in pieces of `size` characters."""
    return tuple(text[at : at + size] for at in range(0, len(text), size))


_NONE = Usage(0, 0)


@attrs.frozen(kw_only=True)
class Event:
    """One server-sent event. `data` is JSON, as an object or written out."""

    data: dict[str, object] | str
    name: str | None = None

    def encode(self) -> bytes:
        """The event's bytes on the wire."""
        data = self.data if isinstance(self.data, str) else to_text(self.data)
        head = f"event: {self.name}\n" if self.name else ""
        return to_bytes(f"{head}data: {data}\n\n")


@attrs.frozen(kw_only=True)
class Events:
    """A stream in two parts: a truncated one has no `end`."""

    begin: tuple[Event, ...]
    end: tuple[Event, ...]
