"""A stored run as it stands, or stood, for whoever asks: read from its records, and from those of its remote steps."""

from __future__ import annotations

from .._core.outcomes import RunId
from .._core.records import Record
from .._core.run_state import RunState, project
from .._type_registry import read_by
from ..stores._port import Store
from .child_results import read_whole, whole


@read_by("anybody")
def projected(store: Store, run_id: RunId, *, up_to: int | None = None) -> RunState:
    """How a run stands, or stood when that record was written; blocks."""
    records = read_whole(store, run_id)
    return project(run_id, (record for record in records if up_to is None or record.seq <= up_to))


def whole_record(store: Store, run_id: RunId, seq: int) -> Record:
    """One record with its result; blocks."""
    [record] = whole(store, [store.record(run_id, seq)])
    return record
