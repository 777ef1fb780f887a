"""Runs that wait for a worker in a SQLite file, and who is there to work."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence

from ..._core.outcomes import RunId
from ..._core.records import StoredRun, WorkerNote
from .._rows import restored, storable
from . import _statements as sql
from ._connections import SqliteConnections


class SqliteQueue:
    """What a SQLite store does for workers."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    def _stored(self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        raise NotImplementedError

    def _time(self) -> dict[str, object]:
        raise NotImplementedError

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "queues": json.dumps([storable(queue) for queue in queues]),
            "host": storable(host),
            "limit": limit,
        }
        with self._connections.reading() as db:
            return [*self._stored(db, sql.WANTING, wanted), *self._stored(db, sql.WANTING_ANSWERED, wanted)]

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "host": storable(host),
            "updated_before": updated_before,
            "limit": limit,
        }
        with self._connections.reading() as db:
            return self._stored(db, sql.ORPHANS, wanted)

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        listed = {"run_ids": json.dumps([storable(run_id) for run_id in run_ids])}
        with self._connections.reading() as db:
            return self._stored(db, "WHERE run_id IN (SELECT value FROM json_each(:run_ids))", listed)

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        with self._connections.writing() as db:
            db.executemany(sql.REQUEUE, [(storable(run_id),) for run_id in run_ids])

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        with self._connections.writing() as db:
            told = {**self._time(), "reason": storable(reason)}
            db.executemany(sql.PARK, [{**told, "run_id": storable(run_id)} for run_id in run_ids])

    def children(self, run_id: RunId) -> list[RunId]:
        with self._connections.reading() as db:
            rows = db.execute(sql.CHILDREN, (storable(run_id),)).fetchall()
        return [RunId(restored(child)) for (child,) in rows]

    def sign_on(self, worker: WorkerNote) -> None:
        with self._connections.writing() as db:
            db.execute(sql.SIGN_ON, (storable(worker.name), storable(worker.body), self._wall()))

    def sign_off(self, name: str) -> None:
        with self._connections.writing() as db:
            db.execute(sql.SIGN_OFF, (storable(name), self._wall()))

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        with self._connections.reading() as db:
            rows = db.execute(sql.SIGNED_ON, (self._wall() - within_s,)).fetchall()
        return [WorkerNote(name=restored(name), body=restored(body), seen_at=at) for name, body, at in rows]
