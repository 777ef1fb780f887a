"""Values of a context by their path: `summary`, `ticket.customer.name`. Attributes and keys are read alike."""

from __future__ import annotations

from collections.abc import Mapping

from .._core.near_names import nearest
from ..errors import ContextError
from .isolation import has_fields, isolated, values_of


def read_path(context: object, where: str) -> object:
    """The value at a path; `None` below a value that is `None`, and `ContextError` if there is no such place."""
    value = context
    for place, name in enumerate(where.split(".")):
        if value is None and place:
            return None
        value = _part(value, name, where)
    return value


def _part(value: object, name: str, where: str) -> object:
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        raise _missing(name, where, [str(key) for key in value])
    try:
        return getattr(value, name)
    except AttributeError:
        known = list(values_of(value)) if has_fields(type(value)) else []
        raise _missing(name, where, known) from None


def _missing(name: str, where: str, known: list[str]) -> ContextError:
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"there is {', '.join(known) or 'nothing'}"
    at = "" if name == where else f" (in {where!r})"
    return ContextError(f"the context has no {name!r}{at}; {hint}")


def has_path(context: object, where: str) -> bool:
    """Whether there is a value at a path."""
    try:
        read_path(context, where)
    except ContextError:
        return False
    return True


def with_value(context: object, where: str, value: object, *, step_name: str) -> object:
    """The context with another value at a path; the original stays as it is."""
    from .merging import updated  # only for those who change the context

    first, _, rest = where.partition(".")
    if not rest:
        return updated(context, {first: value}, step_name=step_name)
    copied = isolated(context)
    around, _, last = where.rpartition(".")
    holder = read_path(copied, around)
    if isinstance(holder, dict):
        holder[last] = value
    else:
        setattr(holder, last, value)
    return copied
