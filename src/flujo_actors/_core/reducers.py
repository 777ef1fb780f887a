"""Reducers: how what several branches made of one key of the context becomes one value.

Rules:

1. A reducer is a function `(base, one, other)`: the value before the branches, what the branches so far have made of
   it, and what the next one made of it. Branches come in the order of their declaration, items in theirs.
2. `base` is `None` if the key did not exist before.
3. It is asked only where two branches changed the key; one change alone is taken as it is.
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
        raise ValueError("a branch changed what was there before, so that its additions cannot be told apart")
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
"""What the branches appended, one after the other: for lists, tuples and texts."""

Merge: Reducer = _NamedReducer("Merge", _merge)
"""The keys of all branches, dicts inside included; where two set one key, the later branch's value stands."""


def is_reducer(value: object) -> bool:
    """Whether the value can be called with `(base, one, other)`."""
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True
