"""In-memory store with a database's guarantees, for the process's life."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from .._core.labels import Labels
from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateTable
from .._core.policies.selection import NO_BELIEF, Belief, Evidence, learned
from .._core.policies.shared_budgets import BudgetClaim, BudgetSnapshot, StoredBudget
from .._core.records.records import (
    AT_ONCE,
    RETRYABLE,
    Admission,
    Append,
    AskedPause,
    CancelRequest,
    ClaimedRun,
    ClaimOrder,
    Lease,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    OwnerNotice,
    QuestionQuery,
    Record,
    RunCounts,
    RunFigures,
    RunQuery,
    StateGroup,
    StoredRun,
    StoredStatus,
    WorkerNote,
    has_ended,
)
from .._core.step_paths import ROOT, StepPath
from .._core.views.record_summaries import RecordSummary, light_of
from ..errors import LeaseLost, RunExists
from . import _question_lists as question_lists
from . import _record_rows as record_rows
from ._fork_safety import watch_forks
from ._lease_clock import LeaseClock, SystemClock
from ._memory_events import MemoryConversationRows, MemoryEvent, MemoryEvents
from ._memory_limits import MemoryBudgets, MemoryRates
from ._memory_runs import (
    MemoryCache,
    MemoryOutbox,
    MemoryRun,
    MemorySchedules,
    MemoryTransfer,
    change,
    end_waits,
    expire,
    next_runs,
)
from ._run_lists import changed_labels, figures_page, fits, groups_in, in_order
from ._store_port import Transaction, Verdict

FORKED = "fork"
"""Owner of a fork while it is created."""


class MemoryStore(MemoryEvents, MemorySchedules, MemoryRates, MemoryCache, MemoryTransfer):
    """Runs in memory; gone with the process.

    Args:
        clock: clock of leases, for tests.
        wall: wall clock of deadlines, for tests.

    Example:
        ```python
        store = MemoryStore()
        Flujo(Step("greet", str.upper), store=store).run("ada", run_id="r1")
        assert [run.state for run in RunClient(store).list()] == ["completed"]
        ```
    """

    between_machines = False
    """Whether workers of other machines reach it."""

    def __init__(self, *, clock: LeaseClock | None = None, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall
        self._runs: dict[RunId, MemoryRun] = {}
        self._workers: dict[str, WorkerNote] = {}
        self._schedules, self._rates, self._cache, self._conversations = {}, RateTable(), {}, MemoryConversationRows()
        self._budgets = MemoryBudgets(self._lasts, self._lost)
        self._duties: dict[str, tuple[str, float]] = {}
        self._outbox = MemoryOutbox()
        self._numbers = itertools.count(1)
        self._beliefs: dict[tuple[str, str], dict[str, tuple[Belief, float]]] = {}
        self._events: dict[tuple[str, str], MemoryEvent] = {}
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

    def claim(self, run_id: RunId, *, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        return self._claim(run_id, None, owner, lease_s, per_key)

    def take_over(self, run_id: RunId, *, dead: str, owner: str, lease_s: float, per_key: int | None = None) -> Lease:
        return self._claim(run_id, dead, owner, lease_s, per_key)

    def claim_next(self, order: ClaimOrder, *, owner: str, lease_s: float) -> list[ClaimedRun]:
        with self._lock:
            queued = [run for run in self._runs.values() if run.queue in order.queues]
            found = next_runs(queued, order, self._leased_keys(), self._wall())
            return [self._taken(run, owner, lease_s) for run in found]

    def claim_all(self, runs: Sequence[StoredRun], *, owner: str, lease_s: float) -> list[ClaimedRun]:
        with self._lock:
            return [
                attrs.evolve(self._taken(run, owner, lease_s), records=tuple(run.records))
                for seen in runs
                if (run := self._runs.get(seen.run_id)) is not None and self._is_unchanged(run, seen)
            ]

    def _is_unchanged(self, run: MemoryRun, seen: StoredRun) -> bool:
        free = not run.held(self._clock.now()) or (seen.owner is not None and run.owner == seen.owner)
        return run.epoch == seen.epoch and not has_ended(run.status) and free

    def ready_keys(self) -> list[tuple[str, str, int]]:
        with self._lock:
            ready = (run for run in self._runs.values() if run.parent is None and run.ready)
            found = Counter((run.queue, run.key) for run in ready)
            return [(queue, key, count) for (queue, key), count in found.items() if queue is not None]

    def _taken(self, run: MemoryRun, owner: str, lease_s: float) -> ClaimedRun:
        before = run.stored(self._clock.now())
        run.owner, run.epoch, run.lease_until = owner, run.epoch + 1, self._clock.now() + lease_s
        run.claimed(self._wall())
        lease = Lease(run_id=run.run_id, owner=owner, epoch=run.epoch)
        return ClaimedRun(lease=lease, run=before, records=tuple(run.records) if run.epoch == 1 else ())

    def _leased_keys(self, *, without: RunId | None = None) -> Counter[tuple[str, str]]:
        """Return the number of unexpired leases by queue and key."""
        now = self._clock.now()
        held = (run for run in self._runs.values() if run.held(now) and run.run_id != without)
        return Counter((run.queue, run.key) for run in held if run.queue is not None)

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        with self._lock:
            return [self._append(append) for append in batch]

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        with self._lock:
            run = self._run(run_id)
            if not has_ended(run.status):
                run.cancel = CancelRequest(reason=reason)
                if run.owner is None and run.status == "sleeping":
                    run.ready, run.wake_at = True, self._wall()

    def cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, OwnerNotice]:
        with self._lock:
            found = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
            return {run.run_id: run.notice for run in found if run.notice is not None}

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        with self._lock:
            return [self._renew(lease, lease_s) for lease in leases]

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        with self._lock:
            run = self._consume(run_id, path, token)
            run.add(record, run.updated_at)
            run.mark_ready(run.updated_at)

    def defer(self, run_id: RunId, path: StepPath, *, token: str, records: Sequence[Record], pause: OpenPause) -> None:
        with self._lock:
            run = self._consume(run_id, path, token)
            for record in records:
                run.add(record, run.updated_at)
            run.ask(pause, run.updated_at)
            self._outbox.add(run_id, pause.outbox, run.updated_at)
            run.mark_ready(run.updated_at)

    def expire(self, *, body: str) -> list[RunId]:
        with self._lock:
            wall = self._wall()
            return [run.run_id for run in self._runs.values() if expire(run, wall, body)]

    def next_due_s(self) -> float | None:
        with self._lock:
            waiting = [pause for run in self._runs.values() for pause in run.pauses if not pause.answered]
            due = [pause.asked.due_at for pause in waiting if pause.asked.due_at is not None]
            return min(due) - self._wall() if due else None

    def now(self) -> float:
        return self._wall()

    def due(self) -> int:
        with self._lock:
            wall = self._wall()
            asleep = [(run.wake_at, run) for run in self._runs.values() if not run.ready and run.wake_at is not None]
            due = sorted((wake_at, run.number) for wake_at, run in asleep if wake_at <= wall)[:AT_ONCE]
            numbers = {number for _, number in due}
            for _, run in asleep:
                run.ready = run.number in numbers
            return len(due)

    def next_wake_s(self, queues: Sequence[str] = ()) -> float | None:
        with self._lock:
            times = [run.wake_at for run in self._runs.values() if not run.ready and run.wake_at is not None]
            return min(times) - self._wall() if times else None

    def wake(self, run_id: RunId, path: StepPath | None = None, *, body: str) -> bool:
        with self._lock:
            run, wall = self._run(run_id), self._wall()
            asleep = [pause for pause in run.pauses if not pause.answered and pause.can_be_woken(path)]
            starts = path is None and run.status == "sleeping" and run.epoch == 0 and not run.ready
            if starts:
                run.ready, run.wake_at = True, wall
            return end_waits(run, asleep, body, wall) or starts

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        with self._lock:
            wall, kept = self._wall(), self._beliefs.get((name, category), {})
            return {arm: attrs.evolve(belief, idle_s=wall - at) for arm, (belief, at) in kept.items()}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        with self._lock:
            run = self._run(run_id)
            if any(each.kind == "rewarded" and each.path == path for each in run.records):
                raise record_rows.rewarded(run_id, path)
            run.add(record, self._wall())
            self._learn(evidence)

    def steer(self, run_id: RunId, *, record: Record, after: int) -> int | None:
        with self._lock:
            run = self._run(run_id)
            if has_ended(run.status):
                return None
            if run.steered > after:
                return 0
            run.add(record, self._wall())
            run.steered = run.last
            return run.last

    def _learn(self, evidence: Evidence) -> None:
        arms = self._beliefs.setdefault((evidence.name, evidence.category), {})
        before, _ = arms.get(evidence.arm, (NO_BELIEF, 0.0))
        arms[evidence.arm] = learned(before, evidence), self._wall()

    def get(self, run_id: RunId) -> StoredRun:
        with self._lock:
            return self._run(run_id).stored(self._clock.now())

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        with self._lock:
            return self._run(run_id).after(after)

    def scan(self, run_id: RunId, after: int = 0, limit: int | None = None) -> list[RecordSummary]:
        with self._lock:
            records = self._run(run_id).after(after)[:limit]
        return [light_of(record) for record in records]

    def record(self, run_id: RunId, seq: int) -> Record:
        with self._lock:
            found = self._run(run_id).after(max(seq, 1) - 1)[:1]
            if not found or found[0].seq != seq:
                raise record_rows.no_record(run_id, seq)
            return found[0]

    def compacted(self, run_id: RunId) -> int | None:
        with self._lock:
            return next((each.seq for each in self._run(run_id).records if each.kind == "compacted"), None)

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
            lease = self._admit(admission, FORKED, 0.0)
            if isinstance(lease, RunExists):
                raise lease
            self._append(Append(lease=lease, records=tuple(records), pauses=tuple(pauses), status=status, release=True))

    def retry(self, run_id: RunId, *, number: int, record: Record, queue: str | None) -> None:
        with self._lock:
            run, wall = self._run(run_id), self._wall()
            ended = run.status in RETRYABLE or (run.parent is not None and run.status == "completed")
            if not ended or run.retries != number - 1:
                raise record_rows.not_retryable(run_id, run.status)
            holder = self._holder(run.singleton)
            if holder is not None:
                raise record_rows.busy(run.singleton or "", holder.run_id)
            run.status, run.owner, run.cancel, run.ended_at = "running", None, None, None
            run.retries, run.queue, run.updated_at = number, run.queue or queue, wall
            run.ready, run.wake_at = True, wall
            run.add(record, wall)

    def set_labels(self, run_id: RunId, labels: Mapping[str, str], *, remove: Sequence[str] = ()) -> Labels:
        with self._lock:
            run = self._run(run_id)
            run.labels = changed_labels(run.labels, labels, remove)
            return run.labels

    def holder_of(self, singleton: str) -> RunId | None:
        with self._lock:
            holder = self._holder(singleton)
            return None if holder is None else holder.run_id

    def labels_of(self, run_ids: Sequence[RunId]) -> dict[RunId, Labels]:
        with self._lock:
            found = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
            return {run.run_id: run.labels for run in found if run.labels}

    def find(self, query: RunQuery) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            runs = [run.stored(now, query.order) for run in self._runs.values() if run.parent is None]
        by_id = query.search is not None and any(run.run_id.startswith(query.search) for run in runs)
        return in_order((run for run in runs if fits(run, query, by_id=by_id)), query.order, query.limit)

    def figures(
        self,
        query: RunQuery,
        *,
        labels: Sequence[str],
        period: tuple[float, float],
        ended: bool,
        after: RunFigures | None,
        limit: int,
    ) -> list[RunFigures]:
        found = self.find(attrs.evolve(query, order="created", limit=None, cursor=None))
        counted = (run for run in found if (run.ended_at is not None) == ended)
        return figures_page(counted, labels, period, after, limit)

    def counts(self) -> RunCounts:
        runs = self.find(RunQuery())
        return RunCounts(
            by_status=Counter(run.status for run in runs),
            abandoned=sum(run.status == "running" and not run.leased and not run.unclaimed for run in runs),
            questions=sum(len(run.pauses) for run in runs),
        )

    def groups(self, *, ended: bool = True) -> list[StateGroup]:
        return groups_in(self.find(RunQuery(is_open=not ended)))

    def asked(self, query: QuestionQuery) -> list[AskedPause]:
        with self._lock:
            found = [
                AskedPause(
                    run_id=run.run_id,
                    pause=pause.asked,
                    pipeline=run.pipeline,
                    labels=run.labels,
                    cursor=question_lists.cursor_of(query.order, pause.asked.due_at, pause.number),
                )
                for run in self._runs.values()
                for pause in run.pauses
                if run.parent is None and pause.is_question and not pause.answered
            ]
        return question_lists.page_of(found, query)

    def delete(self, run_ids: Sequence[RunId]) -> int:
        return self.delete_sized(run_ids)[0]

    def delete_sized(self, run_ids: Sequence[RunId]) -> tuple[int, int]:
        with self._lock:
            now, found = self._clock.now(), [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
            tops = {run.run_id: run for run in found if not run.held(now)}
            steps = {run.run_id: run for run in self._runs.values() if run.parent in tops}
            for run_id in {**tops, **steps}:
                del self._runs[run_id]
            self._budgets.forget([run_id for run_id in run_ids if run_id not in self._runs])
            self._outbox.forget(self._runs)
            return len(tops), sum(run.size() for run in {**tops, **steps}.values())

    def take_duty(self, name: str, *, owner: str, for_s: float) -> bool:
        with self._lock:
            wall, (holder, until) = self._wall(), self._duties.get(name, (owner, 0.0))
            if holder != owner and until > wall:
                return False
            self._duties[name] = owner, wall + for_s
            return True

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        with self._lock:
            lost = self._lost(lease)
            if lost is not None:
                raise lost
            return self._budgets.draw(lease, claims)

    def window_budgets(self) -> list[StoredBudget]:
        with self._lock:
            return self._budgets.windows()

    def purge_budgets(self, *, limit: int = 1000) -> int:
        with self._lock:
            return self._budgets.purge(self._wall(), limit)

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        with self._lock:
            now = self._clock.now()
            mine = [run for run in self._runs.values() if run.pipeline == pipeline and run.queue in queues]
            mine.sort(key=lambda run: math.inf if run.wake_at is None else run.wake_at)
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
                    run.mark_ready(self._wall())

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        with self._lock:
            for run in [self._runs[run_id] for run_id in run_ids if run_id in self._runs]:
                if run.parent is not None and run.status == "running":
                    held = run.held(self._clock.now())
                    run.cancel = CancelRequest(reason=reason) if held else None
                    run.status, run.owner = ("running", run.owner) if held else ("paused", None)
                    run.mark_ready(self._wall())

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
        """Collect appends and apply them at the block's end, without connection."""
        gathered = _Gathered(self)
        yield gathered
        self._commit(gathered.appends)

    def close(self) -> None:
        """Do nothing: runs live as long as the store object."""

    def before_fork(self) -> None:
        self._lock.acquire()
        self._forking = True

    def after_fork_in_parent(self) -> None:
        if self._forking:  # not if another thread created the store during the fork
            self._forking = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Continue with a private copy in the child."""
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

    def _claim(self, run_id: RunId, dead: str | None, owner: str, lease_s: float, per_key: int | None) -> Lease:
        with self._lock:
            run, now = self._run(run_id), self._clock.now()
            if run.held(now) and run.owner != dead:
                raise record_rows.leased(run_id, run.owner, run.lease_until - now)
            if per_key is not None and self._leased_keys(without=run_id)[run.queue or "", run.key] >= per_key:
                raise record_rows.key_is_full(run_id, run.key, per_key)
            run.owner, run.epoch, run.lease_until = owner, run.epoch + 1, now + lease_s
            run.claimed(self._wall())
            return Lease(run_id=run_id, owner=owner, epoch=run.epoch)

    def _consume(self, run_id: RunId, path: StepPath, token: str) -> MemoryRun:
        """Consume an open pause for an answer; return its run."""
        run = self._runs.get(run_id)
        pauses = run.pauses if run else []
        fitting = [pause for pause in pauses if (pause.asked.path, pause.asked.token) == (path, token)]
        if run is None or not fitting:
            raise record_rows.not_paused(run_id, path)
        if fitting[-1].answered and not fitting[-1].expired:
            raise record_rows.already_answered(run_id, path)
        if fitting[-1].is_over(self._wall()):
            raise record_rows.expired(run_id, path)
        fitting[-1].answered, run.updated_at = True, self._wall()
        return run

    def _run(self, run_id: RunId) -> MemoryRun:
        if run_id not in self._runs:
            raise record_rows.not_found(run_id)
        return self._runs[run_id]

    def _admit(self, admission: Admission, owner: str | None, lease_s: float) -> Lease | RunExists:
        if admission.run_id in self._runs:
            return record_rows.exists(admission.run_id)
        holder = self._holder(admission.singleton)
        if holder is not None and not admission.replaces:
            return record_rows.busy(admission.singleton or "", holder.run_id)
        if holder is not None:
            holder.singleton = None
            holder.cancel = CancelRequest(reason=record_rows.replaced_by(admission.run_id))
        self._runs[admission.run_id] = run = self._new_run(admission, owner, lease_s)
        replaced = None if holder is None else holder.run_id
        return Lease(run_id=admission.run_id, owner=owner or "", epoch=run.epoch, replaced=replaced)

    def _holder(self, singleton: str | None) -> MemoryRun | None:
        """Return the open run that has a key."""
        if singleton is None:
            return None
        runs = (run for run in self._runs.values() if run.singleton == singleton)
        return next((run for run in runs if not has_ended(run.status)), None)

    def _new_run(self, admission: Admission, owner: str | None, lease_s: float) -> MemoryRun:
        wall, above = self._wall(), self._runs.get(admission.parent) if admission.parent else None
        run = MemoryRun(
            run_id=admission.run_id,
            pipeline=admission.pipeline,
            owner=owner,
            epoch=0 if owner is None else 1,
            queue=admission.queue,
            parent=admission.parent,
            fingerprint=admission.fingerprint,
            labels=admission.labels,
            singleton=admission.singleton,
            key=admission.key if above is None else above.key,
            priority=admission.priority if above is None else above.priority,
            started_at=None if owner in (None, FORKED) else wall,
            claimed_at=None if owner is None else wall,
            lease_until=self._clock.now() + lease_s,
            created_at=wall,
            updated_at=wall,
            number=next(self._numbers),
        )
        if owner is None:
            run.wake_at = record_rows.starts_at(admission, wall)
            run.ready = run.wake_at <= wall
            run.status = "running" if run.ready else "sleeping"
        run.add(Record(kind="admitted", path=ROOT, body=admission.body), wall)
        return run

    def _append(self, append: Append) -> Verdict:
        lease = append.lease
        refused = (
            self._lost(lease) or self._runs[lease.run_id].refusal(append) or self.write_messages(append.conversation)
        )
        if refused is not None:
            return refused
        run, wall = self._runs[lease.run_id], self._wall()
        for record in append.records:
            run.add(record, wall)
        if append.compaction is not None:
            run.compact(append.compaction)
        run.withdraw(append.withdrawn)
        for pause in append.pauses:
            run.ask(pause, wall)
            if pause.event is not None:
                self.take_buffered(run, pause, wall)
        change(run, append, wall)
        for evidence in append.evidence:
            self._learn(evidence)
        for entry in append.cached:
            self._cache[entry.key] = entry, wall + entry.ttl_s
        for share in append.shares:
            self._budgets.write(append.lease, share)
        self._outbox.add(append.lease.run_id, append.outbox, wall)
        return run.notice

    def claim_messages(self, hooks: Sequence[str], *, owner: str, for_s: float, limit: int) -> list[OutboxMessage]:
        with self._lock:
            return self._outbox.claim(hooks, owner, for_s, limit, self._wall())

    def settle_message(self, message_id: str, *, owner: str, error: str | None, after_s: float | None) -> None:
        with self._lock:
            self._outbox.settle(message_id, owner, error, after_s, self._wall())

    def messages(
        self, *, status: OutboxStatus | None = None, run_id: RunId | None = None, limit: int | None = None
    ) -> list[OutboxMessage]:
        with self._lock:
            return self._outbox.listed(status, run_id, limit)

    def retry_messages(self, message_ids: Sequence[str] | None = None) -> int:
        with self._lock:
            return self._outbox.retry(message_ids, self._wall())

    def _renew(self, lease: Lease, lease_s: float) -> LeaseLost | None:
        lost = self._lost(lease)
        if lost is None:
            self._runs[lease.run_id].lease_until = self._clock.now() + lease_s
        return lost

    def _lasts(self, lease: Lease) -> bool:
        """Return whether a lease is still held."""
        run = self._runs.get(lease.run_id)
        return run is not None and run.belongs_to(lease) and run.held(self._clock.now())

    def _lost(self, lease: Lease) -> LeaseLost | None:
        run = self._runs.get(lease.run_id)
        if run is not None and run.belongs_to(lease):
            return None
        return record_rows.lost(lease, None if run is None else (run.owner, run.epoch))


class _Gathered:
    """The appends of one transaction."""

    connection = None

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.appends: list[Append] = []

    def append(self, append: Append) -> None:
        self._store.check(append)
        self.appends.append(append)
