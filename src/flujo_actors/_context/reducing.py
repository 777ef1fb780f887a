"""Which fields of a context model have a reducer: `total: Annotated[int, Add] = 0`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._core.reducers import Reducer, is_reducer
from ..errors import DeclarationError


@functools.lru_cache(maxsize=256)
def reducers_of(model: type) -> Mapping[str, Reducer]:
    """The reducers of a model by field; `DeclarationError` for a function that is none."""
    return {
        name: each
        for name, metadata in _metadata_of(model)
        for each in metadata
        if _is_meant_as_reducer(each) and _checked(model, name, each)
    }


def _metadata_of(model: type) -> Iterator[tuple[str, Iterable[Any]]]:
    fields: Mapping[str, Any] | None = getattr(model, "model_fields", None)
    if fields is not None:  # pydantic knows what it made of the annotations, also of a class inside a function
        yield from ((name, field.metadata) for name, field in fields.items())
        return
    for name, hint in _hints_of(model).items():
        yield name, getattr(hint, "__metadata__", ())


def _hints_of(model: type) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(model, include_extras=True)
    except NameError as error:
        told = " ".join(str(hint) for each in model.__mro__ for hint in inspect.get_annotations(each).values())
        if "Annotated" not in told:
            return {}
        raise DeclarationError(
            f"the annotations of context_model {model.__name__} cannot be read ({error}), so its reducers are not "
            "known: define the class, and what it names, at the top of a module"
        ) from error


def _is_meant_as_reducer(value: object) -> bool:
    """Other metadata are not functions; those that are would be ignored without a word."""
    return inspect.isroutine(value) or (is_reducer(value) and not isinstance(value, type))


def _checked(model: type, name: str, value: object) -> bool:
    if not is_reducer(value):
        raise DeclarationError(
            f"field {name!r} of context_model {model.__name__} is annotated with the function "
            f"{getattr(value, '__name__', value)!r}, which does not take (base, one, other): take Add, Append, Merge "
            "or a function that does"
        )
    return True
