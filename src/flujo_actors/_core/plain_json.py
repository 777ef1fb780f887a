"""JSON as a browser wants it: without type tags and without the names of modules; there is no way back.

It is made from the tagged form that `wire` writes. What JSON has no word for is told as people write it: a set is a
list, a moment is ISO text, bytes are base64, an object of a class is the object of its fields, and a number that
JavaScript cannot hold is a text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from .path_names import index_of
from .paths import StepPath

TAG = "$"
_LARGEST_SAFE_INT = 2**53


def untagged(data: object) -> object:
    """The plain form of tagged JSON data."""
    if isinstance(data, list):
        return [untagged(each) for each in data]
    if isinstance(data, dict):
        return _object(data)
    if isinstance(data, int) and not isinstance(data, bool):
        return _number(data)
    return data


def _object(data: dict[str, Any]) -> object:
    if TAG not in data:
        plain = {name: untagged(each) for name, each in data.items()}
        return _with_index(plain)
    write = _UNTAG.get(data[TAG], untagged)
    return write(data.get("value"))


def _with_index(plain: dict[str, Any]) -> dict[str, object]:
    """An outcome that says where its step stands also says which item of a map it belongs to."""
    if "kind" in plain and isinstance(plain.get("path"), str) and "index" not in plain:
        plain["index"] = index_of(StepPath(plain["path"]))
    return plain


def _number(value: int) -> int | str:
    return value if -_LARGEST_SAFE_INT <= value <= _LARGEST_SAFE_INT else str(value)


def _pairs(pairs: list[list[Any]]) -> dict[str, object]:
    return {_key(untagged(key)): untagged(each) for key, each in pairs}


def _key(key: object) -> str:
    if isinstance(key, bool) or key is None:
        return {True: "true", False: "false", None: "null"}[key]
    return ", ".join(map(_key, key)) if isinstance(key, list) else str(key)


def _complex(parts: list[object]) -> str:
    return f"{untagged(parts[0])}+{untagged(parts[1])}j"


_UNTAG: dict[str, Callable[..., object]] = {
    "dict": _pairs,
    "complex": _complex,
    "timedelta": lambda parts: dt.timedelta(*parts).total_seconds(),
}
"""What is not simply its value without the tag."""
