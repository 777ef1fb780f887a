"""Following `$ref` inside one schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_MAX_REFERENCES = 50


def resolved(part: object, root: Mapping[str, object]) -> Mapping[str, Any]:
    """What a part of `root` stands for, with what stands beside its reference.

    Empty if that is no object: a boolean schema, a reference to nothing, or a circle.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, Mapping):
            return {}
        if "$ref" not in part:
            return part
        target = _target(str(part["$ref"]), root)
        beside = {key: value for key, value in part.items() if key != "$ref"}
        part = {**target, **beside} if isinstance(target, Mapping) else {}
    return {}


def _target(reference: str, root: Mapping[str, object]) -> object:
    """Where a JSON pointer leads; None if nowhere."""
    target: Any = root
    for step in unquote(reference.lstrip("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            target = target.get(name) if isinstance(target, Mapping) else None
    return target
