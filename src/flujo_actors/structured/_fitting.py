"""One candidate and a schema: the value as it is, then coerced, then out of its envelope; a `Reading` if it fits."""

from __future__ import annotations

import itertools
import re

from . import _strict as strict
from ._candidates import Candidate
from ._coerce import coerce
from ._envelopes import insides
from ._mend import NotJson, TooDeep, mend
from ._reading import Coercion, Reading
from ._schema import Schema


def fitted(candidate: Candidate, schema: Schema, text: str) -> Reading | None:
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
    | {"wrong_closer", "stray_closer", "stray_words", "dropped_key", "fast_json_repair", "json_repair"}
)
_ORDINARY_KEY = re.compile(r"\$[\w .$\[\]@/-]{1,200}")


def _loses_data(candidate: Candidate, coercions: tuple[Coercion, ...]) -> bool:
    """Whether the shape had to be guessed and part of the result then had to be thrown away."""
    if not _SHAPE_REPAIRS.intersection(candidate.passes):
        return False
    dropped = [c.path for c in coercions if c.rule == "extra_key"]
    from_library = candidate.engine in ("fast_json_repair", "json_repair")
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
    """The container a string spells, with nothing around it; raises `ValueError` otherwise."""
    try:
        return strict.parse(text)
    except strict.Malformed:
        stripped = text.strip()
    try:
        mended = mend(stripped, 0, len(stripped), max_depth=100, max_steps=20_000)
    except (NotJson, TooDeep, KeyError) as problem:
        raise ValueError(str(problem)) from None
    if not mended.complete or mended.end != len(stripped):
        raise ValueError("the string holds more than a container")
    return strict.parse(mended.json)


def accepts(schema: Schema, value: object) -> bool:
    """Whether the schema accepts the value for what it says, and not merely because everything is optional."""
    if not schema.is_valid(value) or (isinstance(value, dict) and _is_stranger(value, schema)):
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


def constructed(schema: Schema | None, value: object) -> object:
    return value if schema is None else schema.construct(value)


def reading_of(
    candidate: Candidate, data: object, coercions: tuple[Coercion, ...], schema: Schema | None, text: str
) -> Reading:
    return Reading(
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
