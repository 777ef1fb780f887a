"""Filters and tests of the template language; none calls methods."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import attrs

MOST_TURNS = 10_000
MOST_OUTPUT = 1_000_000
MOST_WORK = 500_000
LARGEST = 2**63

_MOST_VALUES = 100_000

PLAIN = (str, int, float, bool, type(None))


class TemplateError(ValueError):
    """Failed evaluation of a template or expression; the message names the cause."""


@attrs.frozen
class Missing:
    """Absent value with its error message."""

    message: str


@attrs.define
class TemplateFrame:
    """One evaluation: variables and metered work."""

    variables: dict[str, Any]
    turns: int = 0
    output: int = 0
    work: int = 0

    def charge(self, amount: int) -> None:
        """Count work; a template that works too long is stopped."""
        self.work += amount
        if self.work > MOST_WORK:
            raise TemplateError(f"the template does too much: more than {MOST_WORK:,} parts were evaluated")

    def count_turns(self, count: int) -> None:
        """Count turns of loops, and items that a filter goes through."""
        self.turns += count
        if self.turns > MOST_TURNS:
            raise TemplateError(f"the template has more than {MOST_TURNS:,} turns; make the list shorter in a step")

    def written(self, characters: int) -> None:
        """Count characters of output."""
        self.output += characters
        if self.output > MOST_OUTPUT:
            raise TemplateError(f"the template makes a text of more than {MOST_OUTPUT:,} characters")

    def moved(self, characters: int) -> None:
        """Count read or copied characters; texts may not exceed the limit."""
        if characters > MOST_OUTPUT:
            raise TemplateError(f"the template makes a text of more than {MOST_OUTPUT:,} characters")
        self.charge(characters // 100)


def present(value: object) -> Any:
    """Return the value, or raise if it is absent."""
    if type(value) is Missing:
        raise TemplateError(value.message)
    return value


# --- looking into values ------------------------------------------------------------------------------------


def attribute(value: object, name: str) -> object:
    """`value.name` (rule 1)."""
    if isinstance(value, dict):
        found = value.get(name, _NOTHING)
        return _missing(name, value) if found is _NOTHING else found
    if type(value) is Missing:
        return value
    if isinstance(value, Mapping):
        return value[name] if name in value else _missing(name, value)
    if name in declared_names(type(value)) or name in _own_values(value):
        return getattr(value, name)
    return _missing(name, value)


def item(frame: TemplateFrame, value: Any, key: Any) -> object:
    """Return `value[key]`: mapping key, index, or declared field."""
    if isinstance(key, str):
        if key.startswith("_") and not isinstance(value, Mapping):
            raise TemplateError(f"{key[:40]!r} is private")
        return attribute(value, key)
    if type(value) is Missing:
        return value
    if isinstance(value, Mapping):
        hashable = isinstance(key, PLAIN)
        return value[key] if hashable and key in value else _missing(key, value)
    if isinstance(value, Sequence) and isinstance(key, int) and not isinstance(key, bool):
        inside = -len(value) <= key < len(value)
        return value[key] if inside else Missing(f"there is no place {key}: the list has {len(value)}")
    return _missing(key, value)


_NOTHING = object()


def _missing(name: object, value: object) -> Missing:
    known = _names_of(value)
    has = ", ".join(known[:20]) if known else "nothing by name"
    return Missing(f"there is no {str(name)[:60]!r} in {_kind(value)}, which has {has}")


def _names_of(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [str(key)[:60] for key in list(value)[:20]]
    return sorted({*declared_names(type(value)), *_own_values(value)})


def _kind(value: object) -> str:
    return "a text" if isinstance(value, str) else f"a {type(value).__name__}"


def _own_values(value: object) -> Iterable[str]:
    """Yield the names of a free-form context or extra model fields."""
    if hasattr(type(value), "__flujo_data__"):
        return [name for name in vars(value) if not name.startswith("_")]
    extra = getattr(value, "__pydantic_extra__", None)
    return extra if isinstance(extra, dict) else ()


_names_by_class: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def declared_names(kind: type) -> frozenset[str]:
    """Return the public declared fields of a class."""
    known = _names_by_class.get(kind)
    if known is None:
        known = frozenset(name for name in _declared(kind) if not name.startswith("_"))
        _names_by_class[kind] = known
    return known


def _declared(kind: type) -> Iterable[str]:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    pydantic_fields = getattr(kind, "__pydantic_fields__", None)
    if isinstance(pydantic_fields, dict):
        return list(pydantic_fields)
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    return ()


# --- truth, text, numbers ------------------------------------------------------------------------------------


def truth(value: object) -> bool:
    """Return whether a value is true; objects of classes are."""
    if isinstance(value, (*PLAIN, list, tuple, dict)):
        return bool(value)
    if isinstance(value, Mapping | Sequence):
        return len(value) > 0
    return bool(present(value) is not None)


def text_of(frame: TemplateFrame, value: object) -> str:
    """Return a value as text (rule 4)."""
    if isinstance(value, str):
        frame.moved(len(value))
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return json_of(frame, present(value))


def json_of(frame: TemplateFrame, value: object, indent: int | None = None) -> str:
    """Return a value as JSON within the size limits."""
    _check_size(frame, value)
    try:
        written = json.dumps(
            value, ensure_ascii=False, allow_nan=False, indent=indent, default=lambda each: _jsonable(frame, each)
        )
    except TemplateError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"{_kind(value)} cannot be written as JSON: {error}") from None
    frame.moved(len(written))
    return written


def _jsonable(frame: TemplateFrame, value: object) -> object:
    from pydantic_core import to_jsonable_python  # only for other than plain data

    plain = to_jsonable_python(value, fallback=_by_fields)
    _check_size(frame, plain)
    return plain


def _by_fields(value: object) -> object:
    names = _names_of(value)
    if not names:
        raise TemplateError(f"{_kind(value)} cannot be written as JSON")
    return {name: getattr(value, name) for name in names}


def _check_size(frame: TemplateFrame, value: object) -> None:
    """Count a value's JSON characters and parts; raise beyond the limit."""
    weight = values = 0
    pending = [value]
    while pending:
        each = pending.pop()
        values += 1
        weight += 2 + (len(each) if isinstance(each, str | bytes) else 0)
        if weight > MOST_OUTPUT or values > _MOST_VALUES:
            raise TemplateError(f"the value has more than {MOST_OUTPUT:,} characters as JSON, or goes in a circle")
        if isinstance(each, Mapping):
            pending.extend(each.keys())
            pending.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            pending.extend(each)
    frame.moved(weight)
    frame.charge(values)


def number(value: Any) -> Any:
    """Return a number of a size that every program can hold."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise TemplateError("a number became too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateError(f"{value} is no number that can be reckoned with")
    return value


def items_of(frame: TemplateFrame, value: object) -> list[object]:
    """Return a list's items or a mapping's keys; texts are refused."""
    value = present(value)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Mapping | set | frozenset):
        raise TemplateError(f"a list is wanted here, not {_kind(value)}")
    frame.count_turns(len(value))
    return list(value)


def _text(frame: TemplateFrame, value: object) -> str:
    return text_of(frame, present(value))


def _join(frame: TemplateFrame, value: object, separator: str = "", attribute: str | None = None) -> str:
    parts = [_text(frame, each) for each in _picked(frame, value, attribute)]
    gap = _text(frame, separator)
    frame.moved(sum(map(len, parts)) + len(gap) * len(parts))
    return gap.join(parts)


def _picked(frame: TemplateFrame, value: object, path: str | None) -> list[object]:
    items = items_of(frame, value)
    return items if path is None else [present(_field(each, path)) for each in items]


def _field(value: object, path: str) -> object:
    for name in path.split("."):
        value = attribute(value, name)
    return value


def _default(frame: TemplateFrame, value: object, instead: object = "", boolean: bool = False) -> object:
    missing = type(value) is Missing or (boolean and not truth(value))
    return present(instead) if missing else value


def _length(frame: TemplateFrame, value: Any) -> int:
    if isinstance(present(value), str | Sequence | Mapping | set | frozenset):
        return len(value)
    raise TemplateError(f"a {type(value).__name__} has no length")


def _end(value: Any, place: int) -> object:
    if not isinstance(present(value), str | Sequence):
        raise TemplateError(f"a list or a text is wanted here, not a {type(value).__name__}")
    return value[place] if len(value) else Missing("the list is empty, it has no first and no last item")


def _round(frame: TemplateFrame, value: object, digits: int = 0) -> object:
    if not -20 <= _whole(digits) <= 20:
        raise TemplateError("`round` takes between -20 and 20 digits")
    try:
        return number(round(_real(value), digits) if digits else float(round(_real(value))))
    except (OverflowError, ValueError) as error:
        raise TemplateError(str(error)) from None


def _int(frame: TemplateFrame, value: object) -> int:
    value = present(value)
    if isinstance(value, str) and len(value) > 40:
        raise TemplateError("a text of more than 40 characters is no number")
    if not isinstance(value, str | int | float):
        raise TemplateError(f"a {type(value).__name__} is no number")
    try:
        return int(number(int(value)))
    except (ValueError, OverflowError):
        raise TemplateError(f"{value!r:.60} is no whole number") from None


def _float(frame: TemplateFrame, value: object) -> float:
    value = present(value)
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > 60):
        raise TemplateError(f"{value!r:.60} is no number")
    try:
        return float(number(float(value)))
    except TemplateError:
        raise
    except (ValueError, OverflowError):
        raise TemplateError(f"{value!r:.60} is no number") from None


def _real(value: object) -> int | float:
    value = present(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TemplateError(f"a number is wanted here, not a {type(value).__name__}")
    return value


def _whole(value: object) -> int:
    value = present(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TemplateError(f"a whole number is wanted here, not a {type(value).__name__}")
    return value


def _truncate(frame: TemplateFrame, value: object, length: int = 255, end: str = "…") -> str:
    text, limit, tail = _text(frame, value), _whole(length), _text(frame, end)
    if limit < 0:
        raise TemplateError("`truncate` takes a length of 0 or more")
    return text if len(text) <= limit else text[: max(0, limit - len(tail))] + tail


def _indent(frame: TemplateFrame, value: object, width: int = 4, first: bool = False) -> str:
    text, by = _text(frame, value), _whole(width)
    lines = text.split("\n")
    if not 0 <= by <= 200:
        raise TemplateError("`indent` takes a width between 0 and 200")
    frame.moved(len(text) + by * len(lines))
    frame.charge(len(lines) // 10)
    gap = " " * by
    return (gap if first else "") + ("\n" + gap).join(lines)


def _replace(frame: TemplateFrame, value: object, old: str, new: str) -> str:
    text, before, after = (_text(frame, each) for each in (value, old, new))
    if not before:
        raise TemplateError("`replace` needs a text to look for")
    found = text.count(before)
    frame.moved(len(text) + found * len(after))
    frame.charge(found // 10)
    return text.replace(before, after)


def _sort(frame: TemplateFrame, value: object, reverse: bool = False, attribute: str | None = None) -> list[object]:
    items = items_of(frame, value)
    frame.charge(10 * len(items))
    key = (lambda each: each) if attribute is None else (lambda each: present(_field(each, attribute)))
    ordered: list[Any] = _compared(lambda: sorted(items, key=key, reverse=truth(reverse)))
    return ordered


def _compared(work: Callable[[], object]) -> Any:
    try:
        return work()
    except TypeError as error:
        raise TemplateError(f"these values cannot be compared: {error}") from None


def _unique(frame: TemplateFrame, value: object) -> list[object]:
    seen: dict[str, object] = {}
    for each in items_of(frame, value):
        seen.setdefault(f"{type(each).__name__}:{json_of(frame, each)}", each)
    return list(seen.values())


def _map(frame: TemplateFrame, value: object, *, attribute: str) -> list[object]:
    return _picked(frame, value, attribute)


def _sum(frame: TemplateFrame, value: object, attribute: str | None = None) -> object:
    return number(
        math.fsum(numbers)
        if _has_fraction(numbers := [*map(_real, _picked(frame, value, attribute))])
        else sum(numbers)
    )


def _has_fraction(numbers: list[int | float]) -> bool:
    return any(isinstance(each, float) for each in numbers)


def _least(frame: TemplateFrame, value: object, attribute: str | None = None) -> object:
    items = items_of(frame, value)
    key = (lambda each: each) if attribute is None else (lambda each: present(_field(each, attribute)))
    return _compared(lambda: min(items, key=key)) if items else Missing("the list is empty, it has no least item")


def _most(frame: TemplateFrame, value: object, attribute: str | None = None) -> object:
    items = items_of(frame, value)
    key = (lambda each: each) if attribute is None else (lambda each: present(_field(each, attribute)))
    return _compared(lambda: max(items, key=key)) if items else Missing("the list is empty, it has no greatest item")


def _tojson(frame: TemplateFrame, value: object, indent: int | None = None) -> str:
    wide = None if indent is None else _whole(indent)
    if wide is not None and not 0 <= wide <= 16:
        raise TemplateError("`tojson` takes an indent between 0 and 16")
    written = json_of(frame, present(value), wide)
    if len(written) > MOST_OUTPUT:
        raise TemplateError(f"the value has more than {MOST_OUTPUT:,} characters as JSON")
    return written


FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "join": _join,
        "upper": lambda frame, value: _text(frame, value).upper(),
        "lower": lambda frame, value: _text(frame, value).lower(),
        "title": lambda frame, value: _text(frame, value).title(),
        "trim": lambda frame, value: _text(frame, value).strip(),
        "length": _length,
        "tojson": _tojson,
        "default": _default,
        "first": lambda frame, value: _end(value, 0),
        "last": lambda frame, value: _end(value, -1),
        "round": _round,
        "int": _int,
        "float": _float,
        "string": _text,
        "truncate": _truncate,
        "indent": _indent,
        "replace": _replace,
        "sort": _sort,
        "unique": _unique,
        "list": lambda frame, value: items_of(frame, value),
        "map": _map,
        "sum": _sum,
        "min": _least,
        "max": _most,
        "abs": lambda frame, value: abs(_real(value)),
    }
)
"""Every filter, called with the frame, the value and its arguments."""

KNOWN_MISSPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "count": "length",
        "len": "length",
        "size": "length",
        "json": "tojson",
        "to_json": "tojson",
        "tojsonstring": "tojson",
        "upcase": "upper",
        "uppercase": "upper",
        "downcase": "lower",
        "lowercase": "lower",
        "capitalize": "title",
        "strip": "trim",
        "d": "default",
        "str": "string",
        "text": "string",
        "number": "float",
        "integer": "int",
        "uniq": "unique",
        "distinct": "unique",
        "sorted": "sort",
        "concat": "join",
        "to_list": "list",
        "minimum": "min",
        "maximum": "max",
    }
)
"""Names of our filters in other template languages."""


def _starts(frame: TemplateFrame, value: Any, beginning: str) -> bool:
    return isinstance(present(value), str) and value.startswith(_text(frame, beginning))


def _ends(frame: TemplateFrame, value: Any, ending: str) -> bool:
    return isinstance(present(value), str) and value.endswith(_text(frame, ending))


def contains(frame: TemplateFrame, value: object, container: object) -> bool:
    """Return whether a value is a list item, key or substring."""
    value, container = present(value), present(container)
    if isinstance(container, str):
        if not isinstance(value, str):
            raise TemplateError(f"only a text can be part of a text, not a {type(value).__name__}")
        frame.moved(len(container))
        return value in container
    if not isinstance(container, Sequence | Mapping | set | frozenset):
        raise TemplateError(f"`in` wants a list, a mapping or a text, not a {type(container).__name__}")
    frame.charge(len(container))
    return _compared(lambda: value in container) is True


def _is_number(frame: TemplateFrame, value: object) -> bool:
    return isinstance(present(value), int | float) and not isinstance(value, bool)


TESTS: Mapping[str, Callable[..., bool]] = MappingProxyType(
    {
        "defined": lambda frame, value: type(value) is not Missing,
        "none": lambda frame, value: present(value) is None,
        "string": lambda frame, value: isinstance(present(value), str),
        "number": _is_number,
        "mapping": lambda frame, value: isinstance(present(value), Mapping),
        "sequence": lambda frame, value: isinstance(present(value), Sequence) and not isinstance(value, str | bytes),
        "true": lambda frame, value: present(value) is True,
        "false": lambda frame, value: present(value) is False,
        "in": contains,
        "startswith": _starts,
        "endswith": _ends,
    }
)
"""Every test, called as filters are."""


def as_key(value: object) -> str:
    """Return a result's branch key: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
