"""Calls of code inside users' values: their properties, copies, comparisons, texts and constructors.

User code that works for a step is called through the bridge's guard. A value brings code along, too, and whoever only
wants to copy, compare, store or word the value must not fail with it: what such code raises is a value like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from outcome import Error, Value

P = ParamSpec("P")
T = TypeVar("T")


def tried(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Value[T] | Error:
    """What `fn` returns, or the exception that it raises; an interrupt and the like pass."""
    try:
        return Value(fn(*args, **kwargs))
    except Exception as error:  # user code: see above
        return Error(error)
