"""Coercion of a value to its schema's types without changing its meaning.

1. Every pass is small, has a name, and is recorded with the path where it was applied.
2. A pass changes the spelling of a value; it never adds, guesses or rounds.
3. Nothing is accepted here: the whole schema validates the result afterwards.
4. A value with very many parts is returned unchanged: it would take too long.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._compiled_schema import Schema
from ._read_result import Coercion
from ._strict import SourceFloat, plain, resolved

_LETTER = r"[^\W\d_]"
_ASIDE = re.compile(
    rf"(?<!\d)[\s_]+|[\s_]+(?!\d)"  # white space, except between two digits
    rf"|(?<={_LETTER})[-./,;:]+(?={_LETTER})|(?<=\d)-(?={_LETTER})"
    r"|[\"'“”‘’()\[\]`]+"
    r"|[.,;:!?]+\Z"
)
_DASHES = str.maketrans("‐‑‒–—−", "------")
_SEPARATOR = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,_'\u2019\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:\.\d+)?")
_GROUPED_WITH_POINTS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+")
_POINT_AND_THREE = re.compile(r"(?<![\d,'_ ])\d{1,3}\.\d{3}(?!\d|,\d)")
_SEPARATORS = re.compile(r"[,_'\u2019\u00a0\u202f ]")
_CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥₹]\s*(?=[\d.])|(?<=\d)\s*[$€£¥₹]$")
_TRUE = frozenset({"true", "yes", "y", "on", "1", "t"})
_FALSE = frozenset({"false", "no", "n", "off", "0", "f"})
_NULL = frozenset({"null", "none", "nil", "undefined"})
_MAX_DIGITS = 400


def skeleton(word: str) -> str:
    """Return a name without case and separators.

    `firstName` and `First-Name` agree, `C` and `C++` do not.
    """
    return _ASIDE.sub("", word.strip().translate(_DASHES)).casefold()


def _with_separators(word: str) -> str:
    """Return a name with one spelling of every separator.

    `gpt 4`, `gpt_4` and `gpt-4` agree, `gpt4` does not.
    """
    return _SEPARATOR.sub("_", word.strip().translate(_DASHES)).casefold()


def same_name(word: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `word` spells, or None."""
    names = list(names)
    for same in (skeleton, _with_separators):
        spelled = same(word)
        matches = [name for name in names if same(name) == spelled] if spelled else []
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def member_of(word: str, members: Iterable[object]) -> object:
    """Return the enumeration member that `word` spells, or `word` itself."""
    members = [member for member in members if not isinstance(member, dict | list)]
    stripped = word.strip()
    for same in (str.casefold, skeleton, _with_separators):
        spelled = same(stripped)
        matches = [m for m in members if _is_spelled(m, spelled, same)] if spelled else []
        if len(matches) == 1:
            return matches[0]
    return word


def _is_spelled(member: object, spelled: str, same: Callable[[str], str]) -> bool:
    if isinstance(member, int | float) and not isinstance(member, bool):
        return (integer_from(spelled) if isinstance(member, int) else number_from(spelled)) == member
    return same(_as_text(member)) == spelled


def _as_text(member: object) -> str:
    if isinstance(member, bool):
        return "true" if member else "false"
    return "null" if member is None else str(member)


def number_from(text: str) -> int | float | None:
    """Return a text's number, with thousands separators and currency sign."""
    text = _CURRENCY.sub(r"\1", text.strip())
    if len(text) > _MAX_DIGITS or (not text.isascii() and _SEPARATORS.sub("", text).isascii() is False):
        return None
    if _GROUPED.fullmatch(text):
        text = _SEPARATORS.sub("", text)
    elif _GROUPED_WITH_POINTS.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if number in (float("inf"), float("-inf")):
        return None
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def integer_from(text: str) -> int | None:
    """Return the integer of a text; `1.000` is ambiguous and gives None."""
    number = number_from(text)
    if number is None or number != int(number) or _POINT_AND_THREE.search(text):
        return None
    return int(number)


def boolean_from(value: object) -> bool | None:
    """Return the boolean of a word or 0 / 1, or None."""
    if isinstance(value, str):
        word = value.strip().casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    return None


def is_null_word(value: object) -> bool:
    """Return whether a text means "no value"."""
    return isinstance(value, str) and value.strip().casefold() in _NULL


Reparse = Callable[[str], object]
"""Parser of JSON in a string; `ValueError` without a container."""

_MISSING = object()


def coerce(value: Any, schema: Schema, reparse: Reparse) -> tuple[object, tuple[Coercion, ...]]:
    """Return `value` in the types of `schema`, and the passes."""
    coercer = _Coercer(schema, reparse)
    try:
        return coercer.coerce(value, schema.json_schema, "$"), tuple(coercer.notes)
    except (RecursionError, _TooManyParts):
        return value, ()


_MAX_PARTS = 20_000
"""At about 10 µs each, this is 0.2 s."""


class _TooManyParts(Exception):
    """The value has too many parts to examine."""


class _Coercer:
    def __init__(self, schema: Schema, reparse: Reparse, parts_left: int = _MAX_PARTS) -> None:
        self.schema, self.reparse = schema, reparse
        self.notes: list[Coercion] = []
        self.parts_left = parts_left
        self._resolved: dict[int, Mapping[str, object]] = {}

    def spend(self, parts: int) -> None:
        self.parts_left -= parts
        if self.parts_left < 0:
            raise _TooManyParts

    def note(self, path: str, rule: str, value: object) -> Any:
        self.notes.append(Coercion(path=path, rule=rule))
        return value

    def resolve(self, part: object) -> Mapping[str, object]:
        if not isinstance(part, Mapping) or "$ref" not in part:
            return part if isinstance(part, Mapping) else {}
        if id(part) not in self._resolved:
            self._resolved[id(part)] = resolved(part, self.schema.json_schema)
        return self._resolved[id(part)]

    def coerce(self, value: Any, part: Any, path: str) -> object:
        part = self.resolve(part)
        for variants in (part.get("anyOf"), part.get("oneOf")):
            if variants:
                value = self.union(value, variants, path)
        for sub in part.get("allOf", ()):
            value = self.coerce(value, sub, path)
        if "const" in part or "enum" in part:
            return self.choice(value, [part["const"]] if "const" in part else part["enum"], path)
        return self.typed(value, part, path)

    def union(self, value: object, variants: list[object], path: str) -> object:
        if any(self.fits(variant, value) for variant in variants):
            return value
        best, kept = value, None
        for variant in variants:
            trial = _Coercer(self.schema, self.reparse, self.parts_left)
            changed = trial.coerce(value, variant, path)
            self.parts_left = trial.parts_left
            if self.fits(variant, changed) and (kept is None or len(trial.notes) < len(kept)):
                best, kept = changed, trial.notes
        self.notes.extend(kept or ())
        return best

    def fits(self, variant: object, value: object) -> bool:
        return isinstance(variant, Mapping) and self.schema.part_is_valid(variant, plain(value))

    # --- by type ----------------------------------------------------------------------------------------

    def choice(self, value: object, members: list[object], path: str) -> object:
        if value in members and not isinstance(value, bool):
            return value
        if isinstance(value, list) and len(value) == 1:
            return self.choice(self.note(path, "element_from_list", value[0]), members, path)
        if isinstance(value, str):
            member = member_of(value, members)
            return value if member is value else self.note(path, "enum_case", member)
        return value

    def typed(self, value: Any, part: Mapping[str, Any], path: str) -> object:
        types = part.get("type") or ("object" if "properties" in part or "required" in part else None)
        types = [types] if isinstance(types, str) else list(types or ())
        kind = _kind(value)
        if not types or kind in types or (kind == "integer" and "number" in types):
            return self.descend(value, part, path)
        for wanted in types:
            changed = self.convert(value, wanted, part, path)
            if changed is not _MISSING:
                return changed
        return value

    def descend(self, value: object, part: Mapping[str, object], path: str) -> object:
        if isinstance(value, dict):
            return self.object(value, part, path)
        return self.array(value, part, path) if isinstance(value, list) else value

    def convert(self, value: object, wanted: str, part: Mapping[str, object], path: str) -> object:
        if isinstance(value, list) and len(value) == 1 and wanted != "array":
            inner = self.note(path, "element_from_list", value[0])
            return self.typed(inner, {**part, "type": wanted}, path)
        match wanted:
            case "integer" | "number":
                return self.number(value, wanted, path)
            case "boolean":
                word = None if isinstance(value, list) else boolean_from(value)
                return _MISSING if word is None else self.note(path, "boolean_from_text", word)
            case "string":
                return self.text(value, path)
            case "null":
                return self.note(path, "null_from_text", None) if is_null_word(value) else _MISSING
            case "object" | "array":
                return self.container(value, wanted, part, path)
        return _MISSING

    def number(self, value: Any, wanted: str, path: str) -> Any:
        if not isinstance(value, str):
            return _MISSING
        number = integer_from(value) if wanted == "integer" else number_from(value)
        return _MISSING if number is None else self.note(path, "number_from_text", number)

    def text(self, value: Any, path: str) -> Any:
        if isinstance(value, bool):
            return self.note(path, "text_from_boolean", "true" if value else "false")
        if isinstance(value, SourceFloat):
            return self.note(path, "text_from_number", value.lexeme)
        if isinstance(value, int | float):
            rule = "text_from_number" if isinstance(value, int) else "text_from_float"
            return self.note(path, rule, str(value))
        return _MISSING

    def container(self, value: object, wanted: str, part: Mapping[str, object], path: str) -> object:
        if isinstance(value, str) and (inner := self.decoded(value)) is not None:
            self.note(path, "double_encoded", None)
            return self.typed(inner, {**part, "type": wanted}, path)
        if wanted == "array" and value is not None:
            return self.array([self.note(path, "list_of_one", value)], part, path)
        return _MISSING

    def decoded(self, text: str) -> object:
        if text.strip()[:1] not in ("{", "[", '"'):
            return None
        try:
            return self.reparse(text)
        except ValueError:
            return None

    # --- containers -------------------------------------------------------------------------------------

    def array(self, items: list[Any], part: Mapping[str, Any], path: str) -> list[Any]:
        self.spend(len(items))
        leading = part.get("prefixItems", ())
        rest = part.get("items", {})
        return [
            self.coerce(item, leading[i] if i < len(leading) else rest, f"{path}[{i}]") for i, item in enumerate(items)
        ]

    def object(self, value: dict[str, Any], part: Mapping[str, Any], path: str) -> dict[str, object]:
        self.spend(len(value))
        value = self.renamed(value, part, path)
        required = part.get("required", ())
        result: dict[str, Any] = {}
        for key, item in value.items():
            place = self.place_of(key, part)
            if place is None:
                self.note(f"{path}.{key}", "extra_key", None)
            elif self.is_absent(key, item, place, required):
                self.note(f"{path}.{key}", "null_is_absent", None)
            else:
                result[key] = self.coerce(item, place, f"{path}.{key}")
        return result if result or not value else value

    def is_absent(self, key: str, item: Any, place: Any, required: Any) -> bool:
        if key in required or not (item is None or is_null_word(item)):
            return False
        return isinstance(place, Mapping) and not self.schema.part_is_valid(place, item)  # null, or a word

    def place_of(self, key: str, part: Mapping[str, Any]) -> Any:
        """Return the member's schema, or None if forbidden."""
        properties = part.get("properties", {})
        if key in properties:
            return properties[key]
        for pattern, schema in part.get("patternProperties", {}).items():
            if _matches(pattern, key):
                return schema
        additional = part.get("additionalProperties", True)
        return None if additional is False else {} if additional is True else additional

    def renamed(self, value: dict[str, Any], part: Mapping[str, Any], path: str) -> dict[str, Any]:
        properties = part.get("properties", {})
        absent = [name for name in properties if name not in value]
        if not absent or all(key in properties for key in value):
            return value
        names = {key: same_name(key, absent) for key in value if key not in properties}
        targets = Counter(names.values())
        unique = {key: name for key, name in names.items() if name and targets[name] == 1}
        for name in unique.values():
            self.note(f"{path}.{name}", "key_case", None)
        return {unique.get(key) or key: item for key, item in value.items()}


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # a pattern known only to the validator's dialect
        return False


def _kind(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
