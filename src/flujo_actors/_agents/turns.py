"""What an agent did, turn by turn, for people and for a step's history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from pydantic_ai.messages import ModelResponse

from .._core.usage import NO_USAGE, Usage


@attrs.frozen(kw_only=True)
class ToolUse:
    """One tool call that the model asked for."""

    name: str
    tool_call_id: str
    arguments: str
    """JSON text, as the model wrote it."""
    ended: str | None = None
    """`returned`, `retry`, `failed`, …; `None` if it was not run: an output tool, or the turn was cut short."""
    recalled: bool = False
    """Whether an earlier attempt ran it."""


@attrs.frozen(kw_only=True)
class Turn:
    """One model request, with the tool calls it led to."""

    number: int
    text: str = ""
    tool_calls: tuple[ToolUse, ...] = ()
    usage: Usage = NO_USAGE
    """Of the request and of its tool calls."""
    recalled: bool = False
    """Whether an earlier attempt made the request."""


def turn_of(number: int, response: ModelResponse, *, usage: Usage, recalled: bool) -> Turn:
    """The turn that begins with a response."""
    calls = tuple(
        ToolUse(name=call.tool_name, tool_call_id=call.tool_call_id, arguments=call.args_as_json_str())
        for call in response.tool_calls
    )
    return Turn(number=number, text=response.text or "", tool_calls=calls, usage=usage, recalled=recalled)


def joined(before: Turn, more: Turn) -> Turn:
    """Two parts of one turn, which its provider had suspended in between."""
    return attrs.evolve(
        more, text=before.text + more.text, usage=before.usage + more.usage, recalled=before.recalled and more.recalled
    )


def with_tool_ended(turn: Turn, tool_call_id: str, *, ended: str, usage: Usage, recalled: bool) -> Turn:
    """The turn after one of its tool calls ended."""
    mark: Callable[..., Any] = attrs.evolve
    calls = tuple(
        mark(call, ended=ended, recalled=recalled) if call.tool_call_id == tool_call_id and call.ended is None else call
        for call in turn.tool_calls
    )
    return attrs.evolve(turn, tool_calls=calls, usage=turn.usage + usage)
