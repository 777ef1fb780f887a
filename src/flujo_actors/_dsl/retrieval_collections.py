"""`Collection`: name of a set of passages, and its filterable fields.

```python
class Papers(Collection, name="papers"):
    tenant: str
    year: int
```

Sections:

- `known_citations`: a validator for answers that cite their sources.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from .._core.records.assembled import AssembledContext
from .._core.validators import nearest
from ..errors import DeclarationError

_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (str, int, float, bool)}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TAKEN = ("id", "text")


class Collection:
    """Set of passages; subclass annotations are the filterable fields.

    Fields have the types str, int, float and bool.
    """

    __collection__: ClassVar[str] = ""
    __filterable__: ClassVar[Mapping[str, type]] = MappingProxyType({})

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        super().__init_subclass__()
        cls.__collection__ = cls.__name__.lower() if name is None else _checked_name(cls, name)
        inherited = dict(cls.__filterable__)
        own = {field: _checked_type(cls, field, kind) for field, kind in _annotations(cls).items()}
        cls.__filterable__ = MappingProxyType(inherited | own)


def collection_name(collection: type[Collection]) -> str:
    """Return the name of the collection in results, events and databases."""
    return collection.__collection__


def filterable(collection: type[Collection]) -> Mapping[str, type]:
    """Return the fields of a collection, with their types."""
    return collection.__filterable__


def checked_collection(value: object, *, subject: str) -> type[Collection]:
    """Return the collection, if it is one."""
    if isinstance(value, type) and issubclass(value, Collection) and value is not Collection:
        return value
    raise DeclarationError(f"{subject} must be a class made from Collection, not {value!r}")


def check_field(collection: type[Collection], field: str, *, subject: str) -> None:
    """Refuse an unknown field of the collection, with the nearest known one."""
    known = list(filterable(collection))
    if field in known:
        return
    near = nearest(str(field), known)
    has = f"it has {', '.join(known)}" if known else "it has no fields"
    raise DeclarationError(
        f"{subject} {field!r}: "
        + (f"did you mean {near!r}?" if near else f"{collection.__name__} has no such field; {has}")
    )


def fits(kind: type, value: object) -> bool:
    """Return whether a value has a field's type; `True` is no number."""
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


# --- `known_citations`: a validator for answers that cite their sources -------------------------------------------


_CITED = re.compile(r"\[([^\[\]\n]{1,200})\]")
_ID_LIKE = re.compile(r"[^\s\[\]]*[\w][^\s\[\]]*")


def known_citations(output: object, *, assembled: AssembledContext) -> str | None:
    """Refuse an answer that cites an unknown passage, like `[p9]`.

    A word, a number or an id in square brackets is a citation, also one of several with commas between; other text in
    brackets, a link's text and the `[…]` of a passage that was cut are not. All texts of a structured answer count.

    Args:
        output: output of the agent.
        assembled: context of the prompt.
    """
    known = dict.fromkeys(assembled.source_ids)
    unknown = [cited for text in _texts(output) for cited in cited_in(text, known) if cited not in known]
    if not unknown:
        return None
    listed = ", ".join(f"[{each}]" for each in dict.fromkeys(unknown))
    shown = ", ".join(f"[{each}]" for each in known) or "none at all"
    return f"it cites {listed}, but the passages that were shown are: {shown}"


def cited_in(text: str, known: Mapping[str, object]) -> Iterator[str]:
    """Yield the ids that a text cites, with repetitions."""
    for match in _CITED.finditer(text):
        if match.group(1) in known:
            yield match.group(1)
        elif not text.startswith("(", match.end()):
            parts = [part.strip() for part in re.split(r"[,;]", match.group(1))]
            if all(part in known or _ID_LIKE.fullmatch(part) for part in parts):
                yield from parts


_DEEPEST = 20
"""Maximum depth of examined texts in a structured answer."""


def _texts(output: object, depth: int = 0) -> Iterator[str]:
    """Yield every text in an answer, however it is structured."""
    if isinstance(output, str):
        yield output
    elif depth < _DEEPEST:
        for part in _parts(output):
            yield from _texts(part, depth + 1)


def _parts(output: object) -> list[object]:
    if isinstance(output, Mapping):
        return list(output.values())
    if isinstance(output, list | tuple | set | frozenset):
        return list(output)
    names: Iterable[Any] = vars(output) if hasattr(output, "__dict__") else getattr(type(output), "__slots__", ())
    return [getattr(output, name, None) for name in names if not str(name).startswith("_")]
