"""What a model said, to JSON and back without loss."""

from __future__ import annotations

import json

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelResponse
from pydantic_core import PydanticSerializationError

_response: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


def response_to_json(response: ModelResponse) -> str:
    """One response as JSON text; half of a surrogate pair, which UTF-8 cannot write, as an escape."""
    try:
        return _response.dump_json(response).decode()
    except PydanticSerializationError:
        return json.dumps(_response.dump_python(response, mode="json"))


def response_from_json(text: str) -> ModelResponse:
    """The response that `response_to_json` wrote."""
    try:
        return _response.validate_json(text)
    except ValidationError:  # pydantic reads no half of a surrogate pair, not even an escaped one
        return _response.validate_python(json.loads(text))
