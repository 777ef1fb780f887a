"""Looking at the runs of a Postgres database: records without bodies, how runs stand, one record, and forks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..._core.light_records import LightRecord
from ..._core.outcomes import RunId
from ..._core.records import Admission, Append, Lease, OpenPause, Record, StoredRun, StoredStatus
from ...errors import RunExists
from .. import _refusals as refusals
from .._port import Verdict
from .._rows import as_light, as_records, restored
from . import _statements as sql

if TYPE_CHECKING:  # they need the driver, and the name of the store must be there without it
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection

FORKED = "fork"
"""Who owns a fork while it is made."""


class PostgresScanning:
    """The part of a Postgres store that looks at runs."""

    _connections: PostgresConnections

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[LightRecord]:
        rows = self._connections.read(lambda db: db.ask(sql.SCAN, (hash_of(run_id), max(after, 0), limit)))
        if not rows and self._connections.read(lambda db: owner_of(db, run_id)) is None:
            raise refusals.not_found(run_id)
        return as_light(rows)

    def record(self, run_id: RunId, seq: int) -> Record:
        rows = self._connections.read(lambda db: db.ask(sql.READ, (hash_of(run_id), seq - 1, 1)))
        if not rows or rows[0][0] != seq:
            raise refusals.no_record(run_id, seq)
        return as_records(run_id, rows, after=seq - 1)[0]

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        hashes = [hash_of(run_id) for run_id in run_ids]
        return {run.run_id: run for run in self._stored("WHERE run_hash = ANY(%(hashes)s)", {"hashes": hashes})}

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        def write(db: Connection) -> tuple[None, IsThere]:
            [lease], _ = self._admit(db, [admission], FORKED, 0.0)
            if isinstance(lease, RunExists):
                raise lease
            begun = Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True)
            self._append(db, [begun])
            return None, lambda db: owner_of(db, admission.run_id) is not None

        self._connections.write(write, slow=True)

    def _stored(self, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        raise NotImplementedError

    def _admit(
        self, db: Connection, admissions: Sequence[Admission], owner: str, lease_s: float
    ) -> tuple[list[Lease | RunExists], IsThere]:
        raise NotImplementedError

    def _append(self, db: Connection, batch: Sequence[Append]) -> tuple[list[Verdict], IsThere]:
        raise NotImplementedError


def hash_of(run_id: RunId) -> bytes:
    """What a run is found by."""
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


def owner_of(db: Connection, run_id: RunId) -> tuple[str | None, int] | None:
    """Who a run belongs to, and its epoch; `None` if it is not there."""
    for owner, epoch in db.ask(sql.OWNER, (hash_of(run_id),)):
        return (owner if owner is None else restored(owner)), epoch
    return None
