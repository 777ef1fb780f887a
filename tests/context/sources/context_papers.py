"""A collection, and what a model was sent, for the tests of context sources."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, ToolReturnPart, UserPromptPart

from flujo_actors import Collection, RetrievalResult
from flujo_actors.testing import MemorySink


class Papers(Collection, name="papers"):
    tenant: str
    year: int


class Notes(Collection, name="notes"):
    pass


def passage(text: str, score: float, id: str | None = None, **metadata: Any) -> RetrievalResult:
    """A result of a search."""
    return RetrievalResult(content=text, score=score, source_id=id, metadata=metadata)


def sent(messages: list[ModelMessage]) -> list[tuple[str, str]]:
    """What a model was sent, part by part: who said it, and what."""
    said: list[tuple[str, str]] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            said.append(("model", "".join(str(getattr(part, "content", "→")) for part in message.parts)))
            continue
        said.extend(_part(part) for part in message.parts)
    return said


def _part(part: Any) -> tuple[str, str]:
    match part:
        case SystemPromptPart(content=text):
            return "system", text
        case UserPromptPart(content=str(text)):
            return "user", text
        case UserPromptPart(content=pieces):
            return "user", "".join(getattr(piece, "content", piece) for piece in pieces)
        case ToolReturnPart(content=text):
            return "tool", str(text)
        case _:
            return type(part).__name__, ""


def heard(*, content: bool = True) -> tuple[MemorySink, dict[str, Any]]:
    """A sink, and settings that tell it everything."""
    sink = MemorySink()
    return sink, {"telemetry": {"sinks": [sink], "content": content}}
