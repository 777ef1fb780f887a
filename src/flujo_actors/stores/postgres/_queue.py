"""Runs that wait for a worker in a Postgres database, and who is there to work."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._core.outcomes import RunId
from ..._core.records import StoredRun, WorkerNote
from .._rows import restored, storable
from . import _statements as sql

if TYPE_CHECKING:  # it needs the driver
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection


class PostgresQueue:
    """What a Postgres store does for workers."""

    _connections: PostgresConnections

    def _stored(self, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        raise NotImplementedError

    def _time(self) -> dict[str, object]:
        raise NotImplementedError

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "queues": [storable(queue) for queue in queues],
            "host": storable(host),
            "limit": limit,
        }
        return [*self._stored(sql.WANTING, wanted), *self._stored(sql.WANTING_ANSWERED, wanted)]

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "host": storable(host),
            "updated_before": updated_before,
            "limit": limit,
        }
        return self._stored(sql.ORPHANS, wanted)

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return self._stored("WHERE run_hash = ANY(%(hashes)s)", {"hashes": _hashes(run_ids)}) if run_ids else []

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        hashes = _hashes(run_ids)
        self._connections.write(lambda db: _done(db, sql.REQUEUE, (hashes,)))

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        resting = {**self._time(), "hashes": _hashes(run_ids), "reason": storable(reason)}
        self._connections.write(lambda db: _done(db, sql.PARK, resting))

    def children(self, run_id: RunId) -> list[RunId]:
        rows = self._connections.read(lambda db: db.ask(sql.CHILDREN, (storable(run_id),)))
        return [RunId(restored(child)) for (child,) in rows]

    def sign_on(self, worker: WorkerNote) -> None:
        note = {"name": storable(worker.name), "body": storable(worker.body)}
        self._connections.write(lambda db: _done(db, sql.SIGN_ON, note))

    def sign_off(self, name: str) -> None:
        self._connections.write(lambda db: _done(db, sql.SIGN_OFF, {"name": storable(name)}))

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        rows = self._connections.read(lambda db: db.ask(sql.SIGNED_ON, {"within_s": within_s}))
        return [WorkerNote(name=restored(name), body=restored(body), seen_at=at) for name, body, at in rows]


def _hashes(run_ids: Sequence[RunId]) -> list[bytes]:
    """In the order in which rows are locked."""
    return sorted(hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest() for run_id in run_ids)


def _done(db: Connection, statement: Any, parameters: Any) -> tuple[None, IsThere]:
    db.execute(statement, parameters)
    return None, lambda db: False
