"""Looking at the runs of a SQLite file: records without bodies, how runs stand, one record, and forks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..._core.light_records import LightRecord
from ..._core.outcomes import RunId
from ..._core.records import Admission, Append, Lease, OpenPause, Record, StoredRun, StoredStatus
from ...errors import RunExists
from .. import _refusals as refusals
from .._clock import LeaseClock
from .._port import Verdict
from .._rows import as_light, as_records, corrupt, restored, storable
from . import _statements as sql
from ._connections import SqliteConnections
from ._places import Places

FORKED = "fork"
"""Who owns a fork while it is made."""

_GOOD_FOR_S = 1.0
"""How long a look is as good as another one if nobody has written: leases run out by themselves."""


@attrs.frozen(kw_only=True)
class _Seen:
    """What a look found."""

    asked: tuple[RunId, ...]
    version: tuple[int, int] | None
    """Of the file; `None` if that cannot be told."""
    at: float
    runs: dict[RunId, StoredRun]

    def fits(self, asked: tuple[RunId, ...], version: tuple[int, int] | None, now: float) -> bool:
        same = version is not None and (asked, version) == (self.asked, self.version)
        return same and now < self.at + _GOOD_FOR_S


class SqliteScanning:
    """The part of a SQLite store that looks at runs."""

    _connections: SqliteConnections
    _places: Places
    _clock: LeaseClock
    _seen: _Seen | None = None
    """What `look` found last."""

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[LightRecord]:
        wanted = {"run_id": storable(run_id), "after": max(after, 0), "limit": -1 if limit is None else limit}
        with self._connections.reading() as db:
            rows = db.execute(sql.SCAN, wanted).fetchall()
            if not rows and owner_of(db, run_id) is None:
                raise refusals.not_found(run_id)
        return as_light(rows)

    def record(self, run_id: RunId, seq: int) -> Record:
        with self._connections.reading() as db:
            rows = record_rows(db, run_id, seq - 1, limit=1) if seq > 0 else []
        if not rows or rows[0][0] != seq:
            raise refusals.no_record(run_id, seq)
        return as_records(run_id, rows, after=seq - 1)[0]

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        """Nothing is read while nobody has written: the file says so itself."""
        asked, version, now = tuple(run_ids), self._connections.version(), self._clock.now()
        if self._seen is None or not self._seen.fits(asked, version, now):
            self._seen = _Seen(asked=asked, version=version, at=now, runs=self._looked(asked))
        return self._seen.runs

    def _looked(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        ids = json.dumps([storable(run_id) for run_id in run_ids])
        with self._connections.reading() as db:
            found = self._stored(db, "WHERE run_id IN (SELECT value FROM json_each(:ids))", {"ids": ids})
        return {run.run_id: run for run in found}

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        with self._places, self._connections.writing() as db:
            lease = self._admit(db, admission, FORKED, 0.0)
            if isinstance(lease, RunExists):
                raise lease
            begun = Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True)
            self._append(db, [begun])

    def _stored(self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        raise NotImplementedError

    def _admit(self, db: sqlite3.Connection, admission: Admission, owner: str, lease_s: float) -> Lease | RunExists:
        raise NotImplementedError

    def _append(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]:
        raise NotImplementedError


def owner_of(db: sqlite3.Connection, run_id: RunId) -> tuple[str | None, int] | None:
    """Who a run belongs to, and its epoch; `None` if it is not there."""
    for owner, epoch in db.execute(sql.OWNER, (storable(run_id),)).fetchall():
        return (owner if owner is None else restored(owner)), epoch
    return None


def record_rows(db: sqlite3.Connection, run_id: RunId, after: int, *, limit: int = -1) -> list[Any]:
    """The rows of a run's records; `CorruptRecord` names one that is no text."""
    wanted = {"run_id": storable(run_id), "after": max(after, 0), "limit": limit}
    try:
        return db.execute(sql.READ, wanted).fetchall()
    except sqlite3.OperationalError as error:
        for seq, *texts in db.execute(sql.READ_RAW, wanted):
            if not all(map(_is_utf8, texts)):
                raise corrupt(run_id, seq, "it holds text that is not UTF-8") from error
        raise


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
