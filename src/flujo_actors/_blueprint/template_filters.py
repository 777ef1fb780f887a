"""The filters and the tests of the template language: all there are. None calls a method of a value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .template_values import (
    MOST_OUTPUT,
    Frame,
    Missing,
    TemplateError,
    attribute,
    items_of,
    json_of,
    number,
    present,
    text_of,
    truth,
)


def _text(frame: Frame, value: object) -> str:
    return text_of(frame, present(value))


def _join(frame: Frame, value: object, separator: str = "", attribute: str | None = None) -> str:
    parts = [_text(frame, each) for each in _picked(frame, value, attribute)]
    gap = _text(frame, separator)
    frame.moved(sum(map(len, parts)) + len(gap) * len(parts))
    return gap.join(parts)


def _picked(frame: Frame, value: object, path: str | None) -> list[object]:
    items = items_of(frame, value)
    return items if path is None else [present(_field(each, path)) for each in items]


def _field(value: object, path: str) -> object:
    for name in path.split("."):
        value = attribute(value, name)
    return value


def _default(frame: Frame, value: object, instead: object = "", boolean: bool = False) -> object:
    missing = type(value) is Missing or (boolean and not truth(value))
    return present(instead) if missing else value


def _length(frame: Frame, value: Any) -> int:
    if isinstance(present(value), str | Sequence | Mapping | set | frozenset):
        return len(value)
    raise TemplateError(f"a {type(value).__name__} has no length")


def _end(value: Any, place: int) -> object:
    if not isinstance(present(value), str | Sequence):
        raise TemplateError(f"a list or a text is wanted here, not a {type(value).__name__}")
    return value[place] if len(value) else Missing("the list is empty, it has no first and no last item")


def _round(frame: Frame, value: object, digits: int = 0) -> object:
    if not -20 <= _whole(digits) <= 20:
        raise TemplateError("`round` takes between -20 and 20 digits")
    try:
        return number(round(_real(value), digits) if digits else float(round(_real(value))))
    except OverflowError as error:
        raise TemplateError(str(error)) from None


def _int(frame: Frame, value: object) -> int:
    value = present(value)
    if isinstance(value, str) and len(value) > 40:
        raise TemplateError("a text of more than 40 characters is no number")
    if not isinstance(value, str | int | float):
        raise TemplateError(f"a {type(value).__name__} is no number")
    try:
        return int(number(int(value)))
    except (ValueError, OverflowError):
        raise TemplateError(f"{value!r:.60} is no whole number") from None


def _float(frame: Frame, value: object) -> float:
    value = present(value)
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > 60):
        raise TemplateError(f"{value!r:.60} is no number")
    try:
        return float(value)
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


def _truncate(frame: Frame, value: object, length: int = 255, end: str = "…") -> str:
    text, limit, tail = _text(frame, value), _whole(length), _text(frame, end)
    if limit < 0:
        raise TemplateError("`truncate` takes a length of 0 or more")
    return text if len(text) <= limit else text[: max(0, limit - len(tail))] + tail


def _indent(frame: Frame, value: object, width: int = 4, first: bool = False) -> str:
    text, by = _text(frame, value), _whole(width)
    lines = text.split("\n")
    if not 0 <= by <= 200:
        raise TemplateError("`indent` takes a width between 0 and 200")
    frame.moved(len(text) + by * len(lines))
    gap = " " * by
    return (gap if first else "") + ("\n" + gap).join(lines)


def _replace(frame: Frame, value: object, old: str, new: str) -> str:
    text, before, after = (_text(frame, each) for each in (value, old, new))
    if not before:
        raise TemplateError("`replace` needs a text to look for")
    frame.moved(len(text) + text.count(before) * len(after))
    return text.replace(before, after)


def _sort(frame: Frame, value: object, reverse: bool = False, attribute: str | None = None) -> list[object]:
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


def _unique(frame: Frame, value: object) -> list[object]:
    seen: dict[str, object] = {}
    for each in items_of(frame, value):
        seen.setdefault(f"{type(each).__name__}:{json_of(frame, each)}", each)
    return list(seen.values())


def _map(frame: Frame, value: object, *, attribute: str) -> list[object]:
    return _picked(frame, value, attribute)


def _sum(frame: Frame, value: object, attribute: str | None = None) -> object:
    return number(
        math.fsum(numbers)
        if _has_fraction(numbers := [*map(_real, _picked(frame, value, attribute))])
        else sum(numbers)
    )


def _has_fraction(numbers: list[int | float]) -> bool:
    return any(isinstance(each, float) for each in numbers)


def _least(frame: Frame, value: object, attribute: str | None = None) -> object:
    items = items_of(frame, value)
    key = (lambda each: each) if attribute is None else (lambda each: present(_field(each, attribute)))
    return _compared(lambda: min(items, key=key)) if items else Missing("the list is empty, it has no least item")


def _most(frame: Frame, value: object, attribute: str | None = None) -> object:
    items = items_of(frame, value)
    key = (lambda each: each) if attribute is None else (lambda each: present(_field(each, attribute)))
    return _compared(lambda: max(items, key=key)) if items else Missing("the list is empty, it has no greatest item")


def _tojson(frame: Frame, value: object, indent: int | None = None) -> str:
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
"""What other template languages call a filter of ours."""


def _starts(frame: Frame, value: Any, beginning: str) -> bool:
    return isinstance(present(value), str) and value.startswith(_text(frame, beginning))


def _ends(frame: Frame, value: Any, ending: str) -> bool:
    return isinstance(present(value), str) and value.endswith(_text(frame, ending))


def contains(frame: Frame, value: object, container: object) -> bool:
    """Whether a value is an item of a list, a key of a mapping or part of a text."""
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


def _is_number(frame: Frame, value: object) -> bool:
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
    """What a result is called where branches are chosen by it: texts as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
