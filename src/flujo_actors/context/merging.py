"""What attempts and branches have changed in their copies of a context, brought back.

Rules:

1. A copy that succeeded replaces the original (one step at a time), or is merged into it key by key (branches).
2. A key is changed when its value in the copy differs from the value in the original.
3. What does not fit the model is an error that names the key.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from ..dsl.kinds import Merge
from ..errors import ContextError, MergeConflict
from .freeform import Context
from .isolation import has_fields, values_of

Changes: TypeAlias = dict[str, Any]
"""New values by context key."""

_Write: TypeAlias = tuple[str, Any]
"""Which branch, and the value it gave a key."""

_MISSING = object()


def updated(context: Any, output: Any, *, step_name: str) -> Any:
    """The context with a step's output merged in (`updates_context=True`)."""
    if not isinstance(output, Mapping) and not has_fields(type(output)):
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
    writes: dict[str, list[_Write]] = {}
    for name, branch in branches:
        for key, value in () if branch is base else _changed(before, values_of(branch)):
            writes.setdefault(key, []).append((name, value))
    after = {key: _resolved(key, before.get(key), each, strategy, where) for key, each in writes.items()}
    return _replaced(base, after, who=f"the branches of {where!r}") if after else base


def _resolved(key: str, before: Any, writes: list[_Write], strategy: Merge, where: str) -> Any:
    """One value for all changes of a key, as the strategy wants it."""
    (first, value), rest = writes[0], writes[1:]
    match strategy:
        case "overwrite":
            return writes[-1][1]
        case "error_on_conflict" if rest:
            raise MergeConflict(key, first, rest[0][0], where)
        case "context_update":
            return _agreed(key, before, writes, where)
        case _:
            return value


def _agreed(key: str, before: Any, writes: list[_Write], where: str) -> Any:
    """The value that all writers agree on; changes of different keys of one dict agree."""
    first, value = writes[0]
    other = next((name for name, each in writes if not _same(value, each)), None)
    if other is None:
        return value
    if not all(isinstance(each, dict) for each in (before, *(each for _, each in writes))):
        raise MergeConflict(key, first, other, where)
    inner: dict[Any, _Write] = {}
    for name, each in writes:
        for part, new in _changed(before, each):
            writer, earlier = inner.setdefault(part, (name, new))
            if not _same(earlier, new):
                raise MergeConflict(key, writer, name, where)
    return _without_missing({**before, **{part: new for part, (_, new) in inner.items()}})


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Every key with a new value; `_MISSING` is the new value of a key that was removed."""
    for key, value in after.items():
        if not _same(before.get(key, _MISSING), value):
            yield key, value
    for key in before.keys() - after.keys():
        yield key, _MISSING


def _without_missing(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if value is not _MISSING}


def _same(one: Any, other: Any) -> bool:
    """Whether a copy still says what the original says."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and _equal(one, other)
    except Exception:  # user code: `==` may do anything; what cannot be compared counts as different
        return False


def _equal(one: Any, other: Any) -> bool:
    verdict, cls = one == other, typing.cast("Any", type(one))
    if cls.__eq__ is object.__eq__ or not isinstance(verdict, bool):
        # No `==` of its own, or one that answers element by element: the same if it would be copied the same.
        return _same(one.__reduce_ex__(4), other.__reduce_ex__(4))
    if verdict or not isinstance(one, list | tuple | dict) or len(one) != len(other):
        return verdict
    if isinstance(one, dict):
        return all(_same(value, other.get(key, _MISSING)) for key, value in one.items())
    return all(map(_same, one, other))


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
    """Only what a model has can be set, and it can be set only to something."""
    known = values_of(context)
    extra = getattr(type(context), "model_config", {}).get("extra") == "allow"
    for key, value in changes.items():
        if value is _MISSING and not (extra and key in (context.__pydantic_extra__ or {})):
            raise ContextError(f"{who} removed the key {key!r}, which {type(context).__name__} must have")
        if key not in known and not extra:
            has = ", ".join(known)
            raise ContextError(f"{who} has the key {key!r}, which {type(context).__name__} does not have ({has})")


def _replace_freeform(context: Context, changes: Changes) -> Context:
    return type(context)(**_without_missing({**vars(context), **changes}))


def _replace_pydantic(context: Any, changes: Changes) -> Any:
    cls, given = type(context), _without_missing(changes)
    if cls.model_config.get("frozen"):
        checked = cls.model_validate({**values_of(context), **given}, by_alias=False, by_name=True)
        return context.model_copy(update={key: getattr(checked, key) for key in given})
    # All values are set before the first is validated, so that a rule over two of them sees both.
    fresh = context.model_copy(update=given)
    for key in changes.keys() - given.keys():
        del fresh.__pydantic_extra__[key]
    for key, value in given.items():
        cls.__pydantic_validator__.validate_assignment(fresh, key, value)
    return fresh


def _replace_attrs(context: Any, changes: Changes) -> Any:
    fields = attrs.fields(type(context))
    given = {field.alias or field.name: changes[field.name] for field in fields if field.init and field.name in changes}
    own = [field.name for field in fields if not field.init]
    return _with_own(own, context, changes, attrs.evolve(context, **given), attrs.evolve)


def _replace_dataclass(context: Any, changes: Changes) -> Any:
    own = [field.name for field in dataclasses.fields(context) if not field.init]
    given = {key: value for key, value in changes.items() if key not in own}
    return _with_own(own, context, changes, dataclasses.replace(context, **given), dataclasses.replace)


def _with_own(own: list[str], context: Any, changes: Changes, fresh: Any, remade: Callable[[Any], Any]) -> Any:
    """Fields that the constructor does not take: kept if somebody set them, made anew if the class derives them."""
    kept = dict(_changed(values_of(remade(context)), values_of(context))) if own else {}
    for key, value in {**kept, **changes}.items():
        if key in own:
            object.__setattr__(fresh, key, value)
    return fresh
