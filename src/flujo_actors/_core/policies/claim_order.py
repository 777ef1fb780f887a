"""Order of claims: priority, then round robin over keys, then time.

Rules:

1. Runs of the highest priority are claimed first; a high priority starves a low one.
2. Among them, one run of each key is claimed in turn. The turn continues behind the last claimed key.
3. A key with as many unexpired leases as `per_key` is passed over.
4. Runs of one key are claimed in the order in which they became ready, then in that of their admission.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard, TypeVar

from ...errors import DeclarationError
from ..validators import brief_repr, is_count

T = TypeVar("T")

PRIORITIES = range(-100, 101)
"""Priorities of runs."""

KEY_CHARACTERS = 200
"""Maximum length of a key, which is part of an index."""

_PAGE = 256
"""Number of rows that one poll of a queue reads, about."""


def checked_key(key: str | None) -> str:
    """Return the key of a run; empty without one."""
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS:
        raise DeclarationError(f"key must be a text of 1 to {KEY_CHARACTERS} characters, not {key!r:.120}")
    return key


def is_priority(value: object) -> TypeGuard[int]:
    """Return whether the value is a priority."""
    return is_count(value, at_least=PRIORITIES.start) and value in PRIORITIES


def checked_priority(priority: int) -> int:
    """Return the priority of a run."""
    if not is_priority(priority):
        raise DeclarationError(f"priority must be a whole number from -100 to 100, not {brief_repr(priority)}")
    return priority


def checked_per_key(per_key: int | None) -> int | None:
    """Return the limit of a worker per key."""
    if per_key is not None and not is_count(per_key):
        raise DeclarationError(f"per_key must be a whole number of at least 1, not {brief_repr(per_key)}")
    return per_key


def rotated(keys: Iterable[str], after: str | None) -> list[str]:
    """Return the keys in the order of their turns."""
    ordered = sorted(keys)
    return [
        *(key for key in ordered if after is None or key > after),
        *(key for key in ordered if after is not None and key <= after),
    ]


def rows_per_key(limit: int, keys: int) -> int:
    """Return the number of runs to read of each key."""
    return max(-(-limit // keys), min(limit, _PAGE // keys))


def in_turns(rows: Mapping[str, Sequence[T]], limit: int, rooms: Mapping[str, int] | None = None) -> list[T]:
    """Return rows of all keys in turn, within their free leases."""
    queues = [list(found) if rooms is None else list(found)[: max(0, rooms[key])] for key, found in rows.items()]
    rounds = itertools.zip_longest(*queues, fillvalue=None)
    return [row for turn in rounds for row in turn if row is not None][:limit]
