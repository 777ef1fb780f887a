"""Status, check and migration of a database, as commands show them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from .._core.outcomes import RunId
from .._core.records.records import RECORD_VERSION
from ..errors import CorruptRecord, StoreVersionError
from ._record_rows import RecordRow, as_page, corrupt, restored, shown


@attrs.frozen(kw_only=True)
class TableSize:
    """Rows and bytes of a table."""

    rows: int
    bytes: int


@attrs.frozen(kw_only=True)
class StoreStatus:
    """A database at a glance."""

    kind: Literal["sqlite", "postgres"]
    schema: Mapping[str, int]
    """Versions of the schema: `store`, 0 without tables, and `code`."""
    record_format: int
    """Format of the records that writers write."""
    tables: Mapping[str, TableSize]
    missing_indexes: Sequence[str] = ()
    invalid_indexes: Sequence[str] = ()
    workers: int = 0
    """Number of workers that reported within a minute."""
    pool_size: int | None = None
    """Maximum number of connections of one process, with Postgres."""
    oldest_open: str | None = None
    """Id of the oldest run that has not ended."""

    @property
    def migration_waits(self) -> bool:
        """Return whether the schema is older than the code."""
        return self.schema["store"] < self.schema["code"]


@attrs.frozen(kw_only=True)
class Migration:
    """Statements from the schema of a store to that of this version."""

    found: int
    needed: int
    statements: Sequence[str]


def record_findings(run_id: str, rows: Iterable[Sequence[Any]], last: int) -> Iterator[str]:
    """Yield a line for each defect among a run's records."""
    missing: int | None = None
    for row in rows:
        record = RecordRow(*row)
        if record.kind == "compacted":
            missing = None
        elif record.seq != last + 1 and missing is None:
            missing = last + 1
        last = record.seq
        yield from _record_findings(RunId(run_id), row)
    if missing is not None:
        yield str(corrupt(RunId(run_id), missing, "it is missing"))


def _record_findings(run_id: RunId, row: Sequence[Any]) -> Iterator[str]:
    try:
        [record] = as_page(run_id, [row])
    except (CorruptRecord, StoreVersionError) as error:
        yield str(error)
        return
    version = json.loads(record.body).get("v")
    if isinstance(version, int) and version > RECORD_VERSION:
        yield f"record {record.seq} of run {shown(run_id)} has format {version}, newer than {RECORD_VERSION}"


def orphan_finding(table: str, count: int) -> list[str]:
    """Return a line about a table's rows without a run."""
    return [f"{count} rows of {table} have no run"] if count else []


def name_of(run_id: str) -> RunId:
    """Return a run id as it was given."""
    return RunId(restored(run_id))
