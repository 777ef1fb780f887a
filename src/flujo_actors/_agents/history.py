"""Conversations that were had before: read from wherever they were kept, and kept again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse

from ..errors import ContextError
from .compaction import compact_history
from .shown_context import to_remember


def messages_of(value: object, *, what: str) -> list[ModelMessage]:
    """The messages in a value: pydantic-ai's own, their JSON as data or as text, or none at all."""
    if value is None:
        return []
    try:
        if isinstance(value, str | bytes):
            return ModelMessagesTypeAdapter.validate_json(value)
        if not isinstance(value, Iterable):
            raise ContextError(f"{what} must hold messages of pydantic-ai, or their JSON, not a {type(value).__name__}")
        return ModelMessagesTypeAdapter.validate_python(list(value))
    except ValidationError as error:
        raise ContextError(f"{what} holds what are no messages of pydantic-ai ({error.error_count()} errors)") from None


def shortened(messages: Sequence[ModelMessage], keep_last: int | None) -> list[ModelMessage]:
    """The end of a conversation, with its beginning, as `compact_history` cuts it."""
    return list(messages) if keep_last is None or not messages else compact_history(messages, keep_last=keep_last)


def history_options(messages: list[ModelMessage]) -> dict[str, object]:
    """Arguments for pydantic-ai's `run`: a conversation that goes on does not lose the system prompt."""
    if not messages:
        return {}
    return {"message_history": messages, "capabilities": [cast("AbstractCapability[Any]", ReinjectSystemPrompt())]}


def appended(kept: object, said: Sequence[ModelMessage], *, what: str, as_messages: bool) -> list[object]:
    """What was kept of a conversation, with what was said since: as messages where messages are, else as plain data."""
    before = messages_of(kept, what=what)
    after = [*before, *to_remember(said)]
    listed = isinstance(kept, list | tuple) and any(isinstance(each, ModelRequest | ModelResponse) for each in kept)
    if listed or as_messages:
        return list(after)
    data: list[Any] = ModelMessagesTypeAdapter.dump_python(after, mode="json")
    return data
