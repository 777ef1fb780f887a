"""Export and import of whole runs in Postgres."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, LiteralString

from ..._core.outcomes import RunId
from ..._core.records.records import OpenPause, Record, StoredRun, has_ended
from .. import _record_rows as record_rows
from .._record_rows import as_blob, as_page, as_row, storable
from . import _statements as sql
from ._pauses import mark_ready
from ._run_queries import hash_of, insert_blobs, insert_labels, owner_of

if TYPE_CHECKING:
    from ._connections import PostgresConnections
    from ._session import PostgresSession

_PUT_RUN: LiteralString = """
    INSERT INTO flujo_runs (run_hash, run_id, pipeline, status, created_at, updated_at, epoch, lease_until, next_seq,
                            queue, parent, tokens, cost_usd, cancel, fingerprint, started_at, claimed_at, ended_at,
                            worked_s, retries)
    VALUES (%(hash)s, %(run_id)s, %(pipeline)s, %(status)s, %(created_at)s, %(updated_at)s, %(epoch)s, 0,
            %(records)s::bigint + 1, %(queue)s, %(parent)s, %(tokens)s, %(cost_usd)s, %(cancel)s, %(fingerprint)s,
            %(started_at)s, %(started_at)s, %(ended_at)s, %(worked_s)s, %(retries)s)
    ON CONFLICT (run_hash) DO NOTHING RETURNING id"""

_PUT_RECORDS: LiteralString = """
    INSERT INTO flujo_records (run, seq, kind, path, body, blob, gist, at)
    SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[],
                         %s::float8[])"""

_PUT_PAUSE: LiteralString = """
    INSERT INTO flujo_pauses (run, path, token, message, body, due_at, asked_at, addressee, kind, wait, event, key,
                              answered)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""

_PUT_START: LiteralString = "UPDATE flujo_runs SET wake_at = %s WHERE id = %s"
"""Start of a delayed run."""

_EXPIRED = uuid.UUID(int=1)
"""Marker of a timed-out pause of a run that has not resumed since."""

_AT_ONCE = 200
_MOST_CHARACTERS = 4_000_000
"""Bounds of one statement: records, and characters of their bodies."""


class PostgresTransfer:
    """Export and import of a Postgres store."""

    _connections: PostgresConnections

    def read_page(self, run_id: RunId, *, after: int, limit: int) -> list[Record]:
        rows = self._connections.read(lambda db: db.ask(sql.READ, (hash_of(run_id), after, limit)))
        if not rows and self._connections.read(lambda db: owner_of(db, run_id)) is None:
            raise record_rows.not_found(run_id)
        return as_page(run_id, rows)

    def put(self, runs: Iterable[tuple[StoredRun, Iterable[Record]]]) -> None:
        first: list[RunId] = []
        with self._connections.lent_connection(lambda db: owner_of(db, first[0]) is not None) as db:
            for run, records in runs:
                first.append(run.run_id)
                self._put(db, run, records)

    def _put(self, db: PostgresSession, run: StoredRun, records: Iterable[Record]) -> None:
        with self._connections.appending(db, slow=None):
            db.execute(sql.SHARE_BLOBS)
            added = db.ask(_PUT_RUN, _columns(run))
        if not added:
            raise record_rows.exists(run.run_id)
        [(key,)] = added
        for part in _parts(records):
            with self._connections.appending(db, slow=None):
                _put_records(db, key, run, part)
        with self._connections.appending(db, slow=None):
            _put_pauses(db, key, run)
            insert_labels(db, {key: run.labels})


def _columns(run: StoredRun) -> dict[str, object]:
    return {
        "hash": hash_of(run.run_id),
        "run_id": storable(run.run_id),
        "pipeline": storable(run.pipeline),
        "status": run.status,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "epoch": run.epoch,
        "records": run.records,
        "queue": run.queue and storable(run.queue),
        "parent": run.parent and storable(run.parent),
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "cancel": run.cancel and storable(run.cancel),
        "fingerprint": run.fingerprint and storable(run.fingerprint),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "worked_s": run.worked_s,
        "retries": run.retries,
    }


def _parts(records: Iterable[Record]) -> Iterable[list[Record]]:
    """Yield the records in parts that fit one statement."""
    part: list[Record] = []
    for record in records:
        part.append(record)
        if len(part) >= _AT_ONCE or sum(len(each.body) for each in part) > _MOST_CHARACTERS:
            yield part
            part = []
    if part:
        yield part


def _put_records(db: PostgresSession, key: int, run: StoredRun, records: list[Record]) -> None:
    insert_blobs(db, records)
    rows = []
    for record in records:
        row = as_row(record, record.seq, as_blob(record.body))
        rows.append((key, *row[:5], row.gist, run.created_at if record.at is None else record.at))
    db.execute(_PUT_RECORDS, [list(column) for column in zip(*rows, strict=True)])


def _put_pauses(db: PostgresSession, key: int, run: StoredRun) -> None:
    for pause in (*run.pauses, *run.waits):
        others = (pause.to, pause.kind, pause.wait, pause.event, pause.key)
        stored = (None if text is None else storable(text) for text in others)
        db.execute(_PUT_PAUSE, (key, *_texts(pause), pause.due_at, pause.asked_at, *stored, None))
    if run.expired:
        db.execute(_PUT_PAUSE, (key, "", "", "", "", *[None] * 7, _EXPIRED))
    if run.status == "sleeping" and run.unclaimed:
        db.execute(_PUT_START, (run.wake_at, key))
    elif not has_ended(run.status):
        mark_ready(db, {"wall": run.updated_at}, [key])


def _texts(pause: OpenPause) -> Iterable[str]:
    return map(storable, (pause.path, pause.token, pause.message, pause.body))
