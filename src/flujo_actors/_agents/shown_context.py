"""The assembled context on its way to a model: a user message of its own, between the system prompt and the prompt.

Rules:

1. It is put in where a run's first request is made of its prompt, so that plain, streamed and granular runs, and agents
   with a system prompt or with instructions, all send the same. Later requests of the run repeat it.
2. It is known by the metadata of its part, which no provider is sent, never by its text.
3. What is remembered of a conversation holds no contexts, or they would be found, shown and remembered again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    SystemPromptPart,
    TextContent,
    UserPromptPart,
)
from pydantic_ai.tools import RunContext

ORIGIN = "flujo_actors.context"
"""What the metadata of such a part says."""


class ShownContext(AbstractCapability[Any]):
    """Shows a text to the model before the user's prompt; see the module's rules."""

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
    """The context that a message shows, if it shows one."""
    if not isinstance(message, ModelRequest):
        return None
    return next((text for part in message.parts if (text := _context_of(part)) is not None), None)


def to_remember(messages: Iterable[ModelMessage]) -> Iterator[ModelMessage]:
    """The messages without contexts, and without system prompts, which the next call has of its own."""
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
