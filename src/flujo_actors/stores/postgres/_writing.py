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


def insert_blobs(db: Connection, records: Iterable[Record]) -> list[bytes]:
    """Write long bodies by themselves; their hashes."""
    blobs = [blob for record in records if (blob := as_blob(record.body)) is not None]
    for blob in blobs:
        db.execute(sql.INSERT_BLOB, blob)
    return [each.hash for each in blobs]


def insert_records(db: Connection, records: Iterable[tuple[int, int, Record]], *, with_blobs: bool = True) -> None:
    """Write records, and long bodies by themselves, unless that was done."""
    placed = list(records)
    if with_blobs:
        insert_blobs(db, (record for _, _, record in placed))
    rows = []
    for run, seq, record in placed:
        row = as_row(record, seq, as_blob(record.body))
        rows.append((run, *row[:5], row.gist))
    if rows:
        db.execute(sql.INSERT_RECORDS, [list(column) for column in zip(*rows, strict=True)])
