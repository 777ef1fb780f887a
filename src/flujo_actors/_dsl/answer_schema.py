"""What an answer to a pause must fit: read when the pause is declared, used when it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

import attrs
import cattrs
import jsonschema_rs
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from .._core.typed_dicts import SCHEMAS, known_to_pydantic
from ..errors import DeclarationError

Reader: TypeAlias = Callable[[object], object]
"""Turns an answer into what its schema describes, or raises what the library behind the schema raises."""


def reader_of(schema: object) -> Reader:
    """How answers are read by a JSON Schema, an attrs class or anything pydantic knows; else `DeclarationError`."""
    if isinstance(schema, Mapping):
        return _json_reader(schema)
    if isinstance(schema, type) and attrs.has(schema):
        return lambda answer: answer if isinstance(answer, schema) else cattrs.structure(answer, schema)
    if isinstance(schema, str):  # which pydantic takes for the name of a type, to be looked up when it is too late
        raise DeclarationError(f"{schema!r:.100} is a text, not {SCHEMAS}")
    try:
        return TypeAdapter(known_to_pydantic(schema)).validate_python
    except PydanticSchemaGenerationError as error:
        raise DeclarationError(f"{schema!r:.100} is not {SCHEMAS}") from error
    except PydanticUserError as error:
        raise DeclarationError(f"{schema!r:.100} cannot be validated against: {error.message}") from error


def _json_reader(schema: Mapping[str, object]) -> Reader:
    try:
        validator = jsonschema_rs.validator_for(dict(schema), retriever=_refuse_to_fetch)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise DeclarationError(f"{schema!r:.500} is not a JSON Schema: {error}") from error

    def read(answer: object) -> object:
        validator.validate(answer)
        return answer

    return read


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"the schema refers to {uri}, and schemas are never fetched")
