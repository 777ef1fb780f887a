"""What templates do with values: look into them, write them as text, and count what that takes.

Rules:

1. `a.b` is the key of a mapping first, else a declared field of a class; never a method, a property or a private name.
2. What is missing is `Missing`, which only `default` and `is defined` may meet; anything else raises.
3. Everything is counted, not timed: turns of loops, characters of output, and work, which is parts evaluated plus a
   hundredth of the characters that are moved.
4. Text stays text; anything else in a text is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
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
    """A template or an expression that could not be evaluated: the message says what is missing or does not fit."""


@attrs.frozen
class Missing:
    """What is not there, and what to say of it."""

    message: str


@attrs.define
class Frame:
    """One evaluation: the variables, and what it has used up."""

    variables: dict[str, Any]
    turns: int = 0
    output: int = 0
    work: int = 0

    def charge(self, amount: int) -> None:
        """Count work; a template that works too long is stopped."""
        self.work += amount
        if self.work > MOST_WORK:
            raise TemplateError(f"the template does too much: more than {MOST_WORK:,} parts were evaluated")

    def take_turns(self, count: int) -> None:
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
        """Count characters that are looked at or copied; no single text may be longer than the output."""
        if characters > MOST_OUTPUT:
            raise TemplateError(f"the template makes a text of more than {MOST_OUTPUT:,} characters")
        self.charge(characters // 100)


def present(value: object) -> Any:
    """The value; raises if there is none."""
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


def item(frame: Frame, value: Any, key: Any) -> object:
    """`value[key]`: a key, a place in a list or a text, or a declared field."""
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
    """The names in a free-form context, and the extra fields of a pydantic model."""
    if hasattr(type(value), "__flujo_data__"):
        return [name for name in vars(value) if not name.startswith("_")]
    extra = getattr(value, "__pydantic_extra__", None)
    return extra if isinstance(extra, dict) else ()


_names_by_class: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def declared_names(kind: type) -> frozenset[str]:
    """The fields that a class declares; private ones are not among them."""
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
    """Whether a value counts as true; an object of a class does."""
    if isinstance(value, (*PLAIN, list, tuple, dict)):
        return bool(value)
    if isinstance(value, Mapping | Sequence):
        return len(value) > 0
    return bool(present(value) is not None)


def text_of(frame: Frame, value: object) -> str:
    """A value as it stands in a text (rule 4)."""
    if isinstance(value, str):
        frame.moved(len(value))
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return json_of(frame, present(value))


def json_of(frame: Frame, value: object, indent: int | None = None) -> str:
    """A value as JSON, if it is not too large to be written."""
    frame.moved(_weight(value))
    try:
        written = json.dumps(value, ensure_ascii=False, indent=indent, default=_jsonable)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"{_kind(value)} cannot be written as JSON: {error}") from None
    frame.moved(len(written))
    return written


def _jsonable(value: object) -> object:
    from pydantic_core import to_jsonable_python  # only for what is no plain data

    return to_jsonable_python(value, fallback=_by_fields)


def _by_fields(value: object) -> object:
    names = _names_of(value)
    if not names:
        raise TemplateError(f"{_kind(value)} cannot be written as JSON")
    return {name: getattr(value, name) for name in names}


def _weight(value: object) -> int:
    """About how many characters a value has as JSON; raises if it is too many, or goes in a circle."""
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
    return weight


def number(value: Any) -> Any:
    """A number of a size that every program can hold."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise TemplateError("a number became too large")
    return value


def items_of(frame: Frame, value: object) -> list[object]:
    """The items of a list, the keys of a mapping; a text is no list."""
    value = present(value)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Mapping | set | frozenset):
        raise TemplateError(f"a list is wanted here, not {_kind(value)}")
    frame.take_turns(len(value))
    return list(value)
