"""Store with injected faults, for tests of code that uses a store.

Calls are counted from 1, over all methods. A transaction counts when it is opened, at each append in it, and at its
commit.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from .._core.outcomes import RunId
from .._core.policies.selection import Belief, Evidence
from .._core.policies.shared_budgets import BudgetClaim, BudgetSnapshot
from .._core.records.records import (
    Admission,
    Append,
    AskedPause,
    Lease,
    OpenPause,
    OwnerNotice,
    QuestionQuery,
    Record,
    RunCounts,
    RunQuery,
    StoredRun,
    StoredStatus,
    WorkerNote,
)
from .._core.step_paths import StepPath
from .._core.views.record_summaries import RecordSummary
from ..errors import LeaseLost, RunExists, StoreError
from ..stores._store_port import Store, Transaction, Verdict


def store_faults() -> dict[str, StoreError]:
    """Return typical store errors: database busy, full, broken or away."""
    return {
        "busy": _caused("the database is locked", sqlite3.OperationalError("database is locked")),
        "full": _caused("the disk is full", sqlite3.OperationalError("database or disk is full")),
        "I/O error": _caused("the disk is broken", sqlite3.OperationalError("disk I/O error")),
        "connection lost": _caused("the server is away", ConnectionResetError("connection reset by peer")),
    }


class FaultyStore:
    """Passes every call on to a store, except those that fail."""

    def __init__(
        self,
        store: Store,
        *,
        fail_at: int | None = None,
        times: int = 1,
        error: BaseException | None = None,
        when: Literal["before", "after"] = "before",
        hold_at: int | None = None,
        hold_s: float = 0.0,
    ) -> None:
        """Fail call number `fail_at` and the `times - 1` after it.

        `before` fails without an effect, `after` fails after the effect, like a lost reply. Call number `hold_at`
        blocks its thread for `hold_s` seconds first.
        """
        self.calls: list[str] = []
        """The names of the calls so far, in order."""
        self._store = store
        self._fail_at, self._times, self._when = fail_at, times, when
        self._error = error or StoreError("the store fails, as scripted")
        self._hold_at, self._hold_s = hold_at, hold_s
        self._lock = threading.Lock()

    @property
    def place(self) -> str | None:
        """Return the place of the store below; not counted."""
        return getattr(self._store, "place", None)

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        with self.counted("admit"):
            return self._store.admit(admission, owner=owner, lease_s=lease_s)

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        with self.counted("admit_all"):
            return self._store.admit_all(admissions, owner=owner, lease_s=lease_s)

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        with self.counted("claim"):
            return self._store.claim(run_id, owner=owner, lease_s=lease_s)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        with self.counted("take_over"):
            return self._store.take_over(run_id, dead=dead, owner=owner, lease_s=lease_s)

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        with self.counted("request_cancel"):
            self._store.request_cancel(run_id, reason=reason)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OwnerNotice]:
        """Uncounted: it is polled, and counts must not depend on time."""
        return self._store.cancel_requests(run_ids)

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Uncounted if it only records step starts, written by time."""
        if all(record.kind == "started" and not append.release for append in batch for record in append.records):
            return self._store.append(batch)
        with self.counted("append"):
            return self._store.append(batch)

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        with self.counted("renew"):
            return self._store.renew(leases, lease_s=lease_s)

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        with self.counted("answer"):
            self._store.answer(run_id, path, token=token, record=record)

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        with self.counted("defer"):
            self._store.defer(run_id, path, token=token, records=records, pause=pause)

    def expire(self, *, body: str) -> list[RunId]:
        """Pass through without counting: it is polled by time."""
        return self._store.expire(body=body)

    def next_due_s(self) -> float | None:
        return self._store.next_due_s()

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        with self.counted("beliefs"):
            return self._store.beliefs(name, category)

    def steer(self, run_id: RunId, *, record: Record, after: int) -> int | None:
        with self.counted("steer"):
            return self._store.steer(run_id, record=record, after=after)

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        with self.counted("reward"):
            self._store.reward(run_id, path, record=record, evidence=evidence)

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        with self.counted("draw"):
            return self._store.draw(lease, claims)

    def get(self, run_id: RunId) -> StoredRun:
        with self.counted("get"):
            return self._store.get(run_id)

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        with self.counted("read"):
            return self._store.read(run_id, after=after)

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[RecordSummary]:
        with self.counted("scan"):
            return self._store.scan(run_id, after, limit)

    def record(self, run_id: RunId, seq: int) -> Record:
        with self.counted("record"):
            return self._store.record(run_id, seq)

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        """Pass through without counting: it is polled by time."""
        return self._store.look(run_ids)

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        with self.counted("admit_fork"):
            self._store.admit_fork(admission, records, pauses=pauses, status=status)

    def find(self, query: RunQuery) -> list[StoredRun]:
        with self.counted("find"):
            return self._store.find(query)

    def counts(self) -> RunCounts:
        with self.counted("counts"):
            return self._store.counts()

    def asked(self, query: QuestionQuery) -> list[AskedPause]:
        with self.counted("asked"):
            return self._store.asked(query)

    def delete(self, run_ids: Sequence[RunId]) -> int:
        with self.counted("delete"):
            return self._store.delete(run_ids)

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        """Pass through without counting: workers poll it."""
        return self._store.wanting(pipeline=pipeline, queues=queues, host=host, limit=limit)

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        """Pass through without counting: workers poll it."""
        return self._store.orphans(pipeline=pipeline, host=host, updated_before=updated_before, limit=limit)

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        """Pass through without counting."""
        return self._store.standing(run_ids)

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        with self.counted("requeue"):
            self._store.requeue(run_ids)

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        with self.counted("park"):
            self._store.park(run_ids, reason=reason)

    def children(self, run_id: RunId) -> list[RunId]:
        with self.counted("children"):
            return self._store.children(run_id)

    def sign_on(self, worker: WorkerNote) -> None:
        """Pass through without counting."""
        self._store.sign_on(worker)

    def sign_off(self, name: str) -> None:
        """Pass through without counting."""
        self._store.sign_off(name)

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        """Pass through without counting."""
        return self._store.signed_on(within_s=within_s)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self.counted("transaction"):
            pass
        with self._store.transaction() as transaction:
            yield _FaultyTransaction(transaction, self)
            fate = self._count("commit")
            if fate == "before":
                raise self._error
        if fate == "after":
            raise self._error

    def close(self) -> None:
        """Close the store below; never fails, and is not counted."""
        self._store.close()

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count one call, which may fail before or after the block."""
        fate = self._count(name)
        if fate == "before":
            raise self._error
        yield
        if fate == "after":
            raise self._error

    def _count(self, name: str) -> Literal["before", "after", "never"]:
        with self._lock:
            self.calls.append(name)
            number = len(self.calls)
        if number == self._hold_at:
            time.sleep(self._hold_s)
        fails = self._fail_at is not None and self._fail_at <= number < self._fail_at + self._times
        return self._when if fails else "never"


class _FaultyTransaction:
    """Transaction whose appends may fail."""

    def __init__(self, transaction: Transaction, store: FaultyStore) -> None:
        self._transaction = transaction
        self._store = store
        self.connection: object = transaction.connection

    def append(self, append: Append) -> None:
        with self._store.counted("transaction.append"):
            self._transaction.append(append)


def _caused(message: str, cause: Exception) -> StoreError:
    error = StoreError(message)
    error.__cause__ = cause
    return error
