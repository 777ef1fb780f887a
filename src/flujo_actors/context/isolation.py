"""Copies of a context for attempts and branches, and the way back.

Rules:

1. Whoever runs user code gets a deep copy; the original is never changed in place.
2. A copy that succeeded replaces the original (one step at a time), or is merged into it key by key (branches).
3. A key is changed when its value in the copy differs from the value in the original.
4. What cannot be copied, or does not fit the model, is an error that names the key.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from ..dsl.kinds import Merge
from ..errors import ContextError, DeclarationError, MergeConflict
from .freeform import Context

Changes: TypeAlias = dict[str, Any]
"""New values by context key."""

_MISSING = object()


def make_context(model: type | None, data: Mapping[str, Any] | None) -> Any:
    """The context a run begins with."""
    values = dict(data or {})
    if model is None:
        return Context(**values)
    try:
        return model(**values)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"initial_context_data does not fit context_model {model.__name__}: {error}") from error


def check_context_model(model: type | None) -> None:
    """Refuse a `context_model` whose fields cannot be seen."""
    if model is None or (isinstance(model, type) and _kind(model) is not None):
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
            f"({type(error).__name__}: {error}); keep such things in resources"
        ) from error


def _culprit(context: Any) -> str:
    for key, value in values_of(context).items():
        try:
            copy.deepcopy(value)
        except Exception:  # the same user code as above, this time to find it
            return key
    return "?"


def values_of(context: Any) -> dict[str, Any]:
    """The context's values by key."""
    if isinstance(context, Mapping):
        return dict(context)
    if isinstance(context, Context):
        return dict(vars(context))
    cls = type(context)
    if hasattr(cls, "model_fields"):
        names = [*cls.model_fields, *(context.__pydantic_extra__ or {})]
        return {name: getattr(context, name) for name in names}
    if attrs.has(cls):
        return {field.name: getattr(context, field.name) for field in attrs.fields(cls)}
    return {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}


def updated(context: Any, output: Any, *, step_name: str) -> Any:
    """The context with a step's output merged in (`updates_context=True`)."""
    if not isinstance(output, Mapping) and _kind(type(output)) is None:
        raise ContextError(
            f"step {step_name!r} updates the context, so its output must be a dict or a model, "
            f"not {type(output).__name__}: {output!r:.100}"
        )
    return _replaced(context, values_of(output), who=f"the output of step {step_name!r}")


def merged(base: Any, branches: Iterable[tuple[str, Any]], *, strategy: Merge, where: str) -> Any:
    """The context after parallel branches, each given with the copy it worked on."""
    if strategy == "no_merge":
        return base
    before = values_of(base)
    after: Changes = {}
    writers: dict[str, str] = {}
    for name, branch in branches:
        for key, value in _changed(before, values_of(branch)).items():
            if key not in after:
                after[key], writers[key] = value, name
            elif strategy == "overwrite":
                after[key] = value
            elif strategy != "keep_first":
                clash = MergeConflict(key, writers[key], name, where)
                after[key] = _agreed(before.get(key), after[key], value, strategy, clash)
    return _replaced(base, after, who=f"the branches of {where!r}") if after else base


def _agreed(before: Any, first: Any, second: Any, strategy: Merge, clash: MergeConflict) -> Any:
    """One value for two changes of a key, where both can be kept."""
    if strategy == "error_on_conflict":
        raise clash
    if _same(first, second):
        return first
    if isinstance(before, dict) and isinstance(first, dict) and isinstance(second, dict):
        mine, theirs = _changed(before, first), _changed(before, second)
        if all(_same(mine[key], theirs[key]) for key in mine.keys() & theirs.keys()):
            return {**before, **mine, **theirs}
    raise clash


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    return {key: value for key, value in after.items() if not _same(before.get(key, _MISSING), value)}


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # user code: `==` of array types raises; then they count as different
        return False


# --- one way to set values for each kind of model ------------------------------------------------------------


def _kind(cls: type) -> Callable[[Any, Changes], Any] | None:
    if issubclass(cls, Context):
        return _replace_freeform
    if hasattr(cls, "model_fields"):
        return _replace_pydantic
    if attrs.has(cls):
        return _replace_attrs
    return _replace_dataclass if dataclasses.is_dataclass(cls) else None


def _replaced(context: Any, changes: Changes, *, who: str) -> Any:
    replace = _kind(type(context))
    if replace is None:
        raise ContextError(f"a context of type {type(context).__name__} cannot be updated")
    if not isinstance(context, Context):
        _refuse_unknown(context, changes, who)
    try:
        return replace(context, changes)
    except (TypeError, ValueError) as error:
        raise ContextError(f"{who} cannot be merged into {type(context).__name__}: {error}") from error


def _refuse_unknown(context: Any, changes: Changes, who: str) -> None:
    extra = getattr(type(context), "model_config", {}).get("extra") == "allow"
    unknown = [] if extra else [key for key in changes if key not in values_of(context)]
    if unknown:
        fields = ", ".join(values_of(context))
        raise ContextError(f"{who} has the key {unknown[0]!r}, which {type(context).__name__} does not have ({fields})")


def _replace_freeform(context: Context, changes: Changes) -> Context:
    return type(context)(**{**vars(context), **changes})


def _replace_pydantic(context: Any, changes: Changes) -> Any:
    if type(context).model_config.get("frozen"):
        return type(context).model_validate({**values_of(context), **changes})
    fresh = context.model_copy()
    for key, value in changes.items():
        type(context).__pydantic_validator__.validate_assignment(fresh, key, value)
    return fresh


def _replace_attrs(context: Any, changes: Changes) -> Any:
    aliases = {field.name: field.alias or field.name for field in attrs.fields(type(context)) if field.init}
    return attrs.evolve(context, **{aliases[key]: value for key, value in changes.items()})


def _replace_dataclass(context: Any, changes: Changes) -> Any:
    return dataclasses.replace(context, **changes)
