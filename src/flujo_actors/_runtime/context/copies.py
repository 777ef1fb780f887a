"""Context isolation: user code gets a deep copy.

A context that cannot be copied is an error that names the key. The way back is in `merge`. Data that is read again,
by another attempt, a fallback or a sibling branch, is copied for each of them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import attrs
from outcome import Error

from ..._core.error_info import text_from, tried
from ..._core.validators import nearest
from ...errors import ContextError, DeclarationError
from .freeform import Context

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


class FirstContext:
    """Initial context of runs; a run may set its own fields."""

    __slots__ = ("_data", "_model", "_usual", "_wanting")

    def __init__(self, model: type | None, data: Mapping[str, object] | None) -> None:
        self._model, self._data = model or Context, data
        self._wanting: DeclarationError | None = None
        self._usual: object
        try:
            self._usual = make_context(self._model, data, subject="initial_context_data")
        except IncompleteContext as error:  # the rest may come with the runs
            self._usual, self._wanting = None, error

    @property
    def model(self) -> type:
        """Return the class of the context."""
        return self._model

    def of_run(self, own: Mapping[str, object] | None) -> object:
        """Return a run's context with its own fields, or raise `DeclarationError`."""
        if own is None:
            if self._wanting is not None:
                raise self._wanting
            return self._usual
        if not isinstance(own, Mapping):
            raise DeclarationError(f"context must be a dict of fields of this run's context, not {own!r:.100}")
        return make_context(self._model, {**(self._data or {}), **own}, subject="context")


class IncompleteContext(DeclarationError):
    """A context model has fields that were given no value."""


def make_context(
    model: type | None, data: Mapping[str, object] | None, *, subject: str = "initial_context_data"
) -> object:
    """Return a run's initial context; `what` names its data's source."""
    model = model or Context
    if isinstance(data, Mapping):
        _refuse_ignored(model, data, subject)
    try:
        return model(**dict(data or {}))
    except (TypeError, ValueError) as error:
        kind = IncompleteContext if _misses_fields(error) else DeclarationError
        raise kind(f"{subject} does not fit context_model {model.__name__}: {error}") from error


def _misses_fields(error: Exception) -> bool:
    """Return whether fields without a value are all that is wrong."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        return all(each.get("type") == "missing" for each in errors())
    return "missing" in str(error) and "required" in str(error)


def _refuse_ignored(model: type, data: Mapping[str, object], subject: str) -> None:
    """Refuse keys that a pydantic model would silently ignore."""
    taken = _accepted_keys(model)
    ignored = None if taken is None else next((key for key in data if key not in taken), None)
    if taken is not None and ignored is not None:
        near = nearest(str(ignored), taken)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(taken)}"
        raise DeclarationError(
            f"{subject} does not fit context_model {model.__name__}: it has no field {ignored!r}; {hint}"
        )


def _accepted_keys(model: Any) -> list[str] | None:
    """Return the dict keys that a pydantic model reads, or None."""
    decorators = getattr(model, "__pydantic_decorators__", None)
    if decorators is None or model.model_config.get("extra", "ignore") != "ignore":
        return None
    if any(each.info.mode != "after" for each in decorators.model_validators.values()):
        return None  # a validator on the dict may read keys without a field
    return [key for name, field in model.model_fields.items() for key in _keys_of(model.model_config, name, field)]


def _keys_of(config: Mapping[str, object], name: str, field: Any) -> list[str]:
    alias = field.validation_alias or field.alias
    if alias is None:
        return [name]
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    choices = getattr(alias, "choices", [alias])
    read = [each if isinstance(each, str) else str(each.path[0]) for each in choices]
    return [*read, name] if by_name else read


def isolated(context: object) -> object:
    """Return a deep copy for one attempt or branch."""
    if type(context) is Context and not vars(context):
        return Context.__new__(Context)  # every run begins with a copy, most often of nothing
    copied = tried(copy.deepcopy, context, _flat_copies(context))
    if isinstance(copied, Error):
        raise ContextError(
            f"the context cannot be copied for the next step: key {_uncopyable_field(context)!r} holds a value that "
            f"refuses ({text_from(copied.error)}); keep such things in resources"
        ) from copied.error
    return copied.value


def _flat_copies(context: object) -> dict[int, object]:
    """Return copies of flat lists by identity, for `deepcopy`.

    A list of 1,000 texts takes 20 us instead of 180.
    """
    fields = (vars(context) if hasattr(context, "__dict__") else values_of(context)).values()
    return {id(each): each.copy() for each in fields if type(each) is list and _IMMUTABLE.issuperset(map(type, each))}


def own(data: object) -> object:
    """Return a copy of the data for one of several readers.

    Data that cannot be copied, such as a lock or a socket, is shared unchanged.
    """
    if type(data) in _IMMUTABLE:
        return data
    copied = tried(copy.deepcopy, data)
    return data if isinstance(copied, Error) else copied.value


def _uncopyable_field(context: object) -> str:
    values = values_of(context).items()
    return next((key for key, value in values if isinstance(tried(copy.deepcopy, value), Error)), "?")


def has_fields(cls: type) -> bool:
    """Return whether an object's values are visible by key."""
    return issubclass(cls, Context) or hasattr(cls, "model_fields") or attrs.has(cls) or dataclasses.is_dataclass(cls)


def values_of(context: object) -> dict[str, object]:
    """Return the context's values by key; `ContextError` if they cannot be read."""
    values = tried(_values_of, context)  # an attribute may be a property that does anything
    if isinstance(values, Error):
        raise ContextError(
            f"the fields of a {type(context).__name__} cannot be read ({text_from(values.error)})"
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
