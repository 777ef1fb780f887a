"""Shorter message histories that a provider still accepts.

Sections:

- Assembled context as a user message between system prompt and prompt.
- Message histories: read from and appended to context values.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory, ReinjectSystemPrompt
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import RunContext

from ..errors import ContextError, DeclarationError

P = TypeVar("P")
M = TypeVar("M", ModelRequest, ModelResponse)


def compact_history(messages: Sequence[ModelMessage], *, keep_last: int) -> list[ModelMessage]:
    """Return the first user message, its system prompts and the last messages.

    At least `keep_last` messages are kept. A tool call and its return stay together: where the cut would separate them,
    both are kept. The result has no call without a return and no return without a call, except calls in the last
    message, which are pending; broken pairs in the history are dropped. `messages` is not changed.

    Args:
        messages: history of a model agent.
        keep_last: number of latest messages that stay unchanged.

    Example:
        ```python
        result = Flujo(Step("ask", make_agent_async(scripted_model("Tea.")))).run("What is it?")
        messages = [*result.step_history[0].messages]
        assert compact_history(messages, keep_last=2) == messages
        ```
    """
    if keep_last < 1:
        raise DeclarationError(f"compact_history(keep_last={keep_last!r}): at least the last message must be kept")
    head = next((place for place, message in enumerate(messages) if _is_prompt(message)), -1)
    cut = _whole_pairs(messages, max(head + 1, len(messages) - keep_last))
    return list(_without_orphans([*_beginning(messages, head), *messages[cut:]]))


def _is_prompt(message: ModelMessage) -> bool:
    return isinstance(message, ModelRequest) and any(isinstance(part, UserPromptPart) for part in message.parts)


def _beginning(messages: Sequence[ModelMessage], head: int) -> Iterator[ModelMessage]:
    for place, message in enumerate(messages[: head + 1]):
        if isinstance(message, ModelRequest):
            parts = message.parts if place == head else [p for p in message.parts if isinstance(p, SystemPromptPart)]
            if parts:
                yield dataclasses.replace(message, parts=list(parts))


def _whole_pairs(messages: Sequence[ModelMessage], cut: int) -> int:
    """Return the latest position at or before `cut` outside any call-return pair."""
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
    """Return the `tool_call_id` that a request part answers, or None."""
    if isinstance(part, ToolReturnPart):
        return part.tool_call_id
    is_retry = part.part_kind == "retry-prompt" and getattr(part, "tool_name", None) is not None
    return str(getattr(part, "tool_call_id", "")) if is_retry else None


# --- provider restrictions ----------------------------------------------------------------------------------


def _without_orphans(messages: Sequence[ModelMessage]) -> Iterator[ModelMessage]:
    """Yield the messages without unpaired calls and returns."""
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
    """Return parts without an unmatched tool call; each partner counts once."""
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
    """Return arguments for pydantic-ai's `run` that apply `compact_history`.

    The first `after` messages are the continued conversation: they stay.
    """
    if keep_last is None:
        return {}
    return {"capabilities": [ProcessHistory(functools.partial(_compact_after, after, keep_last))]}


def _compact_after(after: int, keep_last: int, messages: list[ModelMessage]) -> list[ModelMessage]:
    return [*messages[:after], *compact_history(messages[after:], keep_last=keep_last)]


# --- Assembled context as a user message between system prompt and prompt -----------------------------------------
# Rules:
#
# 1. It is inserted where a run's first request is made of its prompt, so that plain, streamed and granular runs, and
#    agents with a system prompt or with instructions, all send the same. Later requests of the run repeat it.
# 2. It is identified by the metadata of its part, which no provider is sent, never by its text.
# 3. A remembered conversation holds no contexts, or they would be found, shown and remembered again.


ORIGIN = "flujo_actors.context"
"""Metadata value of such a part."""


class ShownContext(AbstractCapability[Any]):
    """Insert a text before the user's prompt; see the module's rules."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def after_node_run(self, ctx: RunContext[object], *, node: Any, result: Any) -> Any:
        if Agent.is_user_prompt_node(node) and Agent.is_model_request_node(result):
            shown = UserPromptPart([TextContent(self._text, metadata={"origin": ORIGIN})])
            result.request = dataclasses.replace(result.request, parts=_with_context(result.request.parts, shown))
        return result


def _with_context(parts: Iterable[ModelRequestPart], shown: UserPromptPart) -> list[ModelRequestPart]:
    before = list(parts)
    place = next((place for place, part in enumerate(before) if isinstance(part, UserPromptPart)), len(before))
    return [*before[:place], shown, *before[place:]]


def context_in(message: ModelMessage) -> str | None:
    """Return the context that a message shows, if it shows one."""
    if not isinstance(message, ModelRequest):
        return None
    return next((text for part in message.parts if (text := _context_of(part)) is not None), None)


def to_remember(messages: Iterable[ModelMessage]) -> Iterator[ModelMessage]:
    """Yield the messages without contexts and system prompts, which are added again."""
    for message in messages:
        if isinstance(message, ModelRequest):
            parts = [
                part for part in message.parts if not isinstance(part, SystemPromptPart) and _context_of(part) is None
            ]
            if parts:
                yield dataclasses.replace(message, parts=parts)
        else:
            yield message


def _context_of(part: ModelRequestPart) -> str | None:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return None
    texts = (piece for piece in part.content if isinstance(piece, TextContent))
    return next((piece.content for piece in texts if _origin(piece) == ORIGIN), None)


def _origin(piece: TextContent) -> object:
    return piece.metadata.get("origin") if isinstance(piece.metadata, dict) else None


# --- Message histories --------------------------------------------------------------------------------------------


def messages_of(value: object, *, subject: str) -> list[ModelMessage]:
    """Return the messages of a value: pydantic-ai's own, JSON or text."""
    if value is None:
        return []
    try:
        if isinstance(value, str | bytes):
            return ModelMessagesTypeAdapter.validate_json(value)
        if not isinstance(value, Iterable):
            raise ContextError(f"{subject} must hold pydantic-ai messages, or their JSON, not a {type(value).__name__}")
        return ModelMessagesTypeAdapter.validate_python(list(value))
    except ValidationError as error:
        raise ContextError(
            f"{subject} holds data that is not pydantic-ai messages ({error.error_count()} errors)"
        ) from None


def shortened(messages: Sequence[ModelMessage], keep_last: int | None) -> list[ModelMessage]:
    """Return a conversation cut as by `compact_history`."""
    return list(messages) if keep_last is None or not messages else compact_history(messages, keep_last=keep_last)


def messages_since(messages: Sequence[ModelMessage], history: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages of other runs than the history's.

    Not by position: pydantic-ai joins requests that follow one another.
    """
    before = {message.run_id for message in history} | {None}
    return [message for message in messages if message.run_id not in before]


def history_options(messages: list[ModelMessage]) -> dict[str, object]:
    """Return arguments for pydantic-ai's `run` that keep the system prompt."""
    if not messages:
        return {}
    return {"message_history": messages, "capabilities": [cast("AbstractCapability[Any]", ReinjectSystemPrompt())]}


def appended(kept: object, said: Sequence[ModelMessage], *, subject: str, as_messages: bool) -> list[object]:
    """Return a kept conversation with the new messages, in its own form."""
    before = messages_of(kept, subject=subject)
    after = [*before, *to_remember(said)]
    listed = isinstance(kept, list | tuple) and any(isinstance(each, ModelRequest | ModelResponse) for each in kept)
    if listed or as_messages:
        return list(after)
    data: list[Any] = ModelMessagesTypeAdapter.dump_python(after, mode="json")
    return data


def messages_in(text: str | bytes) -> tuple[ModelMessage, ...]:
    """Return the messages of a transcript from the journal."""
    return tuple(ModelMessagesTypeAdapter.validate_python(json.loads(text)))


def text_of_messages(messages: Sequence[ModelMessage]) -> str:
    """Return messages as JSON text for the journal."""
    plain = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return json.dumps(plain, separators=(",", ":"))
