"""An agent's answer as text and as JSON data, whatever it is."""

from __future__ import annotations

from typing import Any

import attrs
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from .._core.attempts import escalating
from .._core.error_info import message_of


def as_text(answer: object) -> str:
    """An answer as text; raises `ValueError` if it is neither text nor JSON data."""
    match answer:
        case None:
            return ""
        case str():
            return answer
        case bytes() | bytearray():
            return bytes(answer).decode("utf-8")
    return as_json(as_data(answer))


def as_data(value: object) -> object:
    """A value as JSON data; raises `ValueError` if it has no such form."""
    try:
        return to_jsonable_python(value, fallback=_fields_of)
    except ValueError:
        raise
    except Exception as error:  # properties and serializers of the user's classes
        if control := escalating(error):
            raise control from None
        raise ValueError(f"{type(error).__name__}: {message_of(error)}") from error


def as_json(data: object) -> str:
    """JSON data as its text."""
    return to_json(data).decode()


def _fields_of(value: Any) -> object:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise PydanticSerializationError(f"a {type(value).__name__} has no JSON form")
