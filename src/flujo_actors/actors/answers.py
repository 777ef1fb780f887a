"""Answers to pauses, checked against what the pause asked for."""

from __future__ import annotations

from typing import Any

import attrs
import cattrs
import jsonschema_rs
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from ..errors import DeclarationError, InvalidAnswer


def checked_answer(answer: Any, schema: Any, *, step_name: str) -> Any:
    """The answer as its schema wants it: validated, and turned into the model if there is one."""
    if schema is None:
        return answer
    try:
        return _fitted(answer, schema)
    except (ValidationError, jsonschema_rs.ValidationError, cattrs.BaseValidationError, TypeError) as error:
        raise InvalidAnswer(
            f"the answer to {step_name!r} does not fit its input_schema: {_reason(error)}; "
            "the run is still paused, answer again"
        ) from error


def _fitted(answer: Any, schema: Any) -> Any:
    if isinstance(schema, dict):
        jsonschema_rs.validate(schema, answer)
        return answer
    if isinstance(schema, type) and attrs.has(schema):
        return answer if isinstance(answer, schema) else cattrs.structure(answer, schema)
    try:
        return TypeAdapter(schema).validate_python(answer)
    except PydanticUserError as error:
        raise DeclarationError(f"input_schema {schema!r} is not something to validate against: {error}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    if isinstance(error, ValidationError):
        parts = (f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in error.errors())
        return "; ".join(parts)
    return str(error)
