"""How often a run was begun in vain: a step that kills its worker must not kill the fleet (a poison message).

Rules:

1. A delivery counts if the worker before it died: its lease ran out, it did not give it up.
2. Whatever the run has committed since is progress, and the count begins anew. That it was resumed, that steps began,
   and that units were intended is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from .records import Record, RecordKind

_NO_PROGRESS: frozenset[RecordKind] = frozenset({"resumed", "started", "intent"})

AFTER_DEATH = "after_death"
"""Stands in the body of a `resumed` record whose run was taken over from a dead worker."""


def deaths_without_progress(records: Iterable[Record]) -> int:
    """How many workers in a row died over the run since it last committed something."""
    deaths = 0
    for record in records:
        if record.kind not in _NO_PROGRESS:
            deaths = 0
        elif record.kind == "resumed" and json.loads(record.body).get(AFTER_DEATH):
            deaths += 1
    return deaths


def poisonous(deaths: int, *, max_deliveries: int) -> str | None:
    """Why the run is not begun again, if so many workers died over it; a delivery is a death or the first one."""
    if deaths < max_deliveries:
        return None
    return (
        f"given up after {deaths} deliveries without progress: every worker that began it died over it (killed, out of "
        "memory, or a crash of the interpreter). See the logs of these workers; the setting fleet.max_deliveries says "
        "how many are tried"
    )
