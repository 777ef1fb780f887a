"""The schema that an agent's own `output_type` promises, if it promises one value of one shape."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.output import NativeOutput, PromptedOutput, StructuredDict, TextOutput, ToolOutput


def promoted_schema(agent: AbstractAgent[Any, Any]) -> Any | None:
    """What the agent's answers must fit: a type or `None` if text is an answer too, or a function makes the value."""
    return _schema_of(agent.output_type)


def _schema_of(output: Any) -> Any | None:
    if isinstance(output, NativeOutput | PromptedOutput):
        return _schema_of(output.outputs)
    if isinstance(output, ToolOutput):
        return _schema_of(output.output)
    if isinstance(output, TextOutput) or output is str:
        return None
    if isinstance(output, list | tuple):
        return _union([_schema_of(each) for each in output])
    if _is_union(output):
        return None if str in typing.get_args(output) else output
    if inspect.isroutine(output):
        return None
    return output


def _union(schemas: list[Any | None]) -> Any | None:
    if any(schema is None for schema in schemas):
        return None
    return schemas[0] if len(schemas) == 1 else typing.Union[tuple(schemas)]  # noqa: UP007 - made at run time


def _is_union(output: Any) -> bool:
    return isinstance(output, types.UnionType) or typing.get_origin(output) is typing.Union


def provider_output(schema: Any) -> NativeOutput[Any]:
    """The output type that makes the provider answer in JSON that fits the schema."""
    if isinstance(schema, dict):
        return NativeOutput(StructuredDict(schema, name=schema.get("title", "answer")))
    return NativeOutput(schema)
