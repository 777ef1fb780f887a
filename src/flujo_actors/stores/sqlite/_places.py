"""Where the runs that a store writes to stand in its file, as of its own last commit.

A record's key is its run's and its number, and to find the last number is dear: the statement reads the table that it
writes to, so that SQLite puts its rows aside first. Whoever wrote the last record knows the next key. Rules:

1. What is known here is never believed alone: every write still has the lease, owner and epoch, in its predicate, and a
   key that somebody else has used meanwhile is not used again. Then the statement writes nothing, and the store looks.
2. It is known for one lease, until that is given up or lost. Whatever a transaction undoes makes all of it unknown.
3. Used in the transactions of the writing connection only, one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._core.outcomes import RunId
from ..._core.records import Lease

MOST = 100_000
"""How many runs are known at a time: those of a process that leaves its leases behind are forgotten in the end."""


class Place(NamedTuple):
    """Where a run stands."""

    lease: Lease
    under: tuple[int, str, str, int]
    """Its key, and the lease, as they stand in predicates."""
    last: int
    """The key of its last record."""
    created_at: float


class Places:
    """What is known of the runs that a store writes to; see the module's rules."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[RunId, Place] = {}

    def of(self, lease: Lease) -> Place | None:
        """Where the run stands, if this lease was the last to write to it."""
        place = self._known.get(lease.run_id)
        return place if place is not None and place.lease == lease else None

    def know(self, place: Place) -> None:
        """Something was written there."""
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[place.lease.run_id] = place

    def forget(self, lease: Lease) -> None:
        """The lease was given up, or lost."""
        self._known.pop(lease.run_id, None)

    def __enter__(self) -> None:
        """Around a transaction."""

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is not None:
            self._known.clear()
