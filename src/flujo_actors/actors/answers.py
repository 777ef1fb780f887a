"""Answers to pauses, checked against what the pause asked for."""

from __future__ import annotations

from typing import Any

import cattrs
import jsonschema_rs
from pydantic import ValidationError

from ..dsl.answer_schema import reader_of
from ..errors import InvalidAnswer


def checked_answer(answer: Any, schema: Any, *, step_name: str) -> Any:
    """The answer as its schema wants it: validated, and turned into the model if there is one."""
    if schema is None:
        return answer
    try:
        return reader_of(schema)(answer)
    except (ValidationError, jsonschema_rs.ValidationError, cattrs.BaseValidationError, TypeError) as error:
        raise InvalidAnswer(
            f"the answer to {step_name!r} does not fit its input_schema: {_reason(error)}; "
            "the run is still paused, answer again"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    if isinstance(error, ValidationError):
        parts = (f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in error.errors())
        return "; ".join(parts)
    return str(error)
