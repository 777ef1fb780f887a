"""How records of a run are written to a Postgres database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..._core.records import Record
from .._rows import as_blob, as_row
from . import _statements as sql

if TYPE_CHECKING:
    from ._session import Connection


def numbered(run: int, first: int, records: Iterable[Record]) -> Iterator[tuple[int, int, Record]]:
    """Each record with its run and its number."""
    return ((run, first + index, record) for index, record in enumerate(records))


def insert_records(db: Connection, records: Iterable[tuple[int, int, Record]]) -> None:
    """Write records, and long bodies by themselves."""
    rows = []
    for run, seq, record in records:
        blob = as_blob(record.body)
        if blob is not None:
            db.execute(sql.INSERT_BLOB, blob)
        row = as_row(record, seq, blob)
        rows.append((run, *row[:5], row.gist))
    if rows:
        db.execute(sql.INSERT_RECORDS, [list(column) for column in zip(*rows, strict=True)])
