"""Messages between an agent and its model, to JSON and back without loss."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse

_response: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


def messages_to_json(messages: Sequence[ModelMessage]) -> str:
    """A message history as JSON text, every part kind included; bytes as base64."""
    return ModelMessagesTypeAdapter.dump_json(list(messages)).decode()


def messages_from_json(text: str) -> list[ModelMessage]:
    """The message history that `messages_to_json` wrote."""
    return ModelMessagesTypeAdapter.validate_json(text)


def response_to_json(response: ModelResponse) -> str:
    """One response as JSON text."""
    return _response.dump_json(response).decode()


def response_from_json(text: str) -> ModelResponse:
    """The response that `response_to_json` wrote."""
    return _response.validate_json(text)
