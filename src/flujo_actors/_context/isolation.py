"""Contexts and their copies: whoever runs user code gets a deep copy, and the original is never changed in place.

A context that cannot be copied is an error that names the key. The way back is in `merging`. Data that will be read
again, by another attempt, a fallback or a sibling branch, is copied for each of them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import attrs
from outcome import Error

from .._core.error_info import said_by
from .._core.foreign_code import tried
from .._core.near_names import nearest
from ..errors import ContextError, DeclarationError
from .freeform import Context

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


class FirstContext:
    """The context that runs begin with; a run may set fields of its own."""

    __slots__ = ("_data", "_model", "_usual", "_wanting")

    def __init__(self, model: type | None, data: Mapping[str, object] | None) -> None:
        self._model, self._data = model or Context, data
        self._wanting: DeclarationError | None = None
        self._usual: object
        try:
            self._usual = make_context(self._model, data, what="initial_context_data")
        except IncompleteContext as error:  # the rest may come with the runs
            self._usual, self._wanting = None, error

    @property
    def model(self) -> type:
        """The class of the context."""
        return self._model

    def of_run(self, own: Mapping[str, object] | None) -> object:
        """The context of a run with these fields of its own, to be copied; `DeclarationError` if they do not fit."""
        if own is None:
            if self._wanting is not None:
                raise self._wanting
            return self._usual
        if not isinstance(own, Mapping):
            raise DeclarationError(f"context must be a dict of fields of this run's context, not {own!r}")
        return make_context(self._model, {**(self._data or {}), **own}, what="context")


class IncompleteContext(DeclarationError):
    """A context model has fields that were given no value."""


def make_context(
    model: type | None, data: Mapping[str, object] | None, *, what: str = "initial_context_data"
) -> object:
    """The context a run begins with; `what` says where its data comes from."""
    model = model or Context
    if isinstance(data, Mapping):
        _refuse_unheard(model, data, what)
    try:
        return model(**dict(data or {}))
    except (TypeError, ValueError) as error:
        kind = IncompleteContext if _misses_fields(error) else DeclarationError
        raise kind(f"{what} does not fit context_model {model.__name__}: {error}") from error


def _misses_fields(error: Exception) -> bool:
    """Whether fields without a value are all that is wrong."""
    told = getattr(error, "errors", None)
    if callable(told):
        return all(each.get("type") == "missing" for each in told())
    return "missing" in str(error) and "required" in str(error)


def _refuse_unheard(model: type, data: Mapping[str, object], what: str) -> None:
    """Pydantic ignores keys that a model does not have; a misspelt one would vanish without a word."""
    taken = _keys_taken(model)
    unheard = None if taken is None else next((key for key in data if key not in taken), None)
    if taken is not None and unheard is not None:
        near = nearest(str(unheard), taken)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(taken)}"
        raise DeclarationError(
            f"{what} does not fit context_model {model.__name__}: it has no field {unheard!r}; {hint}"
        )


def _keys_taken(model: Any) -> list[str] | None:
    """What a pydantic model reads of a dict; `None` where that cannot be said, or where the model refuses."""
    decorators = getattr(model, "__pydantic_decorators__", None)
    if decorators is None or model.model_config.get("extra", "ignore") != "ignore":
        return None
    if any(each.info.mode != "after" for each in decorators.model_validators.values()):
        return None  # a validator that sees the dict first may read what no field has
    return [key for name, field in model.model_fields.items() for key in _keys_of(model.model_config, name, field)]


def _keys_of(config: Mapping[str, object], name: str, field: Any) -> list[str]:
    alias = field.validation_alias or field.alias
    if alias is None:
        return [name]
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    choices = getattr(alias, "choices", [alias])
    read = [each if isinstance(each, str) else str(each.path[0]) for each in choices]
    return [*read, name] if by_name else read


def check_context_model(model: type | None) -> None:
    """Refuse a `context_model` whose fields cannot be seen."""
    if model is None:
        return
    if isinstance(model, type) and has_fields(model):
        from .reducing import reducers_of  # only for those who have a model

        reducers_of(model)
        return
    raise DeclarationError(f"context_model must be a pydantic model, an attrs class or a dataclass, not {model!r}")


def isolated(context: object) -> object:
    """A deep copy for one attempt or branch."""
    if type(context) is Context and not vars(context):
        return Context.__new__(Context)  # every run begins with a copy, most often of nothing
    copied = tried(copy.deepcopy, context)
    if isinstance(copied, Error):
        raise ContextError(
            f"the context cannot be copied for the next step: key {_culprit(context)!r} holds a value that refuses "
            f"({said_by(copied.error)}); keep such things in resources"
        ) from copied.error
    return copied.value


def own(data: object) -> object:
    """The data for one of several who read it, so that nobody sees what another made of it.

    What cannot be copied, such as a lock or a socket, is there to be shared: everybody gets it as it is.
    """
    if type(data) in _IMMUTABLE:
        return data
    copied = tried(copy.deepcopy, data)
    return data if isinstance(copied, Error) else copied.value


def _culprit(context: object) -> str:
    values = values_of(context).items()
    return next((key for key, value in values if isinstance(tried(copy.deepcopy, value), Error)), "?")


def has_fields(cls: type) -> bool:
    """Whether the values of such an object can be seen by key."""
    return issubclass(cls, Context) or hasattr(cls, "model_fields") or attrs.has(cls) or dataclasses.is_dataclass(cls)


def values_of(context: object) -> dict[str, object]:
    """The context's values by key; `ContextError` if they cannot be read."""
    values = tried(_values_of, context)  # an attribute may be a property that does anything
    if isinstance(values, Error):
        raise ContextError(
            f"what a {type(context).__name__} holds cannot be read ({said_by(values.error)})"
        ) from values.error
    return values.value


def _values_of(context: Any) -> dict[str, object]:
    if isinstance(context, Mapping):
        return dict(context)
    if isinstance(context, Context):
        return dict(vars(context))
    cls = type(context)
    if hasattr(cls, "model_fields"):
        names = [*cls.model_fields, *(context.__pydantic_extra__ or {})]
    else:
        names = [field.name for field in (attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(context))]
    return {name: getattr(context, name) for name in names if hasattr(context, name)}
