"""The schema that an agent's own `output_type` promises, if it promises one value of one shape."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs
from pydantic_ai import BinaryImage, DeferredToolRequests
from pydantic_ai.models import Model
from pydantic_ai.output import NativeOutput, PromptedOutput, StructuredDict, TextOutput, ToolOutput

from ..structured._schema import compile_schema
from .per_agent import PerAgent, SomeAgent

_CHOSEN = (NativeOutput, PromptedOutput, ToolOutput, TextOutput, list, tuple)
"""How a user says in which way an agent shall answer."""


_promoted: PerAgent[tuple[Any, Any | None]] = PerAgent()
"""The output type of an agent, and the schema that it promises."""


def promoted_schema(agent: SomeAgent) -> object | None:
    """What the agent's answers must fit: a type or `None` if text is an answer too, or a function makes the value."""
    output, kept = agent.output_type, _promoted.get(agent)
    if kept is None or kept[0] is not output:
        kept = _promoted.keep(agent, (output, schema_of(output)))
    return kept[1]


def schema_of(output: object) -> object | None:
    """The schema that an output type promises."""
    if isinstance(output, NativeOutput | PromptedOutput):
        return schema_of(output.outputs)
    if isinstance(output, ToolOutput):
        return schema_of(output.output)
    if isinstance(output, list | tuple):
        return _union([schema_of(each) for each in output if each is not DeferredToolRequests])
    if _is_union(output):
        return _union([schema_of(each) for each in typing.get_args(output) if each is not DeferredToolRequests])
    unread = isinstance(output, TextOutput) or output in (str, None, types.NoneType, BinaryImage, DeferredToolRequests)
    return None if unread or inspect.isroutine(output) else output


def _union(schemas: list[object | None]) -> object | None:
    if not schemas or any(schema is None for schema in schemas):
        return None
    return schemas[0] if len(schemas) == 1 else typing.Union[tuple(schemas)]  # noqa: UP007 - made at run time


def _is_union(output: object) -> bool:
    return isinstance(output, types.UnionType) or typing.get_origin(output) is typing.Union


def has_own_validators(agent: SomeAgent) -> bool:
    """Whether the agent itself judges its outputs; where that is not to be seen, it may."""
    return bool(getattr(agent, "_output_validators", True))


def provider_output(agent: SomeAgent, schema: Any) -> NativeOutput[Any] | None:
    """The output type that makes the provider answer in JSON that fits the schema; `None` if it cannot be asked to.

    pydantic-ai takes no other output type where an agent has validators; what the agent was declared with is kept.
    """
    declared = agent.output_type
    if isinstance(declared, _CHOSEN) or has_own_validators(agent) or not _takes_schemas(getattr(agent, "model", None)):
        return None
    if isinstance(schema, Mapping) or (isinstance(schema, type) and attrs.has(schema)):
        return _of_json_schema(compile_schema(schema).json_schema)
    return NativeOutput(schema)


def _of_json_schema(schema: Mapping[str, object]) -> NativeOutput[Any] | None:
    if schema.get("type") != "object" or "$defs" in schema:
        return None  # pydantic-ai knows only plain objects here
    return NativeOutput(StructuredDict(dict(schema), name=str(schema.get("title", "answer"))))


def _takes_schemas(model: Model | str | None) -> bool:
    if isinstance(model, Model):
        return bool(model.profile.get("supports_json_schema_output"))
    return isinstance(model, str) and model.startswith("openai")
