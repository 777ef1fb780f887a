"""Fit of a candidate to a schema: unchanged, coerced, or outside.

Sections:

- Envelopes around an answer: single-key objects, tool calls, status objects.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import attrs

from . import _strict as strict
from ._candidates import Candidate
from ._coerce import coerce, skeleton
from ._compiled_schema import Schema
from ._mend import NotJson, TooDeep, repair_container
from ._read_result import Coercion, ReadResult
from ._scalar_answers import describes
from ._strict import resolved

# --- Envelopes around an answer -----------------------------------------------------------------------------------
# 1. A container may come out of any envelope: its schema decides whether it was meant.
# 2. A scalar carries less evidence, so its keys must support it. Under keys that announce an answer, or that are the
#    schema's own name, it may be any scalar.
# 3. Under other keys, it may be a text of a kind that the schema describes (a member, a date), or a number or boolean
#    if the key is not that of a status (`error`, `code`). Free text and null would make an answer of any object.


_PAYLOADS = ("arguments", "parameters", "args", "input", "function_call", "function", "tool_calls", "tool_call")
_CALL_KEYS = frozenset(
    {"name", "type", "id", "tool", "tool_name", "tool_call_id", "call_id", "recipient_name", "index", "role"}
    | {"function_name", "action"}
)
_STATUS_KEYS = frozenset({"status", "success", "ok", "error", "errors", "message", "code", "version", "model"})
_CONTENTS = ("data", "result", "results", "response", "output", "answer", "value", "payload", "json", "content")
_ANSWERS = frozenset(
    {*map(skeleton, _PAYLOADS), *_CONTENTS}
    | {"text", "string", "reply", "completion", "final", "finalanswer", "finalresult", "finaloutput"}
)
_MAX_DEPTH = 4


@attrs.frozen(kw_only=True)
class Inside:
    """Content of an envelope."""

    value: object
    rules: tuple[str, ...]
    """The names of the passes that open it, from the outside in."""
    keys: tuple[str, ...]
    """Keys of the content, from the outside in."""

    def may_be(self, value: object, schema: Schema) -> bool:
        """Return whether the valid `value` may be the answer (module rules)."""
        if isinstance(value, dict | list) or not self.keys:
            return True
        names = {skeleton(key) for key in self.keys}
        if names <= {*_ANSWERS, skeleton(schema.name)}:
            return True
        if isinstance(value, str):
            return describes(schema, value)
        return value is not None and not names & _STATUS_KEYS


def insides(value: object) -> Iterator[Inside]:
    """Yield the value itself, then its possible contents from the outside in."""
    inside = Inside(value=value, rules=(), keys=())
    yield inside
    while len(inside.rules) < _MAX_DEPTH and (opened := _opened(inside.value)):
        rule, key, value = opened
        inside = Inside(value=value, rules=(*inside.rules, rule), keys=(*inside.keys, *key))
        yield inside


def _opened(value: object) -> tuple[str, tuple[str, ...], object] | None:
    """Return pass name, key if any, and content of an envelope."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return "element_from_list", (), value[0]
    if not isinstance(value, dict):
        return None
    if len(value) == 1:
        key, inner = next(iter(value.items()))
        return "envelope", (key,), inner
    return _tool_call(value) or _status(value)


def _tool_call(value: dict[str, object]) -> tuple[str, tuple[str, ...], object] | None:
    payloads = [key for key in value if key in _PAYLOADS]
    rest = set(value) - set(payloads)
    if len(payloads) == 1 and rest <= _CALL_KEYS:
        return "tool_call", (payloads[0],), value[payloads[0]]
    return None


def _status(value: dict[str, object]) -> tuple[str, tuple[str, ...], Any] | None:
    contents = [key for key in value if key in _CONTENTS]
    if len(contents) == 1 and set(value) - set(contents) <= _STATUS_KEYS:
        return "status_envelope", (contents[0],), value[contents[0]]
    return None


# --- Fit of one candidate to a schema -----------------------------------------------------------------------------


def fitted(candidate: Candidate, schema: Schema, text: str) -> ReadResult | None:
    for depth, inside in enumerate(insides(candidate.value)):
        value = inside.value
        fitted, coercions = (value, ()) if accepts(schema, value) else coerced(value, schema)
        if any(c.rule == "text_from_float" for c in coercions):
            fitted, coercions = _with_source_floats(candidate, depth, schema)
        if not accepts(schema, fitted) or not inside.may_be(fitted, schema):
            continue
        if not _loses_data(candidate, coercions):
            notes = tuple(Coercion(path="$", rule=rule) for rule in inside.rules)
            return reading_of(candidate, fitted, (*notes, *coercions), schema, text)
    return None


_SHAPE_REPAIRS = frozenset(
    {
        "leftover_closers",
        "inner_quotes",
        "missing_quote",
        "doubled_quotes",
        "missing_colon",
        "missing_opener",
        "missing_closer",
    }
    | {"wrong_closer", "stray_closer", "stray_words", "dropped_key", "json_repair"}
)
_ORDINARY_KEY = re.compile(r"\$[\w .$\[\]@/-]{1,200}")


def _loses_data(candidate: Candidate, coercions: tuple[Coercion, ...]) -> bool:
    """Return whether a guessed shape lost part of the result."""
    if not _SHAPE_REPAIRS.intersection(candidate.passes):
        return False
    dropped = [c.path for c in coercions if c.rule == "extra_key"]
    from_library = candidate.engine == "json_repair"
    if "leftover_closers" in candidate.passes and dropped:
        return True
    odd = any(from_library or not _ORDINARY_KEY.fullmatch(path) or path.endswith(".") for path in dropped)
    return odd or "duplicate_key" in candidate.passes


def _with_source_floats(candidate: Candidate, depth: int, schema: Schema) -> tuple[object, tuple[Coercion, ...]]:
    whole = strict.parse_with_source(candidate.json)
    layer = next(itertools.islice(insides(whole), depth, None))
    value, coercions = coerced(layer.value, schema)
    return strict.plain(value), coercions


def coerced(value: object, schema: Schema) -> tuple[object, tuple[Coercion, ...]]:
    return coerce(value, schema, container_in)


def container_in(text: str) -> object:
    """Return the container that a string spells; raise `ValueError` otherwise."""
    try:
        return strict.parse(text)
    except strict.JsonSyntaxError:
        stripped = text.strip()
    try:
        mended = repair_container(stripped, 0, len(stripped), max_depth=100, max_steps=20_000)
    except (NotJson, TooDeep, KeyError) as problem:
        raise ValueError(str(problem)) from None
    if not mended.complete or mended.end != len(stripped):
        raise ValueError("the string holds more than a container")
    return strict.parse(mended.json)


def accepts(schema: Schema, value: object) -> bool:
    """Return whether the schema accepts the value for a reason."""
    if not schema.is_valid(value) or (isinstance(value, dict) and _is_stranger(value, schema)):
        return False
    if not isinstance(value, dict) and _implies_object(schema):
        return False
    if not schema.constructs:
        return True
    try:
        schema.construct(value)
    except ValueError:
        return False
    return True


def _is_stranger(value: dict[str, object], schema: Schema) -> bool:
    root = schema.json_schema
    properties = root.get("properties")
    open_ended = "patternProperties" in root or "additionalProperties" in root or "required" in root
    return bool(value and properties and not open_ended and not any(key in properties for key in value))


def _implies_object(schema: Schema) -> bool:
    """Return whether a typeless schema describes members, not scalars."""
    root = resolved(schema.json_schema, schema.json_schema)
    return "type" not in root and ("properties" in root or "required" in root)


def constructed(schema: Schema | None, value: object) -> object:
    return value if schema is None else schema.construct(value)


def reading_of(
    candidate: Candidate, data: object, coercions: tuple[Coercion, ...], schema: Schema | None, text: str
) -> ReadResult:
    return ReadResult(
        value=constructed(schema, data),
        data=data,
        span=(min(candidate.start, len(text)), min(candidate.end, len(text))),
        engine=candidate.engine,
        passes=candidate.passes,
        coercions=coercions,
        truncated=not candidate.complete,
        schema_hash=schema.schema_hash if schema else None,
        json=candidate.json,
    )
