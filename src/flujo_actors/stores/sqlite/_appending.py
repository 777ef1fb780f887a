"""How what runs have to say is written to a SQLite file: under their leases, and by the shortest way that is known.

Rules:

1. Every statement has the lease in its predicate: if it is not the run's current one, nothing is written.
2. Where the run stands is known from the write before (`_places`); where it is not, the statement looks itself.
3. Who is to be told of a request to cancel is read once for all that a transaction writes.
4. Many records of one run are written a hundred at a time. After each statement the thread waits for the interpreter,
   for 5 ms or more where the loop is busy: one by one, the records of ten thousand steps at once took longer than a
   lease lasts.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence

import attrs

from ..._core.light_records import gist_of
from ..._core.outcomes import RunId
from ..._core.paths import ROOT
from ..._core.records import Admission, Append, CancelRequest, Lease, Record, has_ended
from ...errors import LeaseLost
from .. import _refusals as refusals
from .._port import Verdict
from .._rows import Blob, as_blob, restored, storable
from . import _pauses as pauses
from . import _statements as sql
from ._beliefs import learn
from ._budgets import write_share
from ._places import Place, Places
from ._scanning import owner_of

MANY, MOST_AT_ONCE = 8, 100


def append_all(db: sqlite3.Connection, batch: Sequence[Append], wall: float, places: Places) -> list[Verdict]:
    """Write the appends, each all of it or nothing."""
    cursor = db.cursor()
    lost: list[LeaseLost | None] = []
    for append, count in _together(batch):
        lost.append(why := _appended(cursor, append, wall, places))
        lost += [None if why is None else _lost(cursor, append.lease, places) for _ in range(count - 1)]
    requests = cancel_requests(db)
    if not requests and not any(lost):
        return [None] * len(batch)
    return [why or requests.get(append.lease.run_id) for why, append in zip(lost, batch, strict=True)]


def _together(batch: Sequence[Append]) -> Iterator[tuple[Append, int]]:
    """The appends, those as one that follow one another and write records of one run and nothing else (rule 4)."""
    for _, group in itertools.groupby(batch, lambda append: append.lease if _is_plain(append) else id(append)):
        first, *others = group
        yield (attrs.evolve(first, records=_records_of(first, *others)) if others else first), 1 + len(others)


def _records_of(*appends: Append) -> tuple[Record, ...]:
    return tuple(itertools.chain.from_iterable(append.records for append in appends))


def _is_plain(append: Append) -> bool:
    return not (_changes_run(append) or append.evidence or append.shares)


def cancel_requests(db: sqlite3.Connection) -> dict[RunId, CancelRequest]:
    """The runs that somebody wants to end; hardly ever any."""
    rows = db.execute(sql.CANCEL_REQUESTS).fetchall()
    return {RunId(restored(run_id)): CancelRequest(reason=restored(reason)) for run_id, reason in rows}


def insert_first(
    db: sqlite3.Connection, admission: Admission, lease: Lease, run: int, wall: float, places: Places
) -> None:
    """The record of a run that was admitted just now."""
    columns, blob = columns_of(Record(kind="admitted", path=ROOT, body=admission.body))
    first = (run << 32) + 1
    db.execute(sql.INSERT_FIRST, (first, *columns))
    if blob is not None:
        db.execute(sql.INSERT_BLOB, blob)
    if lease.epoch:
        places.know(Place(lease, _under(run, lease), first, wall))


def columns_of(record: Record) -> tuple[tuple[str, str, str, bytes | None, str | None], Blob | None]:
    """Kind, path, body, hash of a long body and gist of a record, as they are stored; and the long body."""
    blob, gist = as_blob(record.body), gist_of(record)
    body = storable(record.body) if blob is None else ""
    hashed = None if blob is None else blob.hash
    return (record.kind, storable(record.path), body, hashed, None if gist is None else storable(gist)), blob


def _appended(cursor: sqlite3.Cursor, append: Append, wall: float, places: Places) -> LeaseLost | None:
    lease = append.lease
    place, records = places.of(lease), append.records
    if len(records) >= MANY and place is not None:
        place, records = _many_inserted(cursor, place, records, wall)
    for record in records:
        place = _inserted(cursor, lease, place, record, wall)
        if place is None:
            return _lost(cursor, lease, places)
    if _changes_run(append):
        run = _changed(cursor, append, place if append.records else None, wall)
        if run is None:
            return _lost(cursor, lease, places)
        pauses.write(cursor.connection, run, append, wall)
    if append.release:
        places.forget(lease)
    elif place is not None:
        places.know(place)
    for each in append.evidence:
        learn(cursor.connection, each, wall)
    for share in append.shares:
        write_share(cursor.connection, lease, share)
    return None


def _many_inserted(
    cursor: sqlite3.Cursor, place: Place, records: tuple[Record, ...], wall: float
) -> tuple[Place, tuple[Record, ...]]:
    """Write as many records at a time as can be (rule 4): where the run stands then, and what is left to write."""
    after_us = round((wall - place.created_at) * 1e6)
    while len(records) >= MANY:
        stored = [columns_of(record) for record in records[:MOST_AT_ONCE]]
        if any(blob is not None for _, blob in stored):
            break
        rows = [(place.last + number, after_us, *columns) for number, (columns, _) in enumerate(stored, start=1)]
        try:
            cursor.execute(sql.insert_many_at(len(rows)), (*itertools.chain(*rows), *place.under))
        except sqlite3.IntegrityError:  # somebody else has used one of the keys
            break
        if cursor.rowcount != len(rows):
            break
        place, records = place._replace(last=place.last + len(rows)), records[len(rows) :]
    return place, records


def _inserted(cursor: sqlite3.Cursor, lease: Lease, place: Place | None, record: Record, wall: float) -> Place | None:
    """Where the run stands after the record; `None` if the lease is not its own any more."""
    columns, blob = columns_of(record)
    written = None if place is None else _insert_at(cursor, place, columns, wall)
    written = written or _insert_after_last(cursor, lease, columns, wall)
    if blob is not None and written is not None:
        cursor.execute(sql.INSERT_BLOB, blob)
    return written


def _insert_at(cursor: sqlite3.Cursor, place: Place, columns: tuple[object, ...], wall: float) -> Place | None:
    """The same if it is known where the run stands; `None` also if somebody else has written there since."""
    following, after_us = place.last + 1, round((wall - place.created_at) * 1e6)
    cursor.execute(sql.INSERT_AT, (following, after_us, *columns, *place.under))
    return Place(place.lease, place.under, following, place.created_at) if cursor.rowcount == 1 else None


def _insert_after_last(cursor: sqlite3.Cursor, lease: Lease, columns: tuple[object, ...], wall: float) -> Place | None:
    found = cursor.execute(sql.APPEND, (wall, *columns, *_under(0, lease)[1:])).fetchall()
    for last, after_us in found:
        return Place(lease, _under(last >> 32, lease), last, wall - after_us / 1e6)
    return None


def _under(run: int, lease: Lease) -> tuple[int, str, str, int]:
    """The run's key and its lease, as predicates ask for them."""
    return run, storable(lease.run_id), storable(lease.owner), lease.epoch


def _lost(cursor: sqlite3.Cursor, lease: Lease, places: Places) -> LeaseLost:
    places.forget(lease)
    return refusals.lost(lease, owner_of(cursor.connection, lease.run_id))


def _changes_run(append: Append) -> bool:
    """Whether more is written than records, which a run's row does not count while it has an owner."""
    others = append.pauses or append.withdrawn or append.tokens is not None or append.cost_usd is not None
    return append.release or append.status is not None or bool(others) or not append.records


def _changed(cursor: sqlite3.Cursor, append: Append, place: Place | None, wall: float) -> int | None:
    """Change the run's row; its key, or `None` if the lease is not its own any more."""
    new = (append.status, append.tokens, append.cost_usd, append.release, has_ended(append.status))
    if place is not None:
        cursor.execute(sql.CHANGE_AT, (place.last & 0xFFFFFFFF, wall, *new, *place.under))
        return place.under[0] if cursor.rowcount == 1 else None
    for (run,) in cursor.execute(sql.CHANGE, (wall, *new, *_under(0, append.lease)[1:])).fetchall():
        return int(run)
    return None
