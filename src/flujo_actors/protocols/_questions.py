"""Open questions of a pipeline: message, kind, schema and tool call.

Sections:

- A question as an MCP elicitation form. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import anyio.to_thread
import attrs

from .._api.flujo import Flujo
from .._core.outcomes import RunId
from .._core.policies.approval_policy import (
    JsonObject,
    JsonSchema,
    QuestionKind,
    QuestionSpec,
    answer_schema,
    kind_of,
    read_question,
)
from .._core.records import record_bodies
from .._core.step_paths import StepPath
from .._durable.pause_lookup import waiting_pause
from ..stores._record_rows import not_found
from ..structured._compiled_schema import compile_schema


@attrs.frozen(kw_only=True)
class OpenQuestion:
    """An open question."""

    token: str
    message: str
    kind: QuestionKind
    schema: JsonSchema
    """JSON Schema of the answer; empty if every answer fits."""
    tool: Mapping[str, object] | None = None
    """Pending tool call: `tool`, `tool_call_id`, `arguments`, `schema` and `description`."""


async def refuse_foreign(flujo: Flujo, run_id: str) -> None:
    """Raise `RunNotFound` for a run of another pipeline."""
    if flujo.store is None:  # runs in memory belong to one Flujo
        return
    run = await anyio.to_thread.run_sync(flujo.store.get, RunId(run_id))
    if run.pipeline != flujo.pipeline.title:
        raise not_found(RunId(run_id))


async def asked_at(flujo: Flujo, token: str) -> OpenQuestion:
    """Return a token's open pause; raise `NotPaused` without one."""
    if flujo.store is None:
        pause = await flujo._runs("strict").pause_at(token)
        return _question(token, pause.path, pause.paused.message, pause.question, pause.input_schema)
    stored = await anyio.to_thread.run_sync(waiting_pause, flujo.store, token)
    body = record_bodies.read_body(stored.body, where=f"the pause at {token!r}")
    return _question(token, stored.path, stored.message, read_question(body.get("question")), body.get("schema"))


def _question(
    token: str, path: StepPath, message: str, spec: QuestionSpec | None, input_schema: object
) -> OpenQuestion:
    kind = kind_of(spec, path)
    return OpenQuestion(
        token=token,
        message=message,
        kind=kind,
        schema=answer_schema(spec, path, _json_schema(input_schema)),
        tool=_tool(spec) if kind == "tool" else None,
    )


def _tool(spec: QuestionSpec | None) -> Mapping[str, object]:
    assert spec is not None
    shown, facts = spec.facts["metadata"], spec.facts
    return {**shown, "name": shown["tool"], "schema": facts.get("parameters"), "description": facts.get("description")}


def _json_schema(schema: object) -> JsonSchema | None:
    if schema is None or isinstance(schema, dict):
        return schema
    return dict(compile_schema(schema).json_schema)


# --- A question as an MCP elicitation form ------------------------------------------------------------------------
# Rules:
#
# 1. A single value is asked for as the property `answer`; an object as its own properties.
# 2. An optional object of single values is asked for as properties with a prefix, `arguments.amount`. Other optional
#    properties that are not single values are left out; a required one makes the question unaskable.
# 3. Choices are enums of strings, with their titles as `enumNames`.


ElicitationForm: TypeAlias = dict[str, object]
"""Schema of an elicitation form."""

_SINGLE = ("string", "number", "integer", "boolean")
_ONLY = "answer"
_KEPT = ("title", "description", "minimum", "maximum", "minLength", "maxLength", "default")
_FORMATS = ("email", "uri", "date", "date-time")


@attrs.frozen
class ElicitedAnswer:
    """Answer of a person."""

    value: Any


def form_schema(schema: JsonObject) -> ElicitationForm | None:
    """Return a pause's form schema; `None` if no form fits."""
    if not schema:
        return _form({_ONLY: {"type": "string"}}, [_ONLY])
    single = _single(schema, schema)
    if single is not None:
        return _form({_ONLY: single}, [_ONLY])
    resolved = _resolved(schema, schema)
    properties = resolved.get("properties")
    if not isinstance(properties, Mapping):
        return None
    flat = {name: _single(each, schema) for name, each in properties.items() if isinstance(each, Mapping)}
    required = [name for name in _listed(resolved.get("required")) if isinstance(name, str)]
    kept: ElicitationForm = {name: each for name, each in flat.items() if each is not None}
    for name in [name for name, each in flat.items() if each is None and name not in required]:
        kept |= _prefixed(name, properties[name], schema)
    return _form(kept, required) if kept and all(name in kept for name in required) else None


def _prefixed(name: str, schema: JsonObject, root: JsonObject) -> ElicitationForm:
    """Return the properties of an inner object, if all are single values."""
    inner = _resolved(schema, root).get("properties")
    if not isinstance(inner, Mapping):
        return {}
    flat = {f"{name}.{each}": _single(part, root) for each, part in inner.items() if isinstance(part, Mapping)}
    return {} if None in flat.values() else {**flat}


def _nested(content: Mapping[str, object]) -> dict[str, object]:
    """Return the answer of a form, with its inner objects."""
    answer: dict[str, object] = {}
    for name, value in content.items():
        outer, dot, inner = name.partition(".")
        if not dot:
            answer[name] = value
        elif value is not None:
            found = answer.setdefault(outer, {})
            assert isinstance(found, dict)
            found[inner] = value
    return answer


def answer_in(action: str, content: Mapping[str, object] | None, asked: JsonObject) -> ElicitedAnswer | None:
    """Return the answer of a reply; `None` if it was declined."""
    if action != "accept" or content is None:
        return None
    properties = asked.get("properties")
    is_single = isinstance(properties, Mapping) and list(properties) == [_ONLY]
    return ElicitedAnswer(content.get(_ONLY)) if is_single else ElicitedAnswer(_nested(content))


def _form(properties: ElicitationForm, required: list[str]) -> ElicitationForm:
    return {"type": "object", "properties": properties, "required": required}


def _single(schema: JsonObject, root: JsonObject) -> ElicitationForm | None:
    """Return a single value's elicitation schema, or None."""
    resolved = _resolved(schema, root)
    about = {name: each[name] for each in (resolved, schema) for name in _KEPT if each.get(name) is not None}
    choices = _choices(resolved)
    if choices is not None:
        names, titles = choices
        return {"type": "string", "enum": names, **({"enumNames": titles} if titles != names else {}), **about}
    types = [each for each in _listed(resolved.get("type"), alone=True) if each != "null"]
    if len(types) != 1 or types[0] not in _SINGLE:
        return None
    shape = {"format": resolved["format"]} if resolved.get("format") in _FORMATS else {}
    return {"type": types[0], **shape, **about}


def _choices(schema: JsonObject) -> tuple[list[str], list[str]] | None:
    """Values and titles of a choice between strings."""
    parts = schema.get("oneOf")
    if isinstance(parts, Sequence) and parts and all(isinstance(each, Mapping) and "const" in each for each in parts):
        given = [(each["const"], str(each.get("title", each["const"]))) for each in parts]
    elif "enum" in schema or "const" in schema:
        given = [(each, str(each)) for each in _listed(schema.get("enum", [schema.get("const")]))]
    else:
        return None
    if not all(isinstance(name, str) for name, _ in given):
        return None
    return [name for name, _ in given], [title for _, title in given]


def _listed(value: object, *, alone: bool = False) -> list[object]:
    """Return a list of values, also from a single one."""
    return list(value) if isinstance(value, list | tuple) else [value] if alone and isinstance(value, str) else []


def _resolved(schema: JsonObject, root: JsonObject) -> JsonObject:
    """Schema behind references and "or null"; references may be circular."""
    for _ in range(20):
        reference, parts = schema.get("$ref"), schema.get("anyOf")
        if isinstance(reference, str):
            schema = _behind(reference, root)
        elif isinstance(parts, Sequence):
            rest = [each for each in parts if isinstance(each, Mapping) and each.get("type") != "null"]
            if len(rest) != 1:
                return schema
            schema = rest[0]
        else:
            return schema
    return {}


def _behind(reference: str, root: JsonObject) -> JsonObject:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def form_of(asked: OpenQuestion) -> ElicitationForm | None:
    """Return the form of a question; requested arguments are prefilled."""
    form = form_schema(asked.schema)
    given = None if asked.tool is None else asked.tool["arguments"]
    if form is None or not isinstance(given, Mapping):
        return form
    parts = form["properties"]
    assert isinstance(parts, dict)
    for name, value in given.items():
        if (known := f"arguments.{name}") in parts and isinstance(value, str | int | float):
            parts[known] = {**parts[known], "default": value}
    return form
