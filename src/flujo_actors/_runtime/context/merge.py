"""Merge of context changes from attempts and branches.

Rules:

1. A copy that succeeded replaces the original (one step at a time), or is merged into it key by key (branches).
2. A key is changed when its value in the copy differs from the value in the original.
3. A key that two branches changed is a conflict, also if they agree: the result of `n += 1` in two branches cannot be
   seen from the values. A reducer of the step or of the field combines them, or the strategy selects one.
4. Two branches that changed different keys of one dict did not change the same thing.
5. A value that does not fit the model is an error that names the key.

Sections:

- Reducers of context model fields: `total: Annotated[int, Add] = 0`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import attrs
from outcome import Error

from ..._core.error_info import message_of, text_from, tried
from ..._core.reducers import Add, Append, Merge, Reducer, is_reducer
from ..._dsl.kinds import Merging
from ...errors import ContextError, DeclarationError, MergeConflict
from .copies import has_fields, own, values_of
from .freeform import Context

# --- Reducers of context model fields -----------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def reducers_of(model: type) -> Mapping[str, Reducer]:
    """Return a model's reducers by field; raise `DeclarationError` for others."""
    return {
        name: each
        for name, metadata in _metadata_of(model)
        for each in metadata
        if _is_meant_as_reducer(each) and _checked(model, name, each)
    }


def _metadata_of(model: type) -> Iterator[tuple[str, Iterable[Any]]]:
    fields: Mapping[str, Any] | None = getattr(model, "model_fields", None)
    if fields is not None:  # pydantic resolves annotations, also of a class inside a function
        yield from ((name, field.metadata) for name, field in fields.items())
        return
    for name, hint in _hints_of(model).items():
        yield name, getattr(hint, "__metadata__", ())


def _hints_of(model: type) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(model, include_extras=True)
    except NameError as error:
        hints = " ".join(str(hint) for each in model.__mro__ for hint in inspect.get_annotations(each).values())
        if "Annotated" not in hints:
            return {}
        raise DeclarationError(
            f"the annotations of context_model {model.__name__} cannot be read ({error}), so its reducers are not "
            "known: define the class and its types at the top of a module"
        ) from error


def _is_meant_as_reducer(value: object) -> bool:
    """Return whether metadata is a function, so not silently ignored."""
    return inspect.isroutine(value) or (is_reducer(value) and not isinstance(value, type))


def _checked(model: type, name: str, value: object) -> bool:
    if not is_reducer(value):
        raise DeclarationError(
            f"field {name!r} of context_model {model.__name__} is annotated with the function "
            f"{getattr(value, '__name__', value)!r}, which does not take (base, one, other): take Add, Append, Merge "
            "or a function that does"
        )
    return True


# --- Merge of context changes from attempts and branches ----------------------------------------------------------


K = TypeVar("K")

Changes: TypeAlias = dict[str, object]
"""New values by context key."""

_Write: TypeAlias = tuple[str, Any]
"""Branch, and its value of a key."""

_MISSING = object()

_LOOKING_ONLY = (Add, Append, Merge)
"""Reducers that do not mutate their arguments."""


def check_context_model(model: type) -> None:
    """Refuse a `context_model` whose fields cannot be inspected."""
    if isinstance(model, type) and has_fields(model):
        reducers_of(model)
        return
    raise DeclarationError(f"context_model must be a pydantic model, an attrs class or a dataclass, not {model!r}")


def updated(context: object, output: object, *, step_name: str) -> object:
    """Return the context with a step's output merged in (`updates_context=True`)."""
    if not isinstance(output, Mapping) and not has_fields(type(output)):
        raise ContextError(
            f"step {step_name!r} updates the context, so its output must be a dict or a model, "
            f"not {type(output).__name__}: {output!r:.100}"
        )
    return _replaced(context, values_of(output), writer=f"the output of step {step_name!r}")


def merged(base: object, branches: Iterable[tuple[str, object]], *, strategy: Merging, where: str) -> object:
    """Return the context after parallel branches, each given with its copy."""
    if strategy == "no_merge":
        return base
    before = values_of(base)
    writes: dict[str, list[_Write]] = {}
    for name, branch in branches:
        for key, value in () if branch is base else _changed(before, values_of(branch)):
            writes.setdefault(key, []).append((name, value))
    conflicts = _Conflicts(type(base), strategy, where)
    after = {
        key: each[0][1] if len(each) == 1 else conflicts.resolved(key, before.get(key), each)
        for key, each in writes.items()
    }
    return _replaced(base, after, writer=f"the branches of {where!r}") if after else base


def carried(before: object, after: object, onto: object) -> object:
    """Return a context with a handler's changes between two others."""
    changes = dict(_changed(values_of(before), values_of(after)))
    return _replaced(onto, changes, writer="a handler") if changes else onto


@attrs.frozen
class _Conflicts:
    """One value for a key that several branches changed."""

    model: type
    strategy: Merging
    where: str

    def resolved(self, key: str, before: Any, writes: list[_Write]) -> object:
        """Return the value by strategy or reducer; raise `MergeConflict` if neither applies."""
        if self.strategy == "overwrite":
            return writes[-1][1]
        if self.strategy == "keep_first":
            return writes[0][1]
        reducer = self._reducer(key)
        if reducer is not None:
            return self._reduced(reducer, key, before, writes)
        if self.strategy == "error_on_conflict" or not _all_dicts(before, writes):
            raise self._conflict(key, writes[0], writes[1])
        return self._filled_together(key, before, writes)

    def _reducer(self, key: str) -> Reducer | None:
        declared = self.strategy if isinstance(self.strategy, Mapping) else {}
        return declared.get(key) or reducers_of(self.model).get(key)

    def _reduced(self, reducer: Reducer, key: str, before: object, writes: list[_Write]) -> object:
        value = writes[0][1]
        for name, each in writes[1:]:
            if value is _MISSING or each is _MISSING:  # what one removed cannot be combined with what another made
                raise self._conflict(key, writes[0], (name, each))
            value = self._combined(reducer, key, before, value, each)
        return value

    def _combined(self, reducer: Reducer, key: str, before: object, one: object, other: object) -> object:
        combined = tried(reducer, before if reducer in _LOOKING_ONLY else own(before), one, other)
        if isinstance(combined, Error):
            raise ContextError(
                f"the reducer {reducer!r} cannot combine the values of the branches of {self.where!r} for context key "
                f"{key!r}: {text_from(combined.error)}"
            ) from combined.error
        return combined.value

    def _filled_together(self, key: str, before: dict[object, object], writes: list[_Write]) -> object:
        """Return the dict with every branch's part in it (rule 4)."""
        parts: dict[object, _Write] = {}
        for name, each in writes:
            for part, new in _changed(before, each):
                if part in parts:
                    raise self._conflict(key, parts[part], (name, new))
                parts[part] = (name, new)
        return _without_missing({**before, **{part: new for part, (_, new) in parts.items()}})

    def _conflict(self, key: str, one: _Write, other: _Write) -> MergeConflict:
        return MergeConflict(key, one[0], other[0], self.where)


def _all_dicts(before: object, writes: list[_Write]) -> bool:
    return isinstance(before, dict) and all(isinstance(value, dict) for _, value in writes)


def _changed(before: Mapping[K, object], after: Mapping[K, object]) -> Iterator[tuple[K, object]]:
    """Yield every changed key and value; `_MISSING` for removed ones."""
    for key, value in after.items():
        if not _same(before.get(key, _MISSING), value):
            yield key, value
    for key in before.keys() - after.keys():
        yield key, _MISSING


def _without_missing(values: Mapping[K, object]) -> dict[K, object]:
    return {key: value for key, value in values.items() if value is not _MISSING}


def _same(one: object, other: object) -> bool:
    """Return whether a copy still equals the original."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    same = tried(_equal, one, other)  # `==` may do anything; what cannot be compared counts as different
    return not isinstance(same, Error) and same.value


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


def _kind(cls: type) -> Callable[..., object] | None:
    if issubclass(cls, Context):
        return _replace_freeform
    if hasattr(cls, "model_fields"):
        return _replace_pydantic
    if attrs.has(cls):
        return _replace_attrs
    return _replace_dataclass if dataclasses.is_dataclass(cls) else None


def _replaced(context: object, changes: Changes, *, writer: str) -> object:
    replace = _kind(type(context))
    if replace is None:
        raise ContextError(f"a context of type {type(context).__name__} cannot be updated")
    if not isinstance(context, Context):
        _refuse_unknown(context, changes, writer)
    replaced = tried(replace, context, changes)  # a model's validators may raise anything
    if isinstance(replaced, Error):
        why = message_of(replaced.error)
        raise ContextError(f"{writer} cannot be merged into {type(context).__name__}: {why}") from replaced.error
    return replaced.value


def _refuse_unknown(context: Any, changes: Changes, writer: str) -> None:
    """Refuse unknown fields and missing values of a model."""
    known = values_of(context)
    extra = getattr(type(context), "model_config", {}).get("extra") == "allow"
    for key, value in changes.items():
        if value is _MISSING and not (extra and key in (context.__pydantic_extra__ or {})):
            raise ContextError(f"{writer} removed the key {key!r}, which {type(context).__name__} must have")
        if key not in known and not extra:
            has = ", ".join(known)
            raise ContextError(f"{writer} has the key {key!r}, which {type(context).__name__} does not have ({has})")


def _replace_freeform(context: Context, changes: Changes) -> Context:
    return type(context)(**_without_missing({**vars(context), **changes}))


def _replace_pydantic(context: Any, changes: Changes) -> object:
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


def _replace_attrs(context: Any, changes: Changes) -> object:
    fields = attrs.fields(type(context))
    given = {field.alias or field.name: changes[field.name] for field in fields if field.init and field.name in changes}
    own = [field.name for field in fields if not field.init]
    return _with_own(own, context, changes, attrs.evolve(context, **given), attrs.evolve)


def _replace_dataclass(context: Any, changes: Changes) -> object:
    own = [field.name for field in dataclasses.fields(context) if not field.init]
    given = {key: value for key, value in changes.items() if key not in own}
    return _with_own(own, context, changes, dataclasses.replace(context, **given), dataclasses.replace)


def _with_own(
    own: list[str], context: object, changes: Changes, fresh: object, remade: Callable[..., object]
) -> object:
    """Return non-constructor fields: kept if set, else derived again."""
    kept = dict(_changed(values_of(remade(context)), values_of(context))) if own else {}
    for key, value in {**kept, **changes}.items():
        if key in own:
            object.__setattr__(fresh, key, value)
    return fresh
