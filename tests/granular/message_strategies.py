"""Hypothesis strategies for messages of every part kind."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any, get_args

from hypothesis import strategies as st
from pydantic_ai import messages as kinds
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    Citation,
    CompactionPart,
    ContentCitationAnchor,
    DocumentUrl,
    FilePart,
    ImageUrl,
    InstructionBaselinePart,
    InstructionDeltaPart,
    InstructionPart,
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelRequest,
    ModelRequestAttempt,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelSettingsDeltaPart,
    NativeToolCallPart,
    NativeToolReturnPart,
    NativeToolSearchCallPart,
    NativeToolSearchReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchCallPart,
    ToolSearchReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
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
user_contents = st.one_of(
    texts,
    st.builds(TextContent, content=texts, metadata=json_values),
    st.builds(ImageUrl, url=urls, media_type=st.just("image/png")),
    st.builds(AudioUrl, url=urls, media_type=st.just("audio/mpeg")),
    st.builds(VideoUrl, url=urls, media_type=st.just("video/mp4")),
    st.builds(DocumentUrl, url=urls, media_type=st.just("application/pdf")),
    binaries,
    st.builds(UploadedFile, file_id=ids, provider_name=st.just("openai"), media_type=st.just("application/pdf")),
    st.builds(CachePoint, ttl=st.sampled_from(["5m", "1h"])),
)
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


request_parts: dict[type, st.SearchStrategy[Any]] = {
    SystemPromptPart: st.builds(
        SystemPromptPart, content=texts, timestamp=times, dynamic_ref=maybe_text, metadata=maybe_object
    ),
    UserPromptPart: st.builds(UserPromptPart, content=texts | st.lists(user_contents, max_size=4), timestamp=times),
    SpeechPart: _speech("user"),
    ToolReturnPart: st.builds(ToolReturnPart, tool_name=words, **returns)
    | st.builds(
        ToolReturnPart,
        tool_name=words,
        content=texts,
        tool_call_id=ids,
        timestamp=times,
        outcome=st.just("retried"),
        retry=st.builds(RetryInfo, cause=st.just("model_retry"), attempt=st.none() | counts),
    ),
    ToolSearchReturnPart: st.builds(ToolSearchReturnPart, content=found, tool_call_id=ids, timestamp=times),
    LoadCapabilityReturnPart: st.builds(
        LoadCapabilityReturnPart,
        content=st.fixed_dictionaries({"instructions": texts}),
        tool_call_id=ids,
        timestamp=times,
    ),
    RetryFeedbackPart: st.builds(
        RetryFeedbackPart,
        content=texts,
        timestamp=times,
        retry=st.builds(RetryInfo, cause=st.sampled_from(["no_output", "model_retry"]), attempt=st.none() | counts),
    ),
    ToolAvailabilityDeltaPart: st.builds(
        ToolAvailabilityDeltaPart, tools_added=st.lists(words, max_size=2), tool_call_id=st.none() | ids
    ),
    ModelSettingsDeltaPart: st.builds(
        ModelSettingsDeltaPart, settings=st.just({"thinking": "low"}), top_level=st.booleans()
    ),
    InstructionDeltaPart: st.builds(InstructionDeltaPart, id=st.none(), content=maybe_text, base_hash=maybe_text),
    InstructionBaselinePart: st.builds(
        InstructionBaselinePart,
        instructions=st.lists(st.builds(InstructionPart, content=texts, on_change=st.just("append")), max_size=2),
    ),
    CompactionPart: st.builds(CompactionPart, content=maybe_text, metadata=maybe_object),
}
"""By class, for each kind that a request may hold."""

if hasattr(kinds, "CapabilityLoadDeltaPart"):  # as from pydantic-ai 2.66
    request_parts[kinds.CapabilityLoadDeltaPart] = st.builds(
        kinds.CapabilityLoadDeltaPart, loaded=st.lists(words, max_size=2), tool_call_id=st.none() | ids
    )

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


def requests(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[ModelRequest]:
    """Requests made of such parts."""
    return st.builds(
        ModelRequest,
        parts=st.lists(parts, min_size=1, max_size=4),
        timestamp=st.none() | times,
        instructions=maybe_text,
        state=st.sampled_from(["complete", "interrupted"]),
        **origin,
    )


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


messages = requests(st.one_of(list(request_parts.values()))) | responses(st.one_of(list(response_parts.values())))


def kinds_of(union: Any) -> set[type]:
    """The part classes in one of pydantic-ai's unions, those aside that are only read, never made."""
    members = get_args(get_args(union)[0])
    classes = {get_args(member)[0] for member in members}
    return {kind for kind in classes if isinstance(kind, type) and kind.__name__ != "RetryPromptPart"}


REQUEST_KINDS, RESPONSE_KINDS = kinds_of(ModelRequestPart), kinds_of(ModelResponsePart)
