"""The models that this process knows by name.

Stored data names a model; it is looked up here, among the types that were registered, declared or written before.
Nothing is imported to find one.
"""

from __future__ import annotations

from typing import TypeVar

from ..errors import NotSerializable

T = TypeVar("T")

_known: dict[str, type] = {}


def type_name(cls: type) -> str:
    """The name under which values of `cls` are stored."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_type(cls: type[T]) -> type[T]:
    """Let stored values of `cls` be read back in this process. Usable as a decorator."""
    _known[type_name(cls)] = cls
    return cls


def known_type(name: object) -> type:
    """The registered model of this name; `NotSerializable` if there is none."""
    cls = _known.get(name) if isinstance(name, str) else None
    if cls is None:
        raise NotSerializable(
            f"stored value is a {name!r}, which this process does not know; "
            "annotate the step that returns it, or call register_type(cls)"
        )
    return cls
