"""Reducers: combination of one context key changed by several branches.

Rules:

1. A reducer is a function `(base, one, other)`: the value before the branches, the combined value of the branches so
   far, and the value of the next branch. Branches come in declaration order, items in item order.
2. `base` is `None` if the key did not exist before.
3. It is called only if two branches changed the key; a single change is used unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

Reducer: TypeAlias = Callable[[Any, Any, Any], Any]
"""Makes one value of two changes; see the module's rules."""


@attrs.frozen(repr=False)
class _NamedReducer:
    name: str
    combine: Reducer

    def __call__(self, base: object, one: object, other: object) -> object:
        return self.combine(base, one, other)

    def __repr__(self) -> str:
        return self.name


def _add(base: Any, one: Any, other: Any) -> object:
    return one + other if base is None else one + (other - base)


def _append(base: Any, one: object, other: Any) -> object:
    kept = 0 if base is None else len(base)
    if base is not None and other[:kept] != base:
        raise ValueError("a branch changed the previous items, so its additions are ambiguous")
    return one + other[kept:]


def _merge(base: Any, one: Any, other: Any) -> object:
    before: Mapping[object, object] = {} if base is None else base
    merged = {key: value for key, value in one.items() if key in other or key not in before}
    for key, value in other.items():
        if key not in before or value != before[key]:
            merged[key] = _merged_value(before.get(key), merged.get(key), value)
    return merged


def _merged_value(base: object, one: object, other: object) -> object:
    nested = isinstance(one, dict) and isinstance(other, dict)
    return _merge(base if isinstance(base, dict) else None, one, other) if nested else other


Add: Reducer = _NamedReducer("Add", _add)
"""Every branch's difference counts: for numbers, decimals, durations."""

Append: Reducer = _NamedReducer("Append", _append)
"""Concatenate the appended parts of all branches: for lists, tuples and texts."""

Merge: Reducer = _NamedReducer("Merge", _merge)
"""Merge all branches' keys recursively; later branches win."""


def is_reducer(value: object) -> bool:
    """Return whether the value can be called with `(base, one, other)`."""
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True
