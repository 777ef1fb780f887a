"""From text to value: limits, strict, candidates, choice, validation. Nothing here knows a clock.

1. The limits come first: a text over them is refused, never cut.
2. Strict JSON goes straight through.
3. Otherwise the containers of the text are candidates: complete ones before cut ones, the last before the first.
4. With a schema, the first candidate it accepts wins, as it is, then coerced, then out of its envelope.
5. What the schema refuses is refused; the error names the flaws of the best candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs
from pydantic import ValidationError

from .._core.error_info import message_of
from ..errors import StructuredOutputError
from . import _engines as engines
from . import _marks as marks
from . import _strict as strict
from ._candidates import Candidate, Candidates, find_candidates
from ._doubts import undisputed
from ._fitting import accepts, coerced, constructed, fitted, reading_of
from ._limits import DEFAULT_LIMITS, Limits, TooMuchWork
from ._reading import Flaw, Reading
from ._refusals import refusal, refusing
from ._scalars import NOTHING, scalar_from
from ._schema import Schema, compile_schema

_MAX_FITTED = 500
"""How many places of a text are tried, from the last one on; each takes about 0.2 ms."""


def read_structured(text: str, schema: object = None, limits: Limits = DEFAULT_LIMITS) -> Reading:
    """The value of `text` under `schema` and how it was found; raises `StructuredOutputError` if there is none."""
    text = _as_text(text)
    compiled = None if schema is None else compile_schema(schema)
    with refusing("parse", text, compiled):
        whole = _whole_within(text, limits)
        if whole is not None and (compiled is None or accepts(compiled, whole.value)):
            return reading_of(whole, whole.value, (), compiled, text)
        return _search(text, whole, compiled, limits)


def _as_text(text: str | bytes) -> str:
    """Text as it is, bytes as UTF-8; anything else was not written by a model."""
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes | bytearray):
        raise TypeError(f"structured output is read from text, not from {type(text).__name__}: {text!r:.100}")
    try:
        return bytes(text).decode()
    except UnicodeDecodeError as error:
        raise refusal(
            "parse", f"the bytes are not UTF-8: {error}", bytes(text).decode("utf-8", "replace"), None
        ) from error


def parse_and_validate(text: str, schema: object = None) -> Any:
    """The value `text` holds, validated; raises `StructuredOutputError` if nothing valid can be read.

    Of a text that was cut off it is what was there: `read_structured` says so, a value cannot.
    """
    return _with_content(read_structured(text, schema)).value


def normalize_json_text(text: str) -> str:
    """The JSON of a model's answer as strict JSON text, without anything around it."""
    text = _as_text(text)
    with refusing("parse", text, None):
        whole = _whole_within(text, DEFAULT_LIMITS)
        if whole is not None:
            return whole.json
        return _with_content(_search(text, None, None, DEFAULT_LIMITS)).json


def _with_content(reading: Reading) -> Reading:
    """The reading, unless the text was cut off inside the first thing that it says: `{"a": tru` is not `{}`."""
    begun = reading.span[1] - reading.span[0] > 1
    if reading.truncated and begun and reading.data in ({}, []):
        raise refusal("parse", "the text was cut off before it said anything", reading.json, None)
    return reading


# --- search ---------------------------------------------------------------------------------------------------


def _whole_within(text: str, limits: Limits) -> Candidate | None:
    """The text as one JSON value; raises `TooMuchWork` if it is longer than may be read, or than may be searched."""
    if len(text) <= limits.max_searched_chars:
        return _strict_whole(text)
    if len(text) > limits.max_chars:
        raise TooMuchWork(f"the text has {len(text):,} characters, more than {limits.max_chars:,}")
    long = f"the text has {len(text):,} characters; of more than {limits.max_searched_chars:,}"
    if text.count(",") > limits.max_commas_beyond:
        raise TooMuchWork(f"{long}, only JSON of up to {limits.max_commas_beyond:,} values is read")
    whole = _strict_whole(text)
    if whole is None:
        raise TooMuchWork(f"{long}, only strict JSON with nothing around it is read")
    return whole


def _strict_whole(text: str) -> Candidate | None:
    """The text as one JSON value, white space and invisible marks around it aside."""
    stripped = text.strip().strip("\ufeff\u200b\u2060\u200e\u200f").strip()
    start = text.find(stripped[:1]) if stripped else 0
    try:
        value = strict.parse(stripped)
    except strict.Malformed:
        return _multiline_string(stripped, start)
    return Candidate(start=start, end=start + len(stripped), value=value, json=stripped, engine="strict")


def _multiline_string(stripped: str, start: int) -> Candidate | None:
    """A JSON string in which line breaks were not escaped."""
    if len(stripped) < 2 or stripped[0] != '"' or stripped[-1] != '"' or stripped.count('"') != 2:
        return None
    json = "".join(f"\\u{ord(ch):04x}" if ch < " " else ch for ch in stripped)
    try:
        value = strict.parse(json)
    except strict.Malformed:
        return None
    end = start + len(stripped)
    return Candidate(start=start, end=end, value=value, json=json, engine="mended", passes=("control_characters",))


def _search(text: str, whole: Candidate | None, schema: Schema | None, limits: Limits) -> Reading:
    readable, unwrapped = marks.unwrapped_text(text) if whole is None else (text, None)
    candidates = Candidates([whole]) if whole is not None else find_candidates(readable, limits)
    if schema is None:
        chosen = next(_without_schema(candidates, readable, limits), None)
        found = None if chosen is None else reading_of(chosen, chosen.value, (), None, text)
    else:
        found = _with_schema(candidates, readable, text, schema, limits, single=whole is not None)
    if whole is None:
        found = undisputed(found, readable, text, schema)
    if not found:
        raise _explain(candidates, text, schema)
    return _marked(found, unwrapped)


def _marked(reading: Reading, unwrapped: str | None) -> Reading:
    if unwrapped is None:
        return reading
    return attrs.evolve(reading, passes=(unwrapped, *reading.passes))


def _ranked(candidates: list[Candidate]) -> Iterator[Candidate]:
    for complete in (True, False):
        yield from (c for c in reversed(candidates) if c.complete is complete and c.solid and not c.fragment)


def _without_schema(candidates: Candidates, text: str, limits: Limits) -> Iterator[Candidate]:
    """The candidates that stand by themselves."""
    found = candidates.found
    yield from _ranked(found)
    for candidate in reversed(found):
        if not text[: candidate.start].strip() and not text[candidate.end :].strip(" \n\t,;`"):
            yield candidate
    if not candidates.ambiguous and (not found or any(c.fragment for c in found)):
        yield from engines.repaired(text, limits)


def _with_schema(
    candidates: Candidates, readable: str, text: str, schema: Schema, limits: Limits, *, single: bool
) -> Reading | None:
    found = candidates.found
    if reading := _all_of_them(found, schema, text):
        return reading
    for candidate in itertools.islice(_ranked(found), _MAX_FITTED):
        if reading := fitted(candidate, schema, text):
            return reading
    if reading := _scalar(readable, text, schema, found, single):
        return reading
    weak = [c for c in reversed(found) if not c.solid and _stands_alone(c, readable)]
    cut = any(not c.complete for c in found)
    spare = iter(()) if single else _spare(readable, limits, ambiguous=candidates.ambiguous, cut=cut)
    for candidate in (*weak, *spare, *_fragments(candidates)):
        if reading := fitted(candidate, schema, text):
            return reading
    return None


def _fragments(candidates: Candidates) -> list[Candidate]:
    """Complete parts of a region that cannot be read, last first; of an ambiguous region, none."""
    if candidates.ambiguous:
        return []
    return [c for c in reversed(candidates.found) if c.fragment and c.solid and c.complete]


def _spare(text: str, limits: Limits, *, ambiguous: bool, cut: bool) -> Iterator[Candidate]:
    """What is left to try when no container of the text fits: missing braces, then the repair libraries.

    The libraries leave out what a cut text does not finish, and do not say so; `cut` says that it is one.
    """
    braced = marks.with_braces(text)
    if braced:
        for candidate in find_candidates(braced[0], limits).found[:1]:
            yield attrs.evolve(candidate, passes=(braced[1], *candidate.passes), engine="mended")
    if not ambiguous:
        yield from (attrs.evolve(candidate, complete=not cut) for candidate in engines.repaired(text, limits))


def _stands_alone(candidate: Candidate, text: str) -> bool:
    """Whether it begins the text or a line: `[a, b] is the output`, not `as said [see 1]`."""
    before = text[: candidate.start]
    return not before.strip() or before.rstrip(" \t").endswith(("\n", ":", "`"))


def _all_of_them(candidates: list[Candidate], schema: Schema, text: str) -> Reading | None:
    """Several objects in a row at the end, where the schema wants a list of such objects."""
    last = next(_ranked(candidates), None)
    if schema.json_schema.get("type") != "array" or last is None or not isinstance(last.value, dict):
        return None
    objects = [c for c in candidates if c.solid and c.complete and isinstance(c.value, dict)]
    if len(objects) < 2:
        return None
    value, coercions = coerced([c.value for c in objects], schema)
    if not accepts(schema, value):
        return None
    passes = tuple(dict.fromkeys(p for c in objects for p in c.passes))
    return Reading(
        value=constructed(schema, value),
        data=value,
        span=(objects[0].start, objects[-1].end),
        engine="mended" if passes else "strict",
        passes=(*passes, "several_objects"),
        coercions=coercions,
        schema_hash=schema.schema_hash,
    )


def _scalar(readable: str, text: str, schema: Schema, candidates: list[Candidate], single: bool) -> Reading | None:
    if any(c.solid and isinstance(c.value, dict | list) for c in candidates):
        return None
    source = candidates[0].value if single and isinstance(candidates[0].value, str) else readable
    value = scalar_from(source, schema)
    if value is NOTHING or not accepts(schema, value):
        return None
    span = (0, len(text))
    built = constructed(schema, value)
    return Reading(value=built, data=value, span=span, engine="scalar", schema_hash=schema.schema_hash)


# --- refusal --------------------------------------------------------------------------------------------------


def _explain(candidates: Candidates, text: str, schema: Schema | None) -> StructuredOutputError:
    best = next(_ranked(candidates.found), candidates.found[0] if candidates.found else None)
    if candidates.unreadable:
        reason = "a number or a character of its JSON is none: NaN, infinity, too many digits, half a surrogate pair"
        return refusal("parse", reason, text, schema)
    if best is None or schema is None:
        return refusal("parse", "there is no JSON in the text", text, schema)
    flaws = schema.validate(coerced(best.value, schema)[0]) or [_class_flaw(schema, best.value)]
    shown = "; ".join(f"{flaw.path}: {flaw.message}" for flaw in flaws[:3])
    return refusal("validate", f"the value does not fit {schema.name!r}: {shown}", text, schema, flaws)


def _class_flaw(schema: Schema, value: object) -> Flaw:
    try:
        schema.construct(coerced(value, schema)[0])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Flaw(path="$" + "".join(f".{p}" for p in first["loc"]), message=first["msg"])
    except ValueError as error:
        return Flaw(path="$", message=message_of(error)[:300])
    return Flaw(path="$", message="none of its keys is known to the schema")
