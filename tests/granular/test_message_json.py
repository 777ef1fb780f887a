"""Message histories as JSON: nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from message_strategies import (
    REQUEST_KINDS,
    RESPONSE_KINDS,
    messages,
    request_parts,
    requests,
    response_parts,
    responses,
)
from pydantic_ai.messages import ModelMessage, ModelResponse

from flujo_actors.agents.message_json import (
    messages_from_json,
    messages_to_json,
    response_from_json,
    response_to_json,
)

unhurried = settings(
    deadline=None,
    max_examples=10,
    phases=[Phase.generate],  # a failing message is read as it is; making it small takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)


def test_every_part_kind_is_tried() -> None:
    """A kind that pydantic-ai adds fails here until it has a strategy."""
    assert set(request_parts) == REQUEST_KINDS
    assert set(response_parts) == RESPONSE_KINDS


@unhurried
@given(st.lists(messages, max_size=4))
def test_a_history_comes_back_equal(history: list[ModelMessage]) -> None:
    """Every message with every field, and a second trip changes nothing."""
    text = messages_to_json(history)
    assert messages_from_json(text) == history
    assert messages_to_json(messages_from_json(text)) == text


@pytest.mark.parametrize("kind", sorted(request_parts, key=lambda kind: kind.__name__))
@given(data=st.data())
@unhurried
def test_each_part_of_a_request_keeps_its_class(kind: type, data: Any) -> None:
    """Not only its fields: pydantic-ai and users tell parts apart by class."""
    message = data.draw(requests(request_parts[kind]))
    back = messages_from_json(messages_to_json([message]))
    assert back == [message]
    assert [type(part) for part in back[0].parts] == [type(part) for part in message.parts]


@pytest.mark.parametrize("kind", sorted(response_parts, key=lambda kind: kind.__name__))
@given(data=st.data())
@unhurried
def test_each_part_of_a_response_keeps_its_class(kind: type, data: Any) -> None:
    """As it is recorded for a unit: one response by itself."""
    message: ModelResponse = data.draw(responses(response_parts[kind]))
    back = response_from_json(response_to_json(message))
    assert back == message
    assert [type(part) for part in back.parts] == [type(part) for part in message.parts]
