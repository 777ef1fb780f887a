"""Runs that wait for a worker in a Postgres database, and who is there to work."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._core.outcomes import RunId
from ..._core.records import Lease, Record, StoredRun, TakenRun, WorkerNote
from .._rows import as_records, restored, storable
from . import _statements as sql

if TYPE_CHECKING:  # it needs the driver
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection


class PostgresQueue(ABC):
    """What a Postgres store does for workers."""

    _connections: PostgresConnections

    @abstractmethod
    def _stored(self, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        """The runs that a condition holds for."""

    @abstractmethod
    def _time(self) -> dict[str, object]:
        """What statements call the time."""

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "queues": [storable(queue) for queue in queues],
            "host": storable(host),
            "limit": limit,
        }
        return [*self._stored(sql.WANTING, wanted), *self._stored(sql.WANTING_ANSWERED, wanted)]

    def take_new(self, run_id: RunId, *, owner: str, lease_s: float) -> TakenRun | None:
        """Claim a run that nobody has worked on, and read it, at once; `None` if it is none, or not there."""
        take = functools.partial(self._take_new, run_id=run_id, owner=owner, lease_s=lease_s)
        return self._connections.write(take, lease_s=lease_s)

    def _take_new(self, db: Connection, run_id: RunId, owner: str, lease_s: float) -> tuple[TakenRun | None, IsThere]:
        granted = {**self._time(), "hash": _hash(run_id), "owner": storable(owner), "lease_s": lease_s}
        rows = db.ask(sql.TAKE_NEW, granted)
        if not rows:
            return None, lambda db: False
        held = [(storable(owner), 1)]
        taken = TakenRun(
            lease=Lease(run_id=run_id, owner=owner, epoch=1),
            run=_as_it_was(run_id, rows[0][:5], records=len(rows)),
            records=tuple(as_records(run_id, [row[5:] for row in rows], after=0)),
        )
        return taken, lambda db: db.ask(sql.OWNER, (_hash(run_id),)) == held

    def read_all(self, run_ids: Sequence[RunId]) -> dict[RunId, list[Record]]:
        """The records of several runs; of those that are not there, nothing."""
        found: dict[RunId, list[Any]] = {}
        for run_id, *row in self._connections.read(lambda db: db.ask(sql.READ_ALL, (_hashes(run_ids),))):
            found.setdefault(RunId(restored(run_id)), []).append(row)
        return {run_id: as_records(run_id, rows, after=0) for run_id, rows in found.items()}

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

    def readdress(self, run_ids: Sequence[RunId], reply: str) -> None:
        """Have another channel told when these remote steps end."""
        hashes = _hashes(run_ids)
        self._connections.write(lambda db: _done(db, sql.READDRESS, (reply, hashes)))

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
    return sorted(map(_hash, run_ids))


def _hash(run_id: RunId) -> bytes:
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


def _as_it_was(run_id: RunId, row: Sequence[Any], *, records: int) -> StoredRun:
    """A new run as it stood before it was claimed."""
    pipeline, created_at, updated_at, queue, parent = row
    return StoredRun(
        run_id=run_id,
        pipeline=restored(pipeline),
        status="running",
        created_at=created_at,
        updated_at=updated_at,
        epoch=0,
        leased=False,
        records=records,
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
    )


def _done(db: Connection, statement: Any, parameters: Any) -> tuple[None, IsThere]:
    db.execute(statement, parameters)
    return None, lambda db: False
