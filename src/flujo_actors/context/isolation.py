"""Contexts and their copies: whoever runs user code gets a deep copy, and the original is never changed in place.

What cannot be copied is an error that names the key. The way back is in `merging`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import attrs

from ..core.error_info import message_of
from ..errors import ContextError, DeclarationError
from .freeform import Context


def make_context(model: type | None, data: Mapping[str, Any] | None) -> Any:
    """The context a run begins with."""
    model = model or Context
    try:
        return model(**dict(data or {}))
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"initial_context_data does not fit context_model {model.__name__}: {error}") from error


def check_context_model(model: type | None) -> None:
    """Refuse a `context_model` whose fields cannot be seen."""
    if model is None or (isinstance(model, type) and has_fields(model)):
        return
    raise DeclarationError(f"context_model must be a pydantic model, an attrs class or a dataclass, not {model!r}")


def isolated(context: Any) -> Any:
    """A deep copy for one attempt or branch."""
    try:
        return copy.deepcopy(context)
    except Exception as error:  # user code: any object may refuse to be copied in any way
        key = _culprit(context)
        raise ContextError(
            f"the context cannot be copied for the next step: key {key!r} holds a value that refuses "
            f"({type(error).__name__}: {message_of(error)}); keep such things in resources"
        ) from error


def _culprit(context: Any) -> str:
    for key, value in values_of(context).items():
        try:
            copy.deepcopy(value)
        except Exception:  # the same user code as above, this time to find it
            return key
    return "?"


def has_fields(cls: type) -> bool:
    """Whether the values of such an object can be seen by key."""
    return issubclass(cls, Context) or hasattr(cls, "model_fields") or attrs.has(cls) or dataclasses.is_dataclass(cls)


def values_of(context: Any) -> dict[str, Any]:
    """The context's values by key."""
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
