"""A store in the process's memory: the same promises as a database's, for as long as the process lives."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from .._core.light_records import LightRecord, light_of
from .._core.outcomes import RunId
from .._core.paths import ROOT, StepPath
from .._core.records import (
    Admission,
    Append,
    CancelRequest,
    Lease,
    OpenPause,
    Record,
    RunQuery,
    StoredRun,
    StoredStatus,
    WorkerNote,
    has_ended,
)
from .._core.selection import NO_BELIEF, Belief, Evidence, learned
from .._core.shared_budgets import BudgetClaim, BudgetTold
from ..errors import LeaseLost, RunExists
from . import _refusals as refusals
from ._clock import LeaseClock, SystemClock
from ._forking import watch_forks
from ._memory_budgets import MemoryBudgets
from ._memory_run import MemoryRun, change, expire
from ._port import Transaction, Verdict
from ._rows import read_cursor


class MemoryStore:
    """Runs in memory; gone with the process."""

    between_machines = False
    """Whether workers of other machines reach it."""

    def __init__(self, *, clock: LeaseClock | None = None, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall
        self._runs: dict[RunId, MemoryRun] = {}
        self._workers: dict[str, WorkerNote] = {}
        self._budgets = MemoryBudgets(self._lasts)
        self._numbers = itertools.count(1)
        self._beliefs: dict[tuple[str, str], dict[str, tuple[Belief, float]]] = {}
        self._lock = threading.Lock()
        self._forking = False
        watch_forks(self)

    def admit(self, admission: Admission, *, owner: str, lease_s: float) -> Lease:
        [answer] = self.admit_all([admission], owner=owner, lease_s=lease_s)
        if isinstance(answer, RunExists):
            raise answer
        return answer

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        with self._lock:
            return [self._admit(admission, owner, lease_s) for admission in admissions]

    def claim(self, run_id: RunId, *, owner: str, lease_s: float) -> Lease:
        return self._claim(run_id, None, owner, lease_s)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float) -> Lease:
        return self._claim(run_id, dead, owner, lease_s)

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        with self._lock:
            return [self._append(append) for append in batch]

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        with self._lock:
            run = self._run(run_id)
            if not has_ended(run.status):
                run.cancel = CancelRequest(reason=reason)

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelRequest]:
        with self._lock:
            found = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
            return {run.run_id: run.cancel for run in found if run.cancel is not None}

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        with self._lock:
            return [self._renew(lease, lease_s) for lease in leases]

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        with self._lock:
            run = self._consume(run_id, path, token)
            run.add(record, run.updated_at)

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        with self._lock:
            run = self._consume(run_id, path, token)
            for record in records:
                run.add(record, run.updated_at)
            run.ask(pause, run.updated_at)

    def expire(self, *, body: str) -> list[RunId]:
        with self._lock:
            wall = self._wall()
            return [run.run_id for run in self._runs.values() if expire(run, wall, body)]

    def next_due_s(self) -> float | None:
        with self._lock:
            waiting = [pause for run in self._runs.values() for pause in run.pauses if not pause.answered]
            due = [pause.asked.due_at for pause in waiting if pause.asked.due_at is not None]
            return min(due) - self._wall() if due else None

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        with self._lock:
            wall, kept = self._wall(), self._beliefs.get((name, category), {})
            return {arm: attrs.evolve(belief, idle_s=wall - at) for arm, (belief, at) in kept.items()}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        with self._lock:
            run = self._run(run_id)
            if any(each.kind == "rewarded" and each.path == path for each in run.records):
                raise refusals.rewarded(run_id, path)
            run.add(record, self._wall())
            self._learn(evidence)

    def _learn(self, told: Evidence) -> None:
        arms = self._beliefs.setdefault((told.name, told.category), {})
        before, _ = arms.get(told.arm, (NO_BELIEF, 0.0))
        arms[told.arm] = learned(before, told), self._wall()

    def get(self, run_id: RunId) -> StoredRun:
        with self._lock:
            return self._run(run_id).stored(self._clock.now())

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        with self._lock:
            return self._run(run_id).records[max(after, 0) :]

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[LightRecord]:
        with self._lock:
            records = self._run(run_id).records[max(after, 0) :][:limit]
        return [light_of(record) for record in records]

    def record(self, run_id: RunId, seq: int) -> Record:
        with self._lock:
            records = self._run(run_id).records
            if not 0 < seq <= len(records):
                raise refusals.no_record(run_id, seq)
            return records[seq - 1]

    def look(self, run_ids: Sequence[RunId]) -> dict[RunId, StoredRun]:
        with self._lock:
            now = self._clock.now()
            return {run_id: self._runs[run_id].stored(now) for run_id in run_ids if run_id in self._runs}

    def admit_fork(
        self,
        admission: Admission,
        records: Sequence[Record],
        *,
        pauses: Sequence[OpenPause] = (),
        status: StoredStatus = "running",
    ) -> None:
        with self._lock:
            lease = self._admit(admission, "fork", 0.0)
            if isinstance(lease, RunExists):
                raise lease
            self._append(Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True))

    def find(self, query: RunQuery) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            runs = [run.stored(now) for run in reversed(self._runs.values()) if run.parent is None]
        fitting = [run for run in runs if _fits(run, query)]
        fitting.sort(key=lambda run: read_cursor(run.cursor), reverse=True)
        return fitting[: query.limit]

    def delete(self, run_ids: Sequence[RunId]) -> int:
        with self._lock:
            now, before = self._clock.now(), len(self._runs)
            for run_id in run_ids:
                if run_id in self._runs and not self._runs[run_id].held(now):
                    del self._runs[run_id]
            deleted = before - len(self._runs)
            for child in [run for run in self._runs.values() if run.parent in run_ids]:
                if child.parent not in self._runs:
                    del self._runs[child.run_id]
            self._budgets.forget([run_id for run_id in run_ids if run_id not in self._runs])
            return deleted

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetTold]:
        with self._lock:
            lost = self._lost(lease)
            if lost is not None:
                raise lost
            return self._budgets.draw(lease, claims)

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            mine = [run for run in self._runs.values() if run.pipeline == pipeline and run.queue in queues]
            return [run.stored(now) for run in mine if run.wants_worker(now, host)][:limit]

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            mine = (run for run in self._runs.values() if run.pipeline == pipeline and run.queue is None)
            left = (run for run in mine if run.parent is None and run.updated_at <= updated_before)
            return [run.stored(now) for run in left if run.wants_worker(now, host)][:limit]

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            return [self._runs[run_id].stored(now) for run_id in run_ids if run_id in self._runs]

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        with self._lock:
            for run in [self._runs[run_id] for run_id in run_ids if run_id in self._runs]:
                if run.parent is not None and not has_ended(run.status):
                    run.cancel = None
                    run.status = run.status if run.owner is not None else "running"

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        with self._lock:
            for run in [self._runs[run_id] for run_id in run_ids if run_id in self._runs]:
                if run.parent is not None and run.status == "running":
                    held = run.held(self._clock.now())
                    run.cancel = CancelRequest(reason=reason) if held else None
                    run.status = "running" if held else "paused"

    def children(self, run_id: RunId) -> list[RunId]:
        with self._lock:
            return [run.run_id for run in self._runs.values() if run.parent == run_id]

    def sign_on(self, worker: WorkerNote) -> None:
        with self._lock:
            self._workers[worker.name] = attrs.evolve(worker, seen_at=self._wall())

    def sign_off(self, name: str) -> None:
        with self._lock:
            self._workers.pop(name, None)

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        with self._lock:
            since = self._wall() - within_s
            return sorted((each for each in self._workers.values() if each.seen_at >= since), key=lambda it: it.name)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Appends are gathered and written at the end of the block; there is no connection."""
        gathered = _Gathered(self)
        yield gathered
        self._commit(gathered.appends)

    def close(self) -> None:
        """Nothing to give up: the runs stay for as long as the store is referred to."""

    def before_fork(self) -> None:
        self._lock.acquire()
        self._forking = True

    def after_fork_in_parent(self) -> None:
        if self._forking:  # not if the store was made by another thread during the fork
            self._forking = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """The child goes on with a copy of its own."""
        self._lock, self._forking = threading.Lock(), False

    def check(self, append: Append) -> None:
        """`LeaseLost` if the append would be refused now."""
        with self._lock:
            lost = self._lost(append.lease)
        if lost is not None:
            raise lost

    def _commit(self, appends: Sequence[Append]) -> None:
        with self._lock:
            refused = [lost for append in appends if (lost := self._lost(append.lease))]
            if refused:
                raise refused[0]
            for append in appends:
                self._append(append)

    def _claim(self, run_id: RunId, dead: str | None, owner: str, lease_s: float) -> Lease:
        with self._lock:
            run, now = self._run(run_id), self._clock.now()
            if run.held(now) and run.owner != dead:
                raise refusals.leased(run_id, run.owner, run.lease_until - now)
            run.owner, run.epoch, run.lease_until = owner, run.epoch + 1, now + lease_s
            return Lease(run_id=run_id, owner=owner, epoch=run.epoch)

    def _consume(self, run_id: RunId, path: StepPath, token: str) -> MemoryRun:
        """Take a pause that waits, for an answer; the run that it belongs to."""
        run = self._runs.get(run_id)
        pauses = run.pauses if run else []
        fitting = [pause for pause in pauses if (pause.asked.path, pause.asked.token) == (path, token)]
        if run is None or not fitting:
            raise refusals.not_paused(run_id, path)
        if fitting[-1].answered and not fitting[-1].expired:
            raise refusals.already_answered(run_id, path)
        if fitting[-1].is_over(self._wall()):
            raise refusals.expired(run_id, path)
        fitting[-1].answered, run.updated_at = True, self._wall()
        return run

    def _run(self, run_id: RunId) -> MemoryRun:
        if run_id not in self._runs:
            raise refusals.not_found(run_id)
        return self._runs[run_id]

    def _admit(self, admission: Admission, owner: str | None, lease_s: float) -> Lease | RunExists:
        if admission.run_id in self._runs:
            return refusals.exists(admission.run_id)
        self._runs[admission.run_id] = run = self._new_run(admission, owner, lease_s)
        return Lease(run_id=admission.run_id, owner=owner or "", epoch=run.epoch)

    def _new_run(self, admission: Admission, owner: str | None, lease_s: float) -> MemoryRun:
        wall = self._wall()
        run = MemoryRun(
            run_id=admission.run_id,
            pipeline=admission.pipeline,
            owner=owner,
            epoch=0 if owner is None else 1,
            queue=admission.queue,
            parent=admission.parent,
            lease_until=self._clock.now() + lease_s,
            created_at=wall,
            updated_at=wall,
            number=next(self._numbers),
        )
        run.add(Record(kind="admitted", path=ROOT, body=admission.body), wall)
        return run

    def _append(self, append: Append) -> Verdict:
        lost = self._lost(append.lease)
        if lost is not None:
            return lost
        run, wall = self._runs[append.lease.run_id], self._wall()
        for record in append.records:
            run.add(record, wall)
        run.withdraw(append.withdrawn)
        for pause in append.pauses:
            run.ask(pause, wall)
        change(run, append, wall)
        for told in append.evidence:
            self._learn(told)
        for share in append.shares:
            self._budgets.write(append.lease, share)
        return run.cancel

    def _renew(self, lease: Lease, lease_s: float) -> LeaseLost | None:
        lost = self._lost(lease)
        if lost is None:
            self._runs[lease.run_id].lease_until = self._clock.now() + lease_s
        return lost

    def _lasts(self, lease: Lease) -> bool:
        """Whether a lease is still held."""
        run = self._runs.get(lease.run_id)
        return run is not None and run.belongs_to(lease) and run.held(self._clock.now())

    def _lost(self, lease: Lease) -> LeaseLost | None:
        run = self._runs.get(lease.run_id)
        if run is not None and run.belongs_to(lease):
            return None
        return refusals.lost(lease, None if run is None else (run.owner, run.epoch))


class _Gathered:
    """The appends of one transaction."""

    connection = None

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.appends: list[Append] = []

    def append(self, append: Append) -> None:
        self._store.check(append)
        self.appends.append(append)


def _fits(run: StoredRun, query: RunQuery) -> bool:
    return (
        query.status in (None, run.status)
        and query.pipeline in (None, run.pipeline)
        and (query.updated_before is None or run.updated_at < query.updated_before)
        and (query.updated_after is None or run.updated_at > query.updated_after)
        and (not query.abandoned or (run.status == "running" and not run.leased and not run.unclaimed))
        and (query.cursor is None or read_cursor(run.cursor) < read_cursor(query.cursor))
        and (query.search is None or _found(run, query.search))
    )


def _found(run: StoredRun, search: str) -> bool:
    return run.run_id.startswith(search) or search.lower() in run.pipeline.lower()
