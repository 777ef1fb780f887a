"""`Collection`: a name for passages, and the fields that a search may filter by.

```python
class Papers(Collection, name="papers"):
    tenant: str
    year: int
```
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from .._core.near_names import nearest
from ..errors import DeclarationError

_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (str, int, float, bool)}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TAKEN = ("id", "text")


class Collection:
    """A kind of passages. Subclass it: the annotations are the fields one may filter by (str, int, float, bool)."""

    __collection__: ClassVar[str] = ""
    __filterable__: ClassVar[Mapping[str, type]] = MappingProxyType({})

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        super().__init_subclass__()
        cls.__collection__ = cls.__name__.lower() if name is None else _checked_name(cls, name)
        inherited = dict(cls.__filterable__)
        own = {field: _checked_type(cls, field, kind) for field, kind in _annotations(cls).items()}
        cls.__filterable__ = MappingProxyType(inherited | own)


def collection_name(collection: type[Collection]) -> str:
    """What the collection is called, in results, events and databases."""
    return collection.__collection__


def filterable(collection: type[Collection]) -> Mapping[str, type]:
    """The fields of a collection, with their types."""
    return collection.__filterable__


def is_collection(value: object) -> bool:
    """Whether this is a class made from `Collection`."""
    return isinstance(value, type) and issubclass(value, Collection) and value is not Collection


def checked_collection(value: object, *, what: str) -> type[Collection]:
    """The collection, if it is one."""
    if isinstance(value, type) and issubclass(value, Collection) and value is not Collection:
        return value
    raise DeclarationError(f"{what} must be a class made from Collection, not {value!r}")


def check_field(collection: type[Collection], field: str, *, what: str) -> None:
    """Refuse a field that the collection has not, with the one that was probably meant."""
    known = list(filterable(collection))
    if field in known:
        return
    near = nearest(str(field), known)
    has = f"it has {', '.join(known)}" if known else "it has no fields"
    raise DeclarationError(
        f"{what} {field!r}: "
        + (f"did you mean {near!r}?" if near else f"{collection.__name__} has no such field; {has}")
    )


def fits(kind: type, value: object) -> bool:
    """Whether a value is of a field's type; a whole number is a float, too, and `True` is no number."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _annotations(cls: type) -> dict[str, object]:
    return {name: kind for name, kind in inspect.get_annotations(cls).items() if not name.startswith("_")}


def _checked_name(cls: type, name: object) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise DeclarationError(
        f"collection {cls.__name__}: its name must be a letter and up to 39 letters, digits, '_' or '-', not {name!r}"
    )


def _checked_type(cls: type, field: str, kind: object) -> type:
    found = _TYPES.get(kind.strip("'\"")) if isinstance(kind, str) else kind
    if field in _TAKEN:
        raise DeclarationError(
            f"collection {cls.__name__}: {field!r} is what passages have anyway; give the field another name"
        )
    if isinstance(found, type) and found in _TYPES.values():
        return found
    raise DeclarationError(
        f"collection {cls.__name__}: field {field!r} must be str, int, float or bool to be filtered by, not {kind!r}"
    )
