"""A store in one SQLite file: the embedded default.

Rules:

1. What a method returned for is on the disk: every write is one transaction of a file in WAL mode, with
   `synchronous=FULL` unless the constructor says otherwise.
2. Leases are counted in the monotonic time of one boot. All processes on one machine share it; a lease of another
   boot has expired.
3. Text goes into the database escaped (`_rows`), so every name and every body comes back as it was.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Admission, Append, CancelRequest, Lease, OpenPause, Record, RunQuery, StoredRun
from ..._core.seconds import checked_seconds
from ...errors import LeaseLost, RunExists
from .. import _refusals as refusals
from .._clock import LeaseClock, SystemClock
from .._forking import watch_forks
from .._port import Transaction, Verdict
from .._rows import as_records, cursor_text, read_cursor, restored, storable
from . import _pauses as pauses
from . import _statements as sql
from ._appending import append_all, cancel_requests, insert_first
from ._beliefs import SqliteBeliefs
from ._budgets import SqliteBudgets, forget_budgets
from ._connections import SqliteConnections
from ._places import Places
from ._queue import SqliteQueue
from ._scanning import SqliteScanning, owner_of, record_rows
from ._texts import SqliteTexts

Synchronous = Literal["FULL", "EXTRA", "NORMAL", "OFF"]
"""SQLite's setting: `FULL` survives a power failure, `NORMAL` may lose the last commits in one, never their order."""


class SqliteStore(SqliteQueue, SqliteScanning, SqliteBeliefs, SqliteBudgets, SqliteTexts):
    """Runs in a SQLite file, or in memory with `":memory:"`; shared by all processes of one machine."""

    between_machines = False
    """Whether workers of other machines reach it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout_s: float = 30.0,
        clock: LeaseClock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall
        timeout_s = checked_seconds(busy_timeout_s, what="SqliteStore: busy_timeout_s")
        self._places = Places()
        self._connections = SqliteConnections(os.fspath(path), synchronous=synchronous, busy_timeout_s=timeout_s)
        watch_forks(self._connections)
        weakref.finalize(self, self._connections.dispose)

    one_writer = True
    """From its first write on, a transaction keeps everybody else from writing."""

    @property
    def place(self) -> str | None:
        """What all stores on the same file say; `None` for a database in memory, which is a place by itself."""
        return None if self._connections.in_memory else f"sqlite {os.path.realpath(self._connections.path)}"

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        [answer] = self.admit_all([admission], owner=owner, lease_s=lease_s)
        if isinstance(answer, RunExists):
            raise answer
        return answer

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        if not admissions:
            return []
        with self._places, self._connections.writing() as db:
            return [self._admit(db, admission, owner, lease_s) for admission in admissions]

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        return self._claim(run_id, None, owner, lease_s)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        return self._claim(run_id, storable(dead), owner, lease_s)

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        with self._connections.writing() as db:
            found = db.execute(sql.REQUEST_CANCEL, {"run_id": storable(run_id), "reason": storable(reason)}).fetchall()
        if not found:
            raise refusals.not_found(run_id)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelRequest]:
        with self._connections.reading() as db:
            requests = cancel_requests(db)
        return {run_id: requests[run_id] for run_id in run_ids if run_id in requests}

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        if not batch:
            return []
        with self._places, self._connections.writing() as db:
            return self._append(db, batch)

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        if not leases:
            return []
        with self._connections.writing() as db:
            return [self._renew(db, lease, lease_s) for lease in leases]

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        with self._connections.writing() as db:
            pauses.consume(db, run_id, path, token, [record], self._wall())

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        with self._connections.writing() as db:
            run = pauses.consume(db, run_id, path, token, records, self._wall())
            pauses.ask(db, run, pause, self._wall())

    def expire(self, *, body: str) -> list[RunId]:
        with self._connections.writing() as db:
            return pauses.expire(db, body, self._wall())

    def next_due_s(self) -> float | None:
        with self._connections.reading() as db:
            [(due_at,)] = db.execute(sql.NEXT_DUE).fetchall()
        return None if due_at is None else due_at - self._wall()

    def get(self, run_id: RunId) -> StoredRun:
        with self._connections.reading() as db:
            for run in self._stored(db, "WHERE run_id = :run_id", {"run_id": storable(run_id)}):
                return run
        raise refusals.not_found(run_id)

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        with self._connections.reading() as db:
            rows = record_rows(db, run_id, after)
            if not rows and owner_of(db, run_id) is None:
                raise refusals.not_found(run_id)
        return as_records(run_id, rows, after=after)

    def find(self, query: RunQuery) -> list[StoredRun]:
        where, parameters = _conditions(query)
        with self._connections.reading() as db:
            return self._stored(db, f"{where} ORDER BY updated_at DESC, id DESC LIMIT :limit", parameters)

    def delete(self, run_ids: Sequence[RunId]) -> int:
        if not run_ids:
            return 0
        with self._connections.writing() as db:
            return sum(self._delete(db, run_id) for run_id in run_ids)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction on a connection of its own.

        The file's write lock is taken by its first write, and from then on all other writers wait, this process's
        journal among them: write late and briefly. What is read before that is not part of the transaction, unless
        it is begun with `connection.execute("BEGIN IMMEDIATE")`.
        """
        with self._connections.lent() as db:
            yield _SqliteTransaction(db, self._append_through)

    def close(self) -> None:
        """Close the connections; they open again if the store is used again. A database in memory stays as it is."""
        self._connections.close()

    def _claim(self, run_id: RunId, dead: str | None, owner: str, lease_s: float) -> Lease:
        with self._connections.writing() as db:
            granted = self._granted(run_id, owner=owner, lease_s=lease_s)
            for (epoch,) in db.execute(sql.CLAIM, {**granted, "dead": dead}).fetchall():
                return Lease(run_id=run_id, owner=owner, epoch=epoch)
            holder = self._holder(db, run_id)
        raise refusals.leased(run_id, *holder) if holder else refusals.not_found(run_id)

    def _holder(self, db: sqlite3.Connection, run_id: RunId) -> tuple[str | None, float] | None:
        """Who holds a run, and for how many seconds more."""
        for owner, left_s in db.execute(sql.HOLDER, {**self._time(), "run_id": storable(run_id)}).fetchall():
            return (owner if owner is None else restored(owner)), left_s
        return None

    def _append(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]:
        return append_all(db, batch, self._wall(), self._places)

    def _append_through(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]:
        with self._connections.errors():
            if not db.in_transaction:
                db.execute("BEGIN IMMEDIATE")
            return append_all(db, batch, self._wall(), Places())  # what may be undone is not known

    def _admit(
        self, db: sqlite3.Connection, admission: Admission, owner: str | None, lease_s: float
    ) -> Lease | RunExists:
        epoch = 0 if owner is None else 1
        new = {
            **self._granted(admission.run_id, owner=owner, lease_s=lease_s),
            "pipeline": storable(admission.pipeline),
            "epoch": epoch,
            "queue": admission.queue and storable(admission.queue),
            "parent": admission.parent and storable(admission.parent),
        }
        admitted = db.execute(sql.ADMIT, new)
        if admitted.rowcount != 1:
            return refusals.exists(admission.run_id)
        lease = Lease(run_id=admission.run_id, owner=owner or "", epoch=epoch)
        assert admitted.lastrowid is not None
        insert_first(db, admission, lease, admitted.lastrowid, new["wall"], self._places)
        return lease

    def _renew(self, db: sqlite3.Connection, lease: Lease, lease_s: float) -> LeaseLost | None:
        granted = self._granted(lease.run_id, owner=lease.owner, lease_s=lease_s)
        if db.execute(sql.RENEW, {**granted, "epoch": lease.epoch}).fetchall():
            return None
        return refusals.lost(lease, owner_of(db, lease.run_id))

    def _delete(self, db: sqlite3.Connection, run_id: RunId) -> int:
        deleted = db.execute(sql.DELETE_RUN, {**self._time(), "run_id": storable(run_id)}).fetchall()
        children = db.execute(sql.DELETE_CHILDREN, {"run_id": storable(run_id)}).fetchall() if deleted else []
        if deleted:
            forget_budgets(db, run_id)
        for run in (*deleted, *children):
            blobs = db.execute(sql.BLOBS_OF_RUN, run).fetchall()
            db.execute(sql.DELETE_RECORDS, run)
            db.execute(sql.DELETE_PAUSES, run)
            db.executemany(sql.DELETE_UNUSED_BLOB, blobs)
        return len(deleted)

    def _stored(self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        rows = db.execute(f"{sql.RUNS} {where}", {**self._time(), **parameters}).fetchall()
        asked = pauses.open_pauses(db, [row[0] for row in rows])
        return [_stored_run(row, asked.get(row[0], ())) for row in rows]

    def _time(self) -> dict[str, Any]:
        return {"boot": self._clock.boot(), "now": self._clock.now(), "wall": self._wall()}

    def _granted(self, run_id: RunId, *, owner: str | None, lease_s: float) -> dict[str, Any]:
        time = self._time()
        named = {"run_id": storable(run_id), "owner": owner and storable(owner)}
        return {**time, **named, "until": time["now"] + lease_s}


_Write = Callable[[sqlite3.Connection, Sequence[Append]], list[Verdict]]


class _SqliteTransaction:
    """An open transaction of a SQLite store."""

    def __init__(self, connection: sqlite3.Connection, write: _Write) -> None:
        self.connection = connection
        self._write = write

    def append(self, append: Append) -> None:
        [verdict] = self._write(self.connection, [append])
        if isinstance(verdict, LeaseLost):
            raise verdict


def _stored_run(row: Sequence[Any], asked: Iterable[OpenPause]) -> StoredRun:
    key, run_id, pipeline, status, created_at, updated_at, epoch, held, records, owner, left_s, *rest = row
    queue, parent, tokens, cost_usd, expired = rest
    return StoredRun(
        run_id=RunId(restored(run_id)),
        pipeline=restored(pipeline),
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        epoch=epoch,
        leased=bool(held),
        records=records,
        pauses=tuple(asked),
        expired=bool(expired),
        owner=restored(owner) if held else None,
        left_s=left_s if held else None,
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
        last_owner=owner and restored(owner),
        tokens=tokens,
        cost_usd=cost_usd,
        cursor=cursor_text(updated_at, key),
    )


def _conditions(query: RunQuery) -> tuple[str, Mapping[str, object]]:
    conditions = {
        "status = :status": query.status,
        "pipeline = :pipeline": query.pipeline and storable(query.pipeline),
        "updated_at < :updated_before": query.updated_before,
        "updated_at > :updated_after": query.updated_after,
        f"status = 'running' AND epoch > 0 AND NOT ({sql.HELD})": query.abandoned or None,
        "updated_at < :seen_at OR (updated_at = :seen_at AND id < :seen)": query.cursor,
        "substr(run_id, 1, length(:search)) = :search OR instr(lower(pipeline), lower(:search)) > 0": query.search,
    }
    seen_at, seen = (None, None) if query.cursor is None else read_cursor(query.cursor)
    wanted = [f"({condition})" for condition, value in conditions.items() if value is not None]
    limit = -1 if query.limit is None else query.limit
    parameters = {
        "status": query.status,
        "pipeline": query.pipeline and storable(query.pipeline),
        "updated_before": query.updated_before,
        "updated_after": query.updated_after,
        "limit": limit,
        "seen_at": seen_at,
        "seen": seen,
        "search": query.search and storable(query.search),
    }
    return f"WHERE {' AND '.join(['parent IS NULL', *wanted])}", parameters
