"""Hypothesis strategies for responses of every part kind."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any, get_args

from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    CompactionPart,
    ContentCitationAnchor,
    FilePart,
    LoadCapabilityCallPart,
    ModelRequestAttempt,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    NativeToolSearchCallPart,
    NativeToolSearchReturnPart,
    SpeechPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSearchCallPart,
    WebCitationSource,
)
from pydantic_ai.usage import RequestUsage

MEDIA = ["image/png", "audio/wav", "application/pdf"]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text("abc_", min_size=1, max_size=6)
ids = st.text("xyz0123456789", min_size=1, max_size=8)
maybe_text = st.none() | texts
times = st.datetimes(timezones=st.just(UTC))
counts = st.integers(0, 10**9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(words, json_values, max_size=3)
maybe_object = st.none() | objects
provider = {"id": st.none() | ids, "provider_name": st.none() | words, "provider_details": maybe_object}
binaries = st.builds(BinaryContent, data=st.binary(max_size=20), media_type=st.sampled_from(MEDIA)).map(
    BinaryContent.narrow_type  # as pydantic-ai's own code makes them: images have a class of their own
)
sounds = st.builds(BinaryContent, data=st.binary(max_size=20), media_type=st.just("audio/wav"))
urls = st.sampled_from(["https://example.org/a.png", "https://example.org/b"])
returns: dict[str, Any] = {
    "content": json_values | binaries,
    "tool_call_id": ids,
    "metadata": json_values,
    "timestamp": times,
    "outcome": st.sampled_from(["success", "failed", "denied", "interrupted"]),
}
calls: dict[str, Any] = {"tool_name": words, "args": maybe_text | objects, "tool_call_id": ids, **provider}
found = st.fixed_dictionaries({"discovered_tools": st.lists(st.fixed_dictionaries({"name": words}), max_size=2)})
searched = st.none() | st.fixed_dictionaries({"queries": st.lists(texts, max_size=2)})


def _speech(speaker: str) -> st.SearchStrategy[SpeechPart]:
    return st.builds(SpeechPart, speaker=st.just(speaker), transcript=maybe_text, audio=st.none() | sounds, **provider)


response_parts: dict[type, st.SearchStrategy[Any]] = {
    TextPart: st.builds(
        TextPart,
        content=texts,
        citations=st.none()
        | st.lists(
            st.builds(
                Citation,
                sources=st.lists(st.builds(WebCitationSource, url=urls, title=maybe_text), min_size=1, max_size=2),
                anchor=st.none() | st.builds(ContentCitationAnchor, start=st.integers(0, 9), end=st.integers(10, 99)),
            ),
            max_size=2,
        ),
        **provider,
    ),
    ThinkingPart: st.builds(ThinkingPart, content=texts, signature=maybe_text, **provider),
    ToolCallPart: st.builds(ToolCallPart, **calls),
    ToolSearchCallPart: st.builds(ToolSearchCallPart, args=searched, tool_call_id=ids, **provider),
    LoadCapabilityCallPart: st.builds(
        LoadCapabilityCallPart, args=st.none() | st.fixed_dictionaries({"id": words}), tool_call_id=ids, **provider
    ),
    NativeToolCallPart: st.builds(NativeToolCallPart, **calls),
    NativeToolReturnPart: st.builds(NativeToolReturnPart, tool_name=words, **returns),
    NativeToolSearchCallPart: st.builds(NativeToolSearchCallPart, args=searched, tool_call_id=ids, **provider),
    NativeToolSearchReturnPart: st.builds(NativeToolSearchReturnPart, content=found, tool_call_id=ids, timestamp=times),
    CompactionPart: st.builds(CompactionPart, content=maybe_text, metadata=maybe_object, **provider),
    FilePart: st.builds(FilePart, content=binaries, **provider),
    SpeechPart: _speech("assistant"),
}
"""By class, for each kind that a response may hold."""

usages = st.builds(
    RequestUsage,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    details=st.dictionaries(words, counts, max_size=2),
    cost=st.none() | st.decimals(0, 100, places=6),
)
attempts = st.builds(
    ModelRequestAttempt,
    model_name=words,
    outcome=st.sampled_from(["error", "rejected"]),
    error=maybe_text,
    timestamp=times,
    duration=st.integers(0, 10**6).map(lambda ms: timedelta(milliseconds=ms)),
    usage=st.none() | usages,
)
origin = {"run_id": st.none() | ids, "conversation_id": st.none() | ids, "metadata": maybe_object}


def responses(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[ModelResponse]:
    """Responses made of such parts."""
    return st.builds(
        ModelResponse,
        parts=st.lists(parts, min_size=1, max_size=4),
        usage=usages,
        model_name=st.none() | words,
        timestamp=times,
        provider_name=st.none() | words,
        provider_details=maybe_object,
        provider_response_id=st.none() | ids,
        finish_reason=st.sampled_from([None, "stop", "length", "tool_call"]),
        failed_attempts=st.none() | st.lists(attempts, max_size=1),
        state=st.sampled_from(["complete", "suspended", "interrupted"]),
        **origin,
    )


def kinds_of(union: Any) -> set[type]:
    """The part classes in one of pydantic-ai's unions, those aside that are only read, never made."""
    members = get_args(get_args(union)[0])
    classes = {get_args(member)[0] for member in members}
    return {kind for kind in classes if isinstance(kind, type) and kind.__name__ != "RetryPromptPart"}


RESPONSE_KINDS = kinds_of(ModelResponsePart)
