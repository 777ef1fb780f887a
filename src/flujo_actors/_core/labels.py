"""Labels of runs: names and values, checked before a run exists.

Rules:

1. A name is an identifier of at most 63 characters; `flujo.` begins reserved names.
2. A value is a text of 1 to 256 characters. A run has at most 16 labels.
3. A filter matches runs that have all its labels; the value `None` matches any value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import DeclarationError

MOST_LABELS = 16
LONGEST_VALUE = 256

RESERVED = "flujo."
"""Beginning of reserved names."""

PARENT = "flujo.parent"
"""Reserved label: id of the evaluation of a case run."""
CHARGED = "flujo.charged"
"""Reserved label: the run draws on the budget of its parent."""
TRACED_LABELS = "flujo_actors.labels"
"""Key of a remote step's labels in a trace context."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


class Labels(dict[str, str]):
    """Read-only labels of a run; a dict, so that it is JSON."""

    __slots__ = ()

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise TypeError("the labels of a run are read-only here; RunClient.set_labels(run_id, {…}) changes them")

    if not TYPE_CHECKING:  # type checkers see the signatures of a dict
        __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Labels, (dict(self),)


NO_LABELS = Labels()

LabelFilter = tuple[tuple[str, str | None], ...]
"""Pairs of name and value; `None` matches any value."""


def checked_labels(given: Mapping[str, str] | None, defaults: Labels = NO_LABELS) -> Labels:
    """Return a run's labels, its own over the defaults; `DeclarationError` if invalid."""
    if not given:
        _refuse_other_types(given)
        return defaults
    found = Labels({**defaults, **_checked(given)})
    if len(found) > MOST_LABELS:
        raise DeclarationError(f"labels: {len(found)} given, at most {MOST_LABELS}")
    return found


def own_labels(labels: Labels) -> Labels:
    """Return the labels that users gave, without reserved ones."""
    if PARENT not in labels:
        return labels
    return Labels({name: value for name, value in labels.items() if not name.startswith(RESERVED)})


def case_labels(labels: Labels, parent: str, *, charged: bool) -> Labels:
    """Return the labels of an evaluation's runs."""
    return Labels({**labels, PARENT: parent, **({CHARGED: "yes"} if charged else {})})


def checked_filter(given: Mapping[str, str | None] | None) -> LabelFilter:
    """Return a filter by labels; `DeclarationError` if it can match no run."""
    if not given:
        _refuse_other_types(given)
        return ()
    _refuse_other_types(given)
    _check_names(given)
    texts = _checked({name: value for name, value in given.items() if value is not None})
    return tuple((name, texts.get(name)) for name in given)


def checked_names(names: Iterable[str], *, subject: str) -> tuple[str, ...]:
    """Return names of labels; `DeclarationError` if they are invalid."""
    if isinstance(names, str):
        raise DeclarationError(f"{subject} must be a list of names, not the text {names!r}: write ({names!r},)")
    listed = tuple(names)
    _check_names(listed)
    return listed


def has_labels(labels: Mapping[str, str], wanted: LabelFilter) -> bool:
    """Return whether a filter matches these labels (rule 3)."""
    return all(name in labels and value in (None, labels[name]) for name, value in wanted)


def _refuse_other_types(given: object) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"labels must be a dict of texts, not {given!r:.100}")


def _checked(given: Mapping[str, str]) -> Mapping[str, str]:
    _refuse_other_types(given)
    if len(given) > MOST_LABELS:
        raise DeclarationError(f"labels: {len(given)} given, at most {MOST_LABELS}")
    _check_names(given)
    return {name: _checked_value(name, value) for name, value in given.items()}


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise DeclarationError(
                f"labels: {name!r:.100} is no name: it begins with a letter or _ and has at most 63 letters, digits, "
                "_, . and -"
            )
        if name.startswith(RESERVED):
            raise DeclarationError(f"labels: {name!r} is reserved; choose a name that does not begin with {RESERVED!r}")


def _checked_value(name: str, value: object) -> str:
    if not isinstance(value, str):
        cure = f": write {str(value)!r}" if isinstance(value, int | float) else ""
        raise DeclarationError(f"labels: the value of {name!r} must be a text, not {value!r:.100}{cure}")
    if not 1 <= len(value) <= LONGEST_VALUE:
        raise DeclarationError(
            f"labels: the value of {name!r} has {len(value)} characters; a value has 1 to {LONGEST_VALUE}"
        )
    return str.__str__(value)  # a member of an enum becomes its text
