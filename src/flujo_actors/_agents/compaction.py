"""Shorter message histories that a provider still accepts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from ..errors import DeclarationError

P = TypeVar("P")
M = TypeVar("M", ModelRequest, ModelResponse)


def compact_history(messages: Sequence[ModelMessage], *, keep_last: int) -> list[ModelMessage]:
    """The first user message, the system prompts before it, and at least the last `keep_last` messages.

    A tool call and its answer stay together: where the cut would part them, both are kept. The result has no call
    without an answer and no answer without a call, except calls in the last message, which wait for theirs; so what was
    broken in the history is left out, too. Nothing of `messages` is changed.
    """
    if keep_last < 1:
        raise DeclarationError(f"compact_history(keep_last={keep_last!r}): at least the last message must be kept")
    head = next((place for place, message in enumerate(messages) if _asks(message)), -1)
    cut = _whole_pairs(messages, max(head + 1, len(messages) - keep_last))
    return list(_without_orphans([*_beginning(messages, head), *messages[cut:]]))


def _asks(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)


def _beginning(messages: Sequence[ModelMessage], head: int) -> Iterator[ModelMessage]:
    for place, message in enumerate(messages[: head + 1]):
        if isinstance(message, ModelRequest):
            parts = message.parts if place == head else [p for p in message.parts if isinstance(p, SystemPromptPart)]
            if parts:
                yield dataclasses.replace(message, parts=list(parts))


def _whole_pairs(messages: Sequence[ModelMessage], cut: int) -> int:
    """The latest place at or before `cut` that lies between no call and its answer."""
    asked: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for place, message in enumerate(messages):
        spans.extend((asked[call], place) for call in _answered(message) if call in asked)
        asked.update((call, place) for call in _called(message))
    for begin, end in sorted(spans, reverse=True):
        if begin < cut <= end:
            cut = begin
    return cut


def _called(message: ModelMessage) -> list[str]:
    if isinstance(message, ModelRequest):
        return []
    return [call for part in message.parts if (call := _call_of(part)) is not None]


def _answered(message: ModelMessage) -> list[str]:
    if isinstance(message, ModelResponse):
        return []
    return [call for part in message.parts if (call := _answer_to(part)) is not None]


def _call_of(part: ModelResponsePart) -> str | None:
    return part.tool_call_id if isinstance(part, ToolCallPart) else None


def _answer_to(part: ModelRequestPart) -> str | None:
    """The `tool_call_id` that a part of a request answers, if it answers one."""
    if isinstance(part, ToolReturnPart):
        return part.tool_call_id
    is_retry = part.part_kind == "retry-prompt" and getattr(part, "tool_name", None) is not None
    return str(getattr(part, "tool_call_id", "")) if is_retry else None


# --- what a provider refuses ------------------------------------------------------------------------------


def _without_orphans(messages: Sequence[ModelMessage]) -> Iterator[ModelMessage]:
    """The messages without answers to no call, and without calls that are not answered before the next response."""
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            yield from _with_parts(message, _matched(message.parts, _answer_to, waiting))
        elif place == len(messages) - 1:
            yield message
        else:
            heard = _matched(message.parts, _call_of, _answers_before_response(messages[place + 1 :]))
            waiting = [call for part in heard if (call := _call_of(part)) is not None]
            yield from _with_parts(message, heard)


def _answers_before_response(messages: Sequence[ModelMessage]) -> list[str]:
    requests = itertools.takewhile(lambda message: isinstance(message, ModelRequest), messages)
    return [call for message in requests for call in _answered(message)]


def _matched(parts: Sequence[P], call_of: Callable[[P], str | None], partners: list[str]) -> list[P]:
    """The parts that belong to no tool call, or to one with a partner; each partner is taken once."""
    kept: list[P] = []
    for part in parts:
        call = call_of(part)
        if call in partners:
            partners.remove(call)
        elif call is not None:
            continue
        kept.append(part)
    return kept


def _with_parts(message: M, parts: Sequence[Any]) -> Iterator[M]:
    if len(parts) == len(message.parts):
        yield message
    elif parts:
        yield dataclasses.replace(message, parts=list(parts))


def shortened_history(keep_last: int | None, *, after: int = 0) -> dict[str, object]:
    """Arguments for pydantic-ai's `run` that show the model no more than `compact_history` keeps.

    The first `after` messages are the conversation that this one goes on with: they stay.
    """
    if keep_last is None:
        return {}
    return {"capabilities": [ProcessHistory(functools.partial(_compact_after, after, keep_last))]}


def _compact_after(after: int, keep_last: int, messages: list[ModelMessage]) -> list[ModelMessage]:
    return [*messages[:after], *compact_history(messages[after:], keep_last=keep_last)]
