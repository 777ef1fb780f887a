"""Whether a text may say something else than what was read from it.

1. A text that is one mark away from JSON in one way says that, whatever else could be made of it.
2. One that is so in several ways is refused, unless what was read is the only one of them that is regular.
3. Where a text was cut off, the reading of what is left counts if it is one of them, and is marked as cut.
4. Some things that models write by habit are one mark away from something else: they are taken for what they are.
"""

from __future__ import annotations

import re

from pydantic_core import to_json

from ._fitting import fitted, reading_of
from ._one_mark import near_candidates
from ._reading import Reading
from ._refusals import refusal
from ._schema import Schema


def undisputed(found: Reading | None, readable: str, text: str, schema: Schema | None) -> Reading | None:
    """What was found, unless the text says something else with one mark changed; several such things are a refusal."""
    if found and (_stands_clear(found, readable) or _is_habit(found, readable)):
        return found
    near = [reading for reading in _near(readable, text, schema) if found is None or _covers(reading, found)]
    said = {to_json(reading.data) for reading in near}
    if not said or (found and _is_confirmed(found, near)):
        return found
    if len(said) == 1 and not (found and found.truncated and not _extends(near[0].data, found.data)):
        return near[0]
    reason = "the text has several readings: a mark in it is missing, or stands for another"
    raise refusal("parse", reason, text, schema)


_BRACKETS_AND_COMMA = frozenset(',"{}[]')
_CLEAR_BEHIND = re.compile(r"\s*(?:\Z|[`<])|\s+(?!true|false|null)[^\W\d][^\n\"{}\[\]]*+(?:\n|\Z)|[.!?]")


def _stands_clear(found: Reading, text: str) -> bool:
    """Whether it is JSON as it stands, a last comma aside, and nothing beside it looks like more of it."""
    start, end = found.span
    if not (found.engine == "strict" or found.passes == ("trailing_comma",)) or not _CLEAR_BEHIND.match(text, end):
        return False
    return not text[start - 1 : start].isalnum() and text[:start].rstrip()[-1:] not in _BRACKETS_AND_COMMA


def _is_confirmed(found: Reading, near: list[Reading]) -> bool:
    """Whether it is one of the near readings, and the only one that says this, or the only one that is regular."""
    said = {_said(reading) for reading in near}
    regular = {_said(reading) for reading in near if _is_regular(reading.data)}
    return _said(found) in said and (found.truncated or len(said) == 1 or regular == {_said(found)})


_HABITS = (
    ({"set"}, {"wrong_closer"}),
    ({"missing_opener"}, {"missing_closer"}),
    ({"missing_quote", "unquoted_key"}, {"unquoted_value"}),
)
"""Repairs of what models write by habit, though it is one mark away from something else, and what goes with them."""


def _is_habit(found: Reading, text: str) -> bool:
    said, passes = text[found.span[0] : found.span[1]], set(found.passes)
    balanced = all(said.count(opener) == said.count(closer) for opener, closer in ("{}", "[]"))
    usual = any(habit <= passes <= habit | more for habit, more in _HABITS)
    return usual and balanced and not found.coercions and _is_regular(found.data)


def _said(reading: Reading) -> bytes:
    """What a reading says; an empty container says the same whichever its brackets are."""
    return to_json(reading.data).replace(b"{}", b"[]")


def _is_regular(data: object) -> bool:
    """Whether the elements of every list are of one kind."""
    if isinstance(data, dict):
        return all(map(_is_regular, data.values()))
    if not isinstance(data, list):
        return True
    kinds = {float if type(item) is int else type(item) for item in data}
    return len(kinds) < 2 and all(map(_is_regular, data))


def _extends(more: object, less: object) -> bool:
    """Whether `more` says all that `less` says."""
    if isinstance(less, dict) and isinstance(more, dict):
        return all(key in more and _extends(more[key], item) for key, item in less.items())
    if isinstance(less, list) and isinstance(more, list):
        return len(less) <= len(more) and all(map(_extends, more, less))
    return bool(more == less)


def _covers(near: Reading, found: Reading) -> bool:
    return near.span[0] <= found.span[0] < near.span[1]


def _near(readable: str, text: str, schema: Schema | None) -> list[Reading]:
    candidates = near_candidates(readable)
    if schema is None:
        return [reading_of(candidate, candidate.value, (), None, text) for candidate in candidates]
    near = [reading for candidate in candidates if (reading := fitted(candidate, schema, text))]
    return [reading for reading in near if not reading.coercions] or near
