"""Assembled contexts as JSON data and back: in a form of their own, which does not depend on where classes live."""

from __future__ import annotations

from typing import Any

from ..errors import NotSerializable
from .assembled import (
    AssembledContext,
    ContextSegment,
    Dropped,
    LiteralSegment,
    RetrievalResult,
    RetrievalSegment,
    Skipped,
    StateSegment,
    prompt_text,
)
from .json_codec import from_data, value_data


def assembled_to_data(context: AssembledContext) -> dict[str, object]:
    """The context as JSON data. A state that has no JSON form is kept as the text that is shown of it."""
    return {
        "segments": [_segment_data(segment) for segment in context.segments],
        "dropped": [list(each) for each in context.dropped],
        "skipped": [list(each) for each in context.skipped],
        "tokens": context.tokens,
    }


def _segment_data(segment: ContextSegment) -> dict[str, object]:
    match segment:
        case StateSegment(name=name, value=value):
            return {"state": name, "value": _state_data(value)}
        case LiteralSegment(text=text):
            return {"literal": text}
        case RetrievalSegment():
            return {
                "collection": segment.collection,
                "name": segment.name,
                "if_empty": segment.if_empty,
                "results": [
                    [each.content, each.score, each.source_id, _metadata_data(dict(each.metadata))]
                    for each in segment.results
                ],
            }


def _state_data(value: object) -> object:
    try:
        return value_data(value)
    except NotSerializable:
        return prompt_text(value)


def _metadata_data(metadata: dict[str, object]) -> object:
    try:
        return value_data(metadata)
    except NotSerializable:
        return {str(name): str(value) for name, value in metadata.items()}


def assembled_from_data(data: Any) -> AssembledContext:
    """The context that `assembled_to_data` wrote; `NotSerializable` if it did not."""
    try:
        return AssembledContext(
            segments=[_segment_from(each) for each in data["segments"]],
            dropped=[Dropped(*each) for each in data["dropped"]],
            skipped=[Skipped(*each) for each in data["skipped"]],
            tokens=data["tokens"],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise NotSerializable(f"stored context cannot be read: {error}") from error


def _segment_from(data: dict[str, Any]) -> ContextSegment:
    if "state" in data:
        return StateSegment(data["state"], from_data(data["value"], Any))
    if "literal" in data:
        return LiteralSegment(data["literal"])
    results = [
        RetrievalResult(content=content, score=score, source_id=source_id, metadata=from_data(metadata, dict))
        for content, score, source_id, metadata in data["results"]
    ]
    return RetrievalSegment(data["collection"], results, name=data["name"], if_empty=data["if_empty"])
