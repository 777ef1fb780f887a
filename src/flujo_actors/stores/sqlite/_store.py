"""SQLite store in one file: the embedded default.

Rules:

1. A method returns after its write is on disk: every write is one transaction of a file in WAL mode, with
   `synchronous=FULL` by default.
2. Leases use the monotonic time of one boot. All processes on one machine share it; a lease of another
   boot has expired.
3. Text is escaped in the database (`_rows`), so every name and every body is returned unchanged.

Sections:

- Queued runs and workers in a SQLite file.
- Live text of steps in a file next to the store's: not synced, lost in a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from ..._core.outcomes import RunId
from ..._core.records.records import (
    RECORD_VERSION,
    Admission,
    Append,
    Lease,
    ListOrder,
    OpenPause,
    OwnerNotice,
    Record,
    StoredRun,
    WorkerNote,
)
from ..._core.step_paths import StepPath
from ..._core.validators import checked_seconds
from ...errors import LeaseLost, RunExists, SingletonBusy, StoreError
from .. import _record_rows as refusals
from .._fork_safety import watch_forks
from .._lease_clock import LeaseClock, SystemClock
from .._record_rows import as_records, questions_and_waits, restored, starts_at, storable
from .._run_lists import changed_at, cursor_text, labels_in
from .._store_port import Migrate, Transaction, Verdict, migrates
from . import _record_writes as record_writes
from . import _statements as sql
from ._budgets import SqliteBudgets
from ._claims import SqliteClaims, mark_if_ordered
from ._connections import SqliteConnections
from ._maintenance import SqliteMaintenance, SqliteTransfer
from ._record_writes import SqliteBeliefs, append_all, insert_first, owner_notices
from ._run_queries import (
    FORKED,
    RunPositions,
    SqliteLabels,
    SqliteRunQueries,
    insert_labels,
    owner_of,
    record_rows,
    refuse_taken_key,
    reserve_key,
    take_key,
)
from ._schedules import SqliteCache, SqliteRates, SqliteSchedules
from ._waits import SqliteEvents, SqliteWaits

# --- Queued runs and workers in a SQLite file ---------------------------------------------------------------------


class SqliteQueue(ABC):
    """Queue operations of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _stored(self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object]) -> list[StoredRun]: ...

    @abstractmethod
    def _time(self) -> dict[str, object]: ...

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "queues": json.dumps([storable(queue) for queue in queues]),
            "host": storable(host),
            "limit": limit,
        }
        if self._connections.record_format < RECORD_VERSION:  # the former release may write to the file, too
            with self._connections.writing() as db:
                db.execute(sql.ADOPT_FORMER)
        with self._connections.reading() as db:
            return [*self._stored(db, sql.WANTING, wanted), *self._stored(db, sql.WANTING_DEAD, wanted)][:limit]

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "host": storable(host),
            "updated_before": updated_before,
            "limit": limit,
        }
        with self._connections.reading() as db:
            found = [*self._stored(db, sql.ORPHANS, wanted), *self._stored(db, sql.ORPHANS_DEAD, wanted)]
        return sorted(found, key=lambda run: run.created_at)[:limit]

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        listed = {"run_ids": json.dumps([storable(run_id) for run_id in run_ids])}
        with self._connections.reading() as db:
            return self._stored(db, "WHERE run_id IN (SELECT value FROM json_each(:run_ids))", listed)

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        with self._connections.writing() as db:
            db.executemany(sql.REQUEUE, [(storable(run_id),) for run_id in run_ids])

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        with self._connections.writing() as db:
            parameters = {**self._time(), "reason": storable(reason)}
            db.executemany(sql.PARK, [{**parameters, "run_id": storable(run_id)} for run_id in run_ids])

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


# --- Live text of steps in a file next to the store's: not synced -------------------------------------------------
# The first watcher of another process creates the file; its absence means that there is none.


_TIMEOUT_S = 1.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS wanted (run TEXT PRIMARY KEY, until REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS texts (run TEXT NOT NULL, path TEXT NOT NULL, text TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS texts_by_run ON texts (run)",
)


class SqliteTexts:
    """Live text of a SQLite store."""

    _connections: SqliteConnections

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        wanted = self._wanted(said)
        if wanted:
            with self._texts() as db:
                for run_id in wanted:
                    _replace(db, run_id, said[run_id])
        return wanted

    def _is_watched(self, run_id: RunId) -> bool:
        """Return whether another process watches a run, even if damaged."""
        with contextlib.suppress(StoreError):
            return bool(self._wanted([run_id]))
        return False

    def _wanted(self, run_ids: Iterable[RunId]) -> set[RunId]:
        if self._connections.in_memory or not os.path.exists(self._texts_file):
            return set()
        with self._texts() as db:
            asked = {run for (run,) in db.execute("SELECT run FROM wanted WHERE until > ?", (time.time(),))}
        return {run_id for run_id in run_ids if storable(run_id) in asked}

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        if self._connections.in_memory:
            return {}
        until = time.time() + for_s
        with self._texts() as db:
            for statement in _TABLES:
                db.execute(statement)
            db.execute("DELETE FROM texts WHERE run IN (SELECT run FROM wanted WHERE until < ?)", (time.time(),))
            db.executemany("INSERT OR REPLACE INTO wanted VALUES (?, ?)", [(storable(each), until) for each in run_ids])
            return {run_id: _left(db, run_id) for run_id in run_ids}

    def _drop_texts(self, run_ids: Sequence[RunId]) -> None:
        """Delete the texts of deleted runs, if there are any."""
        if self._connections.in_memory or not os.path.exists(self._texts_file):
            return
        with contextlib.suppress(StoreError), self._texts() as db:
            runs = [(storable(run_id),) for run_id in run_ids]
            db.execute("PRAGMA secure_delete = ON")
            db.executemany("DELETE FROM texts WHERE run = ?", runs)
            db.executemany("DELETE FROM wanted WHERE run = ?", runs)

    @property
    def _texts_file(self) -> str:
        return f"{self._connections.file}-live"

    @contextlib.contextmanager
    def _texts(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one exchange, closed for safe forks."""
        try:
            with contextlib.closing(sqlite3.connect(self._texts_file, timeout=_TIMEOUT_S)) as db, db:
                db.execute("PRAGMA synchronous = OFF")
                yield db
        except sqlite3.Error as error:
            raise StoreError(f"{self._texts_file}: {error}") from error


def _replace(db: sqlite3.Connection, run_id: RunId, texts: Mapping[StepPath, str]) -> None:
    run = storable(run_id)
    db.execute("DELETE FROM texts WHERE run = ?", (run,))
    rows = [(run, storable(path), storable(text)) for path, text in texts.items()]
    db.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)


def _left(db: sqlite3.Connection, run_id: RunId) -> dict[StepPath, str]:
    rows = db.execute("SELECT path, text FROM texts WHERE run = ?", (storable(run_id),)).fetchall()
    return {StepPath(restored(path)): restored(text) for path, text in rows}


# --- SQLite store in one file -------------------------------------------------------------------------------------


Synchronous = Literal["FULL", "EXTRA", "NORMAL", "OFF"]
"""SQLite's setting: `FULL` survives power failures; `NORMAL` may lose commits."""


class SqliteStore(
    SqliteQueue,
    SqliteRunQueries,
    SqliteLabels,
    SqliteWaits,
    SqliteEvents,
    SqliteBeliefs,
    SqliteBudgets,
    SqliteSchedules,
    SqliteRates,
    SqliteCache,
    SqliteTexts,
    SqliteTransfer,
    SqliteMaintenance,
    SqliteClaims,
):
    """Runs in a SQLite file, or in memory with `":memory:"`.

    Args:
        path: path of the file, on a local disk.
        synchronous: `"FULL"`, or `"NORMAL"`, which may lose the last commits in a power failure.
        busy_timeout_s: longest wait for other writers.
        clock: clock of leases, for tests.
        wall: wall clock of deadlines, for tests.
        migrate: `"auto"`, or `"never"`.

    Raises:
        StoreError: the file cannot be opened.
        StoreVersionError: its schema is of a later release, or must not be migrated.

    Example:
        ```python
        flujo = Flujo(Step("greet", str.upper), store=SqliteStore("runs.db"))
        assert flujo.run("ada").output == "ADA"
        ```
    """

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
        migrate: Migrate = "auto",
    ) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall
        timeout_s = checked_seconds(busy_timeout_s, subject="SqliteStore: busy_timeout_s")
        self._places = RunPositions()
        self._connections = SqliteConnections(
            os.fspath(path), synchronous=synchronous, busy_timeout_s=timeout_s, migrates=migrates(migrate)
        )
        in_memory, file = self._connections.in_memory, self._connections.path
        self.place: str | None = None if in_memory else f"sqlite {os.path.realpath(file)}"
        """Identity of all stores on the same file; `None` in memory."""
        watch_forks(self._connections)
        weakref.finalize(self, self._connections.dispose)

    one_writer = True
    """From its first write on, a transaction blocks all other writers."""

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

    def claim(self, run_id: RunId, *, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        return self._claim(run_id, None, owner, lease_s, per_key)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        return self._claim(run_id, storable(dead), owner, lease_s, per_key)

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        with self._connections.writing() as db:
            request = {"run_id": storable(run_id), "reason": storable(reason), "wall": self._wall()}
            found = db.execute(sql.REQUEST_CANCEL, request).fetchall()
        if not found:
            raise refusals.not_found(run_id)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, OwnerNotice]:
        with self._connections.reading() as db:
            requests = owner_notices(db)
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
            run = record_writes.consume(db, run_id, path, token, [record], self._wall())
            self._mark_ready(db, [run])

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        with self._connections.writing() as db:
            run = record_writes.consume(db, run_id, path, token, records, self._wall())
            record_writes.ask(db, run, pause, self._wall())
            record_writes.add_messages(db, run, pause.outbox, self._wall())
            self._mark_ready(db, [run])

    def retry(self, run_id: RunId, *, number: int, record: Record, queue: str | None) -> None:
        wall = self._wall()
        retried = {"run_id": storable(run_id), "number": number, "queue": queue and storable(queue), "wall": wall}
        with self._connections.writing() as db:
            refuse_taken_key(db, run_id)
            for (run,) in db.execute(sql.RETRY, retried).fetchall():
                record_writes.add_records(db, run, [record], wall)
                return
        raise refusals.not_retryable(run_id, self.get(run_id).status)

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

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Yield a transaction on a dedicated connection.

        The file's write lock is taken by its first write, and from then on all other writers wait, this process's
        journal among them: write late and briefly. Earlier reads are not part of the transaction, unless it is begun
        with `connection.execute("BEGIN IMMEDIATE")`.
        """
        with self._connections.lent_connection() as db:
            yield _SqliteTransaction(db, self._append_through)

    @property
    def record_format(self) -> int:
        """Return the format of the records that writers of the store write."""
        return self._connections.record_format

    def may_create(self) -> None:
        """Let a write create missing tables."""
        self._connections.creates = True

    def may_migrate(self) -> None:
        """Let the next use of a reading store migrate the schema."""
        self._connections.may_migrate()

    def identity(self) -> object:
        """Return the file behind all of its names, or None. Blocks."""
        try:
            found = os.stat(self._connections.file)
        except OSError:
            return None
        return None if self._connections.in_memory else (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Close the connections until the next use, except in memory."""
        self._connections.close()

    def _claim(self, run_id: RunId, dead: str | None, owner: str, lease_s: float, per_key: int | None) -> Lease:
        watched = self._is_watched(run_id)
        with self._connections.writing() as db:
            self._connections.refuse_former()
            if per_key is not None:
                self._refuse_if_full(db, run_id, per_key)
            granted = self._granted(run_id, owner=owner, lease_s=lease_s)
            for epoch, run in db.execute(sql.CLAIM, {**granted, "dead": dead}).fetchall():
                if epoch > 1:  # a new run waits for nothing
                    record_writes.expire_run(db, run, granted["wall"])
                return Lease(run_id=run_id, owner=owner, epoch=epoch, watched=watched)
            holder = self._holder(db, run_id)
        raise refusals.leased(run_id, *holder) if holder else refusals.not_found(run_id)

    def _holder(self, db: sqlite3.Connection, run_id: RunId) -> tuple[str | None, float] | None:
        """Return a run's owner and remaining lease seconds."""
        for owner, left_s in db.execute(sql.HOLDER, {**self._time(), "run_id": storable(run_id)}).fetchall():
            return (owner if owner is None else restored(owner)), left_s
        return None

    def _append(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]:
        return append_all(db, batch, self._wall(), self._places)

    def _append_through(self, db: sqlite3.Connection, batch: Sequence[Append]) -> list[Verdict]:
        with self._connections.errors():
            if not db.in_transaction:
                db.execute("BEGIN IMMEDIATE")
            return append_all(db, batch, self._wall(), RunPositions())  # a rollback makes positions unknown

    def _admit(
        self, db: sqlite3.Connection, admission: Admission, owner: str | None, lease_s: float
    ) -> Lease | RunExists:
        self._connections.refuse_former()
        epoch = 0 if owner is None else 1
        new = {
            **self._granted(admission.run_id, owner=owner, lease_s=lease_s),
            "pipeline": storable(admission.pipeline),
            "epoch": epoch,
            "queue": admission.queue and storable(admission.queue),
            "parent": admission.parent and storable(admission.parent),
            "fingerprint": admission.fingerprint,
            "key": storable(admission.key),
            "priority": admission.priority,
        }
        new["started_at"] = None if owner in (None, FORKED) else new["wall"]
        new["wake_at"] = starts_at(admission, new["wall"]) if owner is None else None
        replaced = reserve_key(db, admission)
        if isinstance(replaced, SingletonBusy):
            return replaced
        admitted = db.execute(sql.ADMIT, new)
        if admitted.rowcount != 1:
            return refusals.exists(admission.run_id)
        lease = Lease(run_id=admission.run_id, owner=owner or "", epoch=epoch, replaced=replaced)
        assert admitted.lastrowid is not None
        take_key(db, admitted.lastrowid, admission)
        insert_first(db, admission, lease, admitted.lastrowid, new["wall"], self._places)
        insert_labels(db, admitted.lastrowid, admission.labels)
        if admission.queue is not None and (admission.parent or admission.key or admission.priority):
            mark_if_ordered(db, admitted.lastrowid)
        return lease

    def _renew(self, db: sqlite3.Connection, lease: Lease, lease_s: float) -> LeaseLost | None:
        granted = self._granted(lease.run_id, owner=lease.owner, lease_s=lease_s)
        if db.execute(sql.RENEW, {**granted, "epoch": lease.epoch}).fetchall():
            return None
        return refusals.lost(lease, owner_of(db, lease.run_id))

    def _mark_ready(self, db: sqlite3.Connection, runs: Sequence[int]) -> None:
        """Index answered runs; the former schema has no such index."""
        if self._connections.is_current:
            record_writes.mark_ready(db, runs, self._wall())

    def _stored(
        self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object], order: ListOrder = "updated"
    ) -> list[StoredRun]:
        rows = db.execute(f"{sql.RUNS} {where}", {**self._time(), **parameters}).fetchall()
        asked = record_writes.open_pauses(db, [row[0] for row in rows])
        return [_stored_run(row, asked.get(row[0], ()), order) for row in rows]

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


def _stored_run(row: Sequence[Any], asked: Iterable[OpenPause], order: ListOrder) -> StoredRun:
    key, run_id, pipeline, status, created_at, updated_at, epoch, held, records, owner, left_s, *rest = row
    queue, parent, tokens, cost_usd, expired, cancel, fingerprint, *times = rest
    started_at, ended_at, worked_s, retries, queue_key, priority, labels, wake_at, ready = times
    return StoredRun(
        run_id=RunId(restored(run_id)),
        pipeline=restored(pipeline),
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        epoch=epoch,
        leased=bool(held),
        records=records,
        **questions_and_waits(asked),
        wake_at=wake_at,
        ready=bool(ready),
        expired=bool(expired),
        owner=restored(owner) if held else None,
        left_s=left_s if held else None,
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
        last_owner=owner and restored(owner),
        tokens=tokens,
        cost_usd=cost_usd,
        cancel=cancel and restored(cancel),
        fingerprint=fingerprint,
        started_at=started_at,
        ended_at=ended_at,
        worked_s=worked_s,
        retries=retries,
        labels=labels_in(labels),
        key=restored(queue_key),
        priority=priority,
        cursor=cursor_text(order, changed_at(updated_at, ended_at), key),
    )
