"""What an answer must fit, as JSON Schema, found in the declaration of the pipeline that asks."""

from __future__ import annotations

from typing import Any

from .._core.pause_tokens import parse_token
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import Pipeline
from .._dsl.tree import find_step
from ..structured._schema import compile_schema


def schema_of(pipeline: Pipeline, token: str) -> dict[str, Any] | None:
    """The JSON Schema of the answer to the pause that a token stands for; `None` if anything will do."""
    step = find_step(pipeline, parse_token(token)[1])
    if not isinstance(step, HumanInTheLoop) or step.input_schema is None:
        return None
    schema = step.input_schema
    return schema if isinstance(schema, dict) else dict(compile_schema(schema).json_schema)
