"""Answers to pauses, checked against what the pause asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import cattrs
import jsonschema_rs
from pydantic import ValidationError

from .._dsl.answer_schema import reader_of
from ..errors import InvalidAnswer
from ..structured._output_data import as_data

STILL_PAUSED = "; the run is still paused, answer again"


def checked_answer(answer: object, schema: object, *, step_name: str, todo: str = STILL_PAUSED) -> Any:
    """The answer as its schema wants it: validated, and turned into the model if there is one."""
    if schema is None:
        return answer
    try:
        # A JSON Schema is about JSON data: a model is taken as the data that it stands for.
        return reader_of(schema)(as_data(answer) if isinstance(schema, Mapping) else answer)
    except (ValueError, cattrs.BaseValidationError, TypeError) as error:
        raise InvalidAnswer(
            f"the answer to {step_name!r} does not fit its input_schema: {_reason(error)}{todo}"
        ) from error


def _reason(error: Exception) -> str:
    """What is wrong, in one line."""
    return " ".join(_reasons(error).split())


def _reasons(error: Exception) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error))
    if isinstance(error, ValidationError):
        return "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in error.errors())
    if isinstance(error, jsonschema_rs.ValidationError):
        return f"{_place(error.instance_path)}: {error.message}"
    return str(error)


def _place(way: Iterable[object]) -> str:
    return ".".join(map(str, way)) or "value"
