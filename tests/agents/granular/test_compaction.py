"""Shorter histories: what is kept, and that a provider accepts what is left."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from flujo_actors._agents.compaction import compact_history
from flujo_actors.errors import DeclarationError

few_ids = st.sampled_from(["a", "b", "c"])
any_request = st.lists(
    st.one_of(
        st.builds(UserPromptPart, content=st.just("?")),
        st.builds(SystemPromptPart, content=st.just("!")),
        st.builds(ToolReturnPart, tool_name=st.just("tool"), content=st.just(1), tool_call_id=few_ids),
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: ModelRequest(parts=parts))
any_response = st.lists(
    st.builds(TextPart, content=st.just("."))
    | st.builds(ToolCallPart, tool_name=st.just("tool"), tool_call_id=few_ids),
    min_size=1,
    max_size=3,
).map(lambda parts: ModelResponse(parts=parts))
broken_histories = st.lists(any_request | any_response, max_size=10)


@st.composite
def sound_histories(draw: st.DrawFn) -> list[ModelMessage]:
    """A prompt, then turns of calls and answers, sometimes with another prompt, ids used again at will."""
    history: list[ModelMessage] = [ModelRequest(parts=[SystemPromptPart("be"), UserPromptPart("first")])]
    for _ in range(draw(st.integers(0, 6))):
        ids = draw(st.lists(few_ids, unique=True, max_size=2))
        history.append(ModelResponse(parts=[TextPart("."), *(ToolCallPart("tool", {}, tool_call_id=i) for i in ids)]))
        answers = [ToolReturnPart("tool", 1, tool_call_id=i) for i in draw(st.permutations(ids))]
        prompt = [UserPromptPart("more")] if not ids or draw(st.booleans()) else []
        history.append(ModelRequest(parts=[*answers, *prompt]))
    return history


def _require_accepted(history: list[ModelMessage]) -> None:
    """What every provider demands: an answer for each call before the next response, and no other answers."""
    waiting: list[str] = []
    for message in history:
        assert message.parts
        if isinstance(message, ModelResponse):
            assert waiting == []
            waiting = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                waiting.remove(part.tool_call_id)
    assert waiting == [] or isinstance(history[-1], ModelResponse)


@given(sound_histories(), st.integers(1, 12))
@settings(deadline=None)
def test_the_first_prompt_and_the_end_are_kept_and_pairs_stay_together(
    history: list[ModelMessage], keep_last: int
) -> None:
    """A sound history stays sound, begins as it began and ends as it ended, with no part of it changed."""
    compacted = compact_history(history, keep_last=keep_last)
    _require_accepted(compacted)
    assert compacted[0] == history[0]
    tail = compacted[1:]
    assert len(tail) >= min(keep_last, len(history) - 1)
    assert tail == (history[-len(tail) :] if tail else [])
    assert len(tail) <= keep_last + 1


@given(broken_histories, st.integers(1, 12))
@settings(deadline=None)
def test_whatever_the_history_was_the_result_is_accepted(history: list[ModelMessage], keep_last: int) -> None:
    """Calls without answers and answers without calls are left out, and the given history is not touched."""
    before = copy.deepcopy(history)
    _require_accepted(compact_history(history, keep_last=keep_last))
    assert history == before


def test_a_pair_is_never_parted() -> None:
    """A cut that falls on an answer moves to before its call."""
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("first")]),
        ModelResponse(parts=[TextPart("old")]),
        ModelRequest(parts=[UserPromptPart("again")]),
        ModelResponse(parts=[ToolCallPart("tool", {}, tool_call_id="a")]),
        ModelRequest(parts=[ToolReturnPart("tool", 1, tool_call_id="a")]),
    ]
    assert compact_history(history, keep_last=1) == [history[0], history[3], history[4]]


def test_a_short_history_is_kept_whole() -> None:
    """Nothing is cut where there is nothing to spare."""
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("first")]), ModelResponse(parts=[TextPart("x")])]
    assert compact_history(history, keep_last=5) == history
    assert compact_history([], keep_last=5) == []


def test_keeping_nothing_is_refused() -> None:
    """The last message is what the model answers to."""
    with pytest.raises(DeclarationError, match="keep_last=0"):
        compact_history([], keep_last=0)
