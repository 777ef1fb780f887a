"""A model's messages as JSON: nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from message_strategies import (
    RESPONSE_KINDS,
    response_parts,
    responses,
)
from pydantic_ai.messages import ModelResponse

from flujo_actors._agents.granular.conversation import response_from_json, response_to_json

unhurried = settings(
    deadline=None,
    max_examples=10,
    phases=[Phase.generate],  # a failing message is read as it is; making it small takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)


def test_every_part_kind_is_tried() -> None:
    """A kind that pydantic-ai adds fails here until it has a strategy."""
    assert set(response_parts) == RESPONSE_KINDS


@pytest.mark.parametrize("kind", sorted(response_parts, key=lambda kind: kind.__name__))
@given(data=st.data())
@unhurried
def test_each_part_of_a_response_keeps_its_class(kind: type, data: Any) -> None:
    """As it is recorded for a unit: one response by itself."""
    message: ModelResponse = data.draw(responses(response_parts[kind]))
    back = response_from_json(response_to_json(message))
    assert back == message
    assert [type(part) for part in back.parts] == [type(part) for part in message.parts]
