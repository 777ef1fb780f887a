"""From text to value: limits, strict parse, candidates, choice, validation. No clock.

1. The limits come first: a text over them is refused, never cut.
2. Strict JSON is accepted directly.
3. Otherwise the containers of the text are candidates: complete ones before cut ones, the last before the first.
4. With a schema, the first candidate that it accepts wins: one that fits, then one that must be wrapped or unwrapped.
5. A value that the schema refuses is refused; the error names the flaws of the best candidate.

Sections:

- Ambiguity check of a parsed text.
- `json_repair` for texts that the repairer refuses; its result is verified.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import attrs
import json_repair
from pydantic import ValidationError
from pydantic_core import to_json

from .._core.error_info import message_of
from ..errors import StructuredOutputError
from . import _strict as strict
from ._candidates import Candidate, Candidates, find_candidates, unwrapped_text, with_braces
from ._compiled_schema import Schema, compile_schema
from ._read_result import DEFAULT_LIMITS, Flaw, Limits, ReadResult, TooMuchWork
from ._scalar_answers import NOTHING, scalar_from
from ._schema_match import accepts, coerced, constructed, fitted, reading_of
from ._single_edit_repair import near_candidates
from ._strict import refusal, refusing

# --- Ambiguity check of a parsed text -----------------------------------------------------------------------------
# 1. A text that is one mark away from JSON in exactly one way has that value.
# 2. With several ways it is refused, unless the parsed value is the only regular one of them.
# 3. For a truncated text, the parsed rest counts if it is one of them, and is marked as truncated.
# 4. Some habits of models are one mark away from another value: they keep their usual meaning.


def undisputed(found: ReadResult | None, readable: str, text: str, schema: Schema | None) -> ReadResult | None:
    """Return the reading, unless one changed mark gives another value; refuse several."""
    if found and (_is_separate(found, readable) or _is_habit(found, readable)):
        return found
    near = [reading for reading in _near(readable, text, schema) if found is None or _covers(reading, found)]
    texts = {to_json(reading.data) for reading in near}
    if not texts or (found and _is_confirmed(found, near)):
        return found
    if len(texts) == 1 and not (found and found.truncated and not _extends(near[0].data, found.data)):
        return near[0]
    reason = "the text has several readings: a mark in it is missing, or replaces another"
    raise refusal("parse", reason, text, schema)


_BRACKETS_AND_COMMA = frozenset(',"{}[]')
_CLEAR_BEHIND = re.compile(r"\s*(?:\Z|[`<])|\s+(?!true|false|null)[^\W\d][^\n\"{}\[\]]*+(?:\n|\Z)|[.!?]")


def _is_separate(found: ReadResult, text: str) -> bool:
    """Return whether it is JSON as written, without adjacent data."""
    start, end = found.span
    if not (found.engine == "strict" or found.passes == ("trailing_comma",)) or not _CLEAR_BEHIND.match(text, end):
        return False
    return not text[start - 1 : start].isalnum() and text[:start].rstrip()[-1:] not in _BRACKETS_AND_COMMA


def _is_confirmed(found: ReadResult, near: list[ReadResult]) -> bool:
    """Return whether it is the only near or regular reading."""
    texts = {_comparable_value(reading) for reading in near}
    regular = {_comparable_value(reading) for reading in near if _is_regular(reading.data)}
    return _comparable_value(found) in texts and (
        found.truncated or len(texts) == 1 or regular == {_comparable_value(found)}
    )


_HABITS = (
    ({"set"}, {"wrong_closer"}),
    ({"missing_opener"}, {"missing_closer"}),
    ({"missing_quote", "unquoted_key"}, {"unquoted_value"}),
)
"""Repairs of model habits near another value, and their companions."""


def _is_habit(found: ReadResult, text: str) -> bool:
    part, passes = text[found.span[0] : found.span[1]], set(found.passes)
    balanced = all(part.count(opener) == part.count(closer) for opener, closer in ("{}", "[]"))
    usual = any(habit <= passes <= habit | more for habit, more in _HABITS)
    return usual and balanced and not found.coercions and _is_regular(found.data)


def _comparable_value(reading: ReadResult) -> bytes:
    """Return a reading's value; empty containers of both kinds are equal."""
    return to_json(reading.data).replace(b"{}", b"[]")


def _is_regular(data: object) -> bool:
    """Return whether the elements of every list are of one kind."""
    if isinstance(data, dict):
        return all(map(_is_regular, data.values()))
    if not isinstance(data, list):
        return True
    kinds = {float if type(item) is int else type(item) for item in data}
    return len(kinds) < 2 and all(map(_is_regular, data))


def _extends(more: object, less: object) -> bool:
    """Return whether `more` contains all of `less`."""
    if isinstance(less, dict) and isinstance(more, dict):
        return all(key in more and _extends(more[key], item) for key, item in less.items())
    if isinstance(less, list) and isinstance(more, list):
        return len(less) <= len(more) and all(map(_extends, more, less))
    return bool(more == less)


def _covers(near: ReadResult, found: ReadResult) -> bool:
    return near.span[0] <= found.span[0] < near.span[1]


def _near(readable: str, text: str, schema: Schema | None) -> list[ReadResult]:
    candidates = near_candidates(readable)
    if schema is None:
        return [reading_of(candidate, candidate.value, (), None, text) for candidate in candidates]
    near = [reading for candidate in candidates if (reading := fitted(candidate, schema, text))]
    return [reading for reading in near if not reading.coercions] or near


# --- `json_repair` for texts that the repairer refuses ---------------------------------------------------------------
# 1. It sees the extracted candidate only, never the prose around it.
# 2. Its time is quadratic and unbounded, so it gets texts up to the size measured as safe.
# 3. A result counts only if it equals the text character by character, except quotes and at most one bracket.


_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.S)
_MARKS = re.compile(r"[\s{}\[\](),:;=\"'`“”‘’„…，：\\]+|\.{3}")
_BRACKETS = re.compile(r"[{}\[\]]")
_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*+\"")
_BARE_ONLY = frozenset({"true", "false", "null", "none", "nil", "undefined", "nan", "infinity", "-infinity", "inf"})
"""Words that are not text when written without quotes."""
_MARK_AT_THE_EDGE = re.compile(r"\A[\s]*[\"\[\]{}:,]|[\"\[\]{}:,]\s*\Z")
_OPENS, _CLOSES = frozenset(("", *"\"'“‘`:,[=")), frozenset(("", *"\"'”’`,:}]);"))
_ESCAPED_CONTROL = dict.fromkeys("nrtbf", " ")


def repaired(text: str, limits: Limits) -> Iterator[Candidate]:
    """Yield the faithful repair of the outermost bracketed region of `text`."""
    span = _outermost(text)
    if span is None or span[1] - span[0] > limits.max_repair_chars:
        return
    region = text[span[0] : span[1]]
    json = _json_of(_by_library(region))
    if json and says_the_same(region, value := strict.parse(json)):
        yield Candidate(
            start=span[0], end=span[1], value=value, json=json, engine="json_repair", passes=("json_repair",)
        )


def _json_of(value: object) -> str | None:
    """Return a non-empty container as strict JSON, or None."""
    if not isinstance(value, dict | list) or not value:
        return None
    try:
        json = to_json(value).decode()
        strict.parse(json)
    except ValueError:
        return None
    return json


def _outermost(text: str) -> tuple[int, int] | None:
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    end = max(text.rfind("}"), text.rfind("]")) + 1
    return (min(starts), end) if starts and end > min(starts) else None


def _by_library(region: str) -> object:
    try:
        return json_repair.loads(region)
    except (ValueError, RecursionError):
        return None


def says_the_same(text: str, value: object) -> bool:
    """Return whether text and value have the same characters in order.

    Brackets, quotes and comments are ignored.
    """
    written, read = to_json(value).decode(), _COMMENT.sub(" ", text)
    if not all(_is_whole_in(text, leaf) for leaf in _strings(value)):
        return False
    return _signs(read) == _signs(written) and _differ_by_one(_shape(read), _shape(written))


def _shape(text: str) -> str:
    """Its brackets, in order."""
    return "".join(_BRACKETS.findall(_STRING.sub("", text)))


def _differ_by_one(shape: str, other: str) -> bool:
    """Return whether the shapes are equal or differ by one bracket."""
    longer, shorter = (shape, other) if len(shape) > len(other) else (other, shape)
    same = next((at for at, bracket in enumerate(shorter) if bracket != longer[at]), len(shorter))
    return longer[same + (len(longer) > len(shorter)) :] == shorter[same:]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _is_whole_in(text: str, leaf: str) -> bool:
    """Return whether a result string was whole in the text."""
    if ('"' in leaf and _BRACKETS.search(leaf)) or _MARK_AT_THE_EDGE.search(leaf):
        return False
    if not leaf:
        return '""' in text or "''" in text
    written = to_json(leaf).decode()[1:-1]
    if leaf.casefold() in _BARE_ONLY:
        return any(f"{quote}{leaf}{quote}" in text for quote in "\"'")
    return any(_is_delimited(text, form) for form in {leaf, written})


def _is_delimited(text: str, form: str) -> bool:
    at = text.find(form)
    while at >= 0:
        before, behind = text[max(0, at - 50) : at].rstrip()[-1:], text[at + len(form) :][:50].lstrip()[:1]
        if before in _OPENS and behind in _CLOSES:
            return True
        at = text.find(form, at + 1)
    return False


def _signs(text: str) -> str:
    return _MARKS.sub("", _ESCAPE.sub(_unescaped, text)).casefold()


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _ESCAPED_CONTROL.get(found[2], found[2])


# --- From text to value -------------------------------------------------------------------------------------------


_MAX_FITTED = 500
"""Maximum number of candidates tried, last first; 0.2 ms each."""


def read_structured(text: str, schema: object = None, limits: Limits = DEFAULT_LIMITS) -> ReadResult:
    """Return the value of `text` under `schema` with its provenance.

    Raise `StructuredOutputError` if there is none.

    Args:
        text: text of a model.
        schema: a type, a pydantic model or a JSON Schema.
        limits: bounds of parsing.
    """
    text = _as_text(text)
    compiled = None if schema is None else compile_schema(schema)
    with refusing("parse", text, compiled):
        whole = _whole_within(text, limits)
        if whole is not None and (compiled is None or accepts(compiled, whole.value)):
            return reading_of(whole, whole.value, (), compiled, text)
        return _search(text, whole, compiled, limits)


def _as_text(text: str | bytes) -> str:
    """Return text unchanged and bytes as UTF-8; refuse any other type."""
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
    """Return the validated value of a text.

    A truncated text gives its readable part: `read_structured` reports the truncation, a value cannot.

    Args:
        text: answer of a model.
        schema: a pydantic model, attrs class, dataclass, TypedDict, other type or JSON Schema.

    Raises:
        StructuredOutputError: the text has no value that fits; `errors` has the violations.
        DeclarationError: the schema is not valid.

    Example:
        ```python
        assert parse_and_validate("Sure: {'a': 1,}", dict[str, int]) == {"a": 1}
        ```
    """
    return _with_content(read_structured(text, schema)).value


def normalize_json_text(text: str) -> str:
    """Return the JSON of a model's answer as strict JSON text.

    Args:
        text: answer of a model.

    Raises:
        StructuredOutputError: the text has no JSON, or several readings.

    Example:
        ```python
        assert normalize_json_text("So: {a: 1,}") == '{"a":1}'
        ```
    """
    text = _as_text(text)
    with refusing("parse", text, None):
        whole = _whole_within(text, DEFAULT_LIMITS)
        if whole is not None:
            return whole.json
        return _with_content(_search(text, None, None, DEFAULT_LIMITS)).json


def _with_content(reading: ReadResult) -> ReadResult:
    """Return the reading, unless cut inside its first item."""
    begun = reading.span[1] - reading.span[0] > 1
    if reading.truncated and begun and reading.data in ({}, []):
        raise refusal("parse", "the text was cut off before its first value", reading.json, None)
    return reading


# --- search ---------------------------------------------------------------------------------------------------


def _whole_within(text: str, limits: Limits) -> Candidate | None:
    """Return the text as one JSON value, or raise `TooMuchWork`."""
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
    """Return the text as one JSON value, ignoring invisible marks."""
    stripped = text.strip().strip("\ufeff\u200b\u2060\u200e\u200f").strip()
    start = text.find(stripped[:1]) if stripped else 0
    try:
        value = strict.parse(stripped)
    except strict.JsonSyntaxError:
        return _multiline_string(stripped, start)
    return Candidate(start=start, end=start + len(stripped), value=value, json=stripped, engine="strict")


def _multiline_string(stripped: str, start: int) -> Candidate | None:
    """Return a JSON string in which line breaks were not escaped."""
    if len(stripped) < 2 or stripped[0] != '"' or stripped[-1] != '"' or stripped.count('"') != 2:
        return None
    json = "".join(f"\\u{ord(ch):04x}" if ch < " " else ch for ch in stripped)
    try:
        value = strict.parse(json)
    except strict.JsonSyntaxError:
        return None
    end = start + len(stripped)
    return Candidate(start=start, end=end, value=value, json=json, engine="mended", passes=("control_characters",))


def _search(text: str, whole: Candidate | None, schema: Schema | None, limits: Limits) -> ReadResult:
    readable, unwrapped = unwrapped_text(text) if whole is None else (text, None)
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


def _marked(reading: ReadResult, unwrapped: str | None) -> ReadResult:
    if unwrapped is None:
        return reading
    return attrs.evolve(reading, passes=(unwrapped, *reading.passes))


def _ranked(candidates: list[Candidate]) -> Iterator[Candidate]:
    for complete in (True, False):
        yield from (c for c in reversed(candidates) if c.complete is complete and c.solid and not c.fragment)


def _without_schema(candidates: Candidates, text: str, limits: Limits) -> Iterator[Candidate]:
    """Yield the candidates that are independent of their surroundings."""
    found = candidates.found
    yield from _ranked(found)
    for candidate in reversed(found):
        if not text[: candidate.start].strip() and not text[candidate.end :].strip(" \n\t,;`"):
            yield candidate
    if not candidates.ambiguous and (not found or any(c.fragment for c in found)):
        yield from repaired(text, limits)


def _with_schema(
    candidates: Candidates, readable: str, text: str, schema: Schema, limits: Limits, *, single: bool
) -> ReadResult | None:
    found = candidates.found
    if reading := _all_of_them(found, schema, text):
        return reading
    if reading := _best_fitted(found, schema, text):
        return reading
    if reading := _scalar(readable, text, schema, found, single):
        return reading
    weak = [c for c in reversed(found) if not c.solid and _begins_line(c, readable)]
    cut = any(not c.complete for c in found)
    spare = iter(()) if single else _last_resorts(readable, limits, ambiguous=candidates.ambiguous, cut=cut)
    for candidate in (*weak, *spare, *_fragments(candidates)):
        if reading := fitted(candidate, schema, text):
            return reading
    return None


def _best_fitted(found: list[Candidate], schema: Schema, text: str) -> ReadResult | None:
    """Return the first reading with an unchanged outermost value, if any.

    Complete readings come before cut ones.
    """
    for complete in (True, False):
        ranked = (c for c in itertools.islice(_ranked(found), _MAX_FITTED) if c.complete is complete)
        changed: ReadResult | None = None
        for candidate in ranked:
            reading = fitted(candidate, schema, text)
            if reading and not any(each.path == "$" for each in reading.coercions):
                return reading
            changed = changed or reading
        if changed:
            return changed
    return None


def _fragments(candidates: Candidates) -> list[Candidate]:
    """Return an unreadable region's complete parts, last first."""
    if candidates.ambiguous:
        return []
    return [c for c in reversed(candidates.found) if c.fragment and c.solid and c.complete]


def _last_resorts(text: str, limits: Limits, *, ambiguous: bool, cut: bool) -> Iterator[Candidate]:
    """Yield the last resorts: missing braces, then the repair libraries.

    The libraries silently omit the unfinished part of a cut text; `cut` marks it.
    """
    braced = with_braces(text)
    if braced:
        for candidate in find_candidates(braced[0], limits).found[:1]:
            yield attrs.evolve(candidate, passes=(braced[1], *candidate.passes), engine="mended")
    if not ambiguous:
        yield from (attrs.evolve(candidate, complete=not cut) for candidate in repaired(text, limits))


def _begins_line(candidate: Candidate, text: str) -> bool:
    """Return whether it begins a line, unlike `see [1]`."""
    before = text[: candidate.start]
    return not before.strip() or before.rstrip(" \t").endswith(("\n", ":", "`"))


def _all_of_them(candidates: list[Candidate], schema: Schema, text: str) -> ReadResult | None:
    """Return several final objects as a list, if wanted."""
    last = next(_ranked(candidates), None)
    if schema.json_schema.get("type") != "array" or last is None or not isinstance(last.value, dict):
        return None
    objects = [c for c in candidates if c.solid and c.complete and isinstance(c.value, dict)]
    if len(objects) < 2 or any(_is_list_of(c, schema) for c in candidates):
        return None
    value, coercions = coerced([c.value for c in objects], schema)
    if not accepts(schema, value):
        return None
    passes = tuple(dict.fromkeys(p for c in objects for p in c.passes))
    return ReadResult(
        value=constructed(schema, value),
        data=value,
        span=(objects[0].start, objects[-1].end),
        engine="mended" if passes else "strict",
        passes=(*passes, "several_objects"),
        coercions=coercions,
        schema_hash=schema.schema_hash,
    )


def _is_list_of(candidate: Candidate, schema: Schema) -> bool:
    """Return whether a candidate is a fitting, non-empty list."""
    usable = candidate.solid and candidate.complete and not candidate.fragment
    return usable and isinstance(candidate.value, list) and bool(candidate.value) and accepts(schema, candidate.value)


def _scalar(readable: str, text: str, schema: Schema, candidates: list[Candidate], single: bool) -> ReadResult | None:
    if any(c.solid and isinstance(c.value, dict | list) for c in candidates):
        return None
    source = candidates[0].value if single and isinstance(candidates[0].value, str) else readable
    value = scalar_from(source, schema)
    if value is NOTHING or not accepts(schema, value):
        return None
    span = (0, len(text))
    built = constructed(schema, value)
    return ReadResult(value=built, data=value, span=span, engine="scalar", schema_hash=schema.schema_hash)


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
