"""Schema of an agent's own single-value `output_type`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from pydantic_ai import BinaryImage, DeferredToolRequests
from pydantic_ai.models import Model
from pydantic_ai.output import NativeOutput, PromptedOutput, StructuredDict, TextOutput, ToolOutput

from ..structured._compiled_schema import compile_schema
from .agent_cache import PerAgent, SomeAgent

_CHOSEN = (NativeOutput, PromptedOutput, ToolOutput, TextOutput, list, tuple)
"""Output markers that choose an answer mode."""


_promoted: PerAgent[tuple[Any, Any | None]] = PerAgent()
"""The output type of an agent, and the schema that it promises."""


def promoted_schema(agent: SomeAgent) -> object | None:
    """Return the type of the answers; `None` for text or functions."""
    output, kept = agent.output_type, _promoted.get(agent)
    if kept is None or kept[0] is not output:
        kept = _promoted.keep(agent, (output, schema_of(output)))
    return kept[1]


def schema_of(output: object) -> object | None:
    """Return the schema that an output type promises."""
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


def output_types(output: object) -> Iterator[object]:
    """Yield every possible answer type: inside markers, lists and function returns."""
    if isinstance(output, NativeOutput | PromptedOutput):
        yield from output_types(output.outputs)
    elif isinstance(output, ToolOutput):
        yield from output_types(output.output)
    elif isinstance(output, TextOutput):
        yield from output_types(output.output_function)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from output_types(each)
    else:
        yield _returned_type(output) if inspect.isroutine(output) else output


def _returned_type(function: Any) -> object:
    try:
        return typing.get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):  # a forward reference that only a type checker can follow
        return Any


def has_own_validators(agent: SomeAgent) -> bool:
    """Return whether the agent validates its outputs; yes if unknown."""
    return bool(getattr(agent, "_output_validators", True))


def provider_output(agent: SomeAgent, schema: Any) -> NativeOutput[Any] | None:
    """Return the output type for the provider's JSON mode, or None.

    pydantic-ai accepts no other output type for an agent with validators; its declared one is kept.
    """
    declared = agent.output_type
    if isinstance(declared, _CHOSEN) or has_own_validators(agent) or not _takes_schemas(getattr(agent, "model", None)):
        return None
    if isinstance(schema, Mapping) or (isinstance(schema, type) and attrs.has(schema)):
        return _of_json_schema(compile_schema(schema).json_schema)
    return NativeOutput(schema)


def _of_json_schema(schema: Mapping[str, object]) -> NativeOutput[Any] | None:
    if schema.get("type") != "object" or "$defs" in schema:
        return None  # pydantic-ai supports only plain objects here
    return NativeOutput(StructuredDict(dict(schema), name=str(schema.get("title", "answer"))))


def _takes_schemas(model: Model | str | None) -> bool:
    if isinstance(model, Model):
        return bool(model.profile.get("supports_json_schema_output"))
    return isinstance(model, str) and model.startswith("openai")
