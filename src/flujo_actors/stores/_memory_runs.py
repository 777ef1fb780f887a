"""Runs, schedules, outbox and cache of an in-memory store.

Sections:

- One run of a store in memory.
- Schedules, which fire while the process lives.
- Export and import of whole runs.
- Messages to webhooks.
- Outputs of steps.
"""

from __future__ import annotations

import bisect
import itertools
import sys
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

import attrs

from .._core.attempt_results import CancelPending
from .._core.labels import NO_LABELS, Labels
from .._core.outcomes import RunId
from .._core.policies.claim_order import in_turns, rotated
from .._core.policies.schedule_rules import StoredSchedule
from .._core.records.records import (
    TIMED_OUT,
    Admission,
    Append,
    CacheEntry,
    CancelRequest,
    ClaimOrder,
    Compaction,
    ItemRow,
    Lease,
    ListOrder,
    MessageNotice,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    OwnerNotice,
    Record,
    StoredRun,
    StoredStatus,
    has_ended,
)
from .._core.step_paths import StepPath
from ..errors import RunExists
from . import _record_rows as record_rows
from ._record_rows import questions_and_waits, settled_status
from ._run_lists import changed_at, cursor_text

# --- One run of a store in memory ---------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class MemoryPause:
    """A pause, and whether it still waits."""

    asked: OpenPause
    answered: bool = False
    expired: bool = False
    """Whether time consumed it."""
    number: int = attrs.field(factory=itertools.count(1).__next__)
    """Place in the order of all pauses."""

    @property
    def is_question(self) -> bool:
        return self.asked.wait is None

    def can_be_woken(self, path: StepPath | None) -> bool:
        return self.asked.wait in ("sleep", "rate", "budget") and path in (None, self.asked.path)

    def is_over(self, wall: float) -> bool:
        return self.expired or (self.asked.due_at is not None and self.asked.due_at <= wall)


@attrs.define(kw_only=True, eq=False)
class MemoryRun:
    """All that is known of one run."""

    run_id: RunId
    pipeline: str
    owner: str | None
    epoch: int
    lease_until: float
    created_at: float
    updated_at: float
    status: StoredStatus = "running"
    records: list[Record] = attrs.Factory(list)
    pauses: list[MemoryPause] = attrs.Factory(list)
    cancel: CancelRequest | None = None
    steered: int = 0
    """Number of its newest message to a granular step."""
    queue: str | None = None
    parent: RunId | None = None
    number: int = 0
    """Number of the run in its store."""
    tokens: int = 0
    cost_usd: float = 0.0
    expired: bool = False
    fingerprint: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    claimed_at: float | None = None
    worked_s: float = 0.0
    retries: int = 0
    labels: Labels = NO_LABELS
    singleton: str | None = None
    key: str = ""
    priority: int = 0
    wake_at: float | None = None
    ready: bool = False

    def size(self) -> int:
        """Return the bytes of the record bodies."""
        return sum(len(record.body.encode("utf-8", "surrogatepass")) for record in self.records)

    def claimed(self, wall: float) -> None:
        self.claimed_at = wall
        self.ready, self.wake_at = False, None
        if self.epoch == 1:
            self.status = "running"
        else:
            expire(self, wall, TIMED_OUT)
        self.started_at = wall if self.started_at is None else self.started_at

    def held(self, now: float) -> bool:
        return self.owner is not None and now < self.lease_until

    def belongs_to(self, lease: Lease) -> bool:
        return self.owner == lease.owner and self.epoch == lease.epoch

    def add(self, record: Record, wall: float) -> None:
        self.records.append(attrs.evolve(record, seq=self.last + 1, at=wall))

    @property
    def notice(self) -> OwnerNotice | None:
        """Return the news for the owner."""
        return self.cancel or (MessageNotice(seq=self.steered) if self.steered else None)

    def refusal(self, append: Append) -> CancelPending | None:
        """Return the refusal of an append to a cancelled run."""
        return CancelPending(self.cancel) if append.unless_cancelled and self.cancel is not None else None

    @property
    def last(self) -> int:
        """Return the number of the last record."""
        return self.records[-1].seq if self.records else 0

    def after(self, seq: int) -> list[Record]:
        """Return the records after a number; some may have been compacted."""
        if self.last == len(self.records):
            return self.records[max(seq, 0) :]
        return self.records[bisect.bisect_right(self.records, seq, key=lambda record: record.seq) :]

    def compact(self, compaction: Compaction) -> None:
        bases = (each.seq for each in self.records if each.kind == "compacted" and each.path == compaction.base)
        base = max(bases, default=0)
        dropped = {each.seq for each in self.records if each.seq < base and compaction.drops(each)}
        paths = {each.path for each in self.records if each.seq in dropped}
        self.records = [each for each in self.records if each.seq not in dropped]
        self.pauses = [each for each in self.pauses if not each.answered or each.asked.path not in paths]

    def ask(self, pause: OpenPause, wall: float) -> None:
        due_at = pause.due_at if pause.timeout_s is None else wall + pause.timeout_s
        self.pauses = [old for old in self.pauses if not _replaced(old, pause)]
        self.pauses.append(MemoryPause(asked=attrs.evolve(pause, due_at=due_at, asked_at=wall)))

    def withdraw(self, places: Sequence[StepPath]) -> None:
        self.pauses = [pause for pause in self.pauses if pause.answered or pause.asked.path not in places]

    def stored(self, now: float, order: ListOrder = "updated") -> StoredRun:
        return StoredRun(
            run_id=self.run_id,
            pipeline=self.pipeline,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            epoch=self.epoch,
            leased=self.held(now),
            records=self.last,
            **questions_and_waits(self.open_pauses()),
            wake_at=self.wake_at,
            ready=self.ready,
            expired=self.expired,
            owner=self.owner if self.held(now) else None,
            left_s=self.lease_until - now if self.held(now) else None,
            queue=self.queue,
            parent=self.parent,
            last_owner=self.owner,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            cancel=None if self.cancel is None else self.cancel.reason,
            fingerprint=self.fingerprint,
            started_at=self.started_at,
            ended_at=self.ended_at,
            worked_s=self.worked_s,
            retries=self.retries,
            labels=self.labels,
            key=self.key,
            priority=self.priority,
            cursor=cursor_text(order, changed_at(self.updated_at, self.ended_at), self.number),
        )

    def open_pauses(self) -> list[OpenPause]:
        """Return the open questions and waits, oldest first."""
        return [pause.asked for pause in self.pauses if not pause.answered]

    def mark_ready(self, wall: float) -> None:
        """Decide when a run without an owner can be claimed."""
        self.ready, self.wake_at = False, None
        if self.owner is not None or has_ended(self.status):
            return
        due = [pause.due_at for pause in self.open_pauses() if pause.due_at is not None]
        if self.status == "running":
            self.ready, self.wake_at = True, self.created_at
        elif self.parent is None and (self.expired or not self.open_pauses()):
            self.ready, self.wake_at = True, wall
        else:
            self.wake_at = min(due, default=None)

    def wants_worker(self, now: float, host: str) -> bool:
        if self.owner is None:
            return self.ready
        return not has_ended(self.status) and (not self.held(now) or self.owner.startswith(host))

    def is_next(self, order: ClaimOrder, wall: float) -> bool:
        """Return whether the order may select the run."""
        if not self.ready or self.cancel is not None:
            return False
        if self.epoch == 0 and self.status == "running" and self.created_at > wall - order.waiting_s:
            return False
        version = order.fingerprint is None or self.fingerprint in (None, order.fingerprint)
        return version and self.pipeline == order.pipeline and self.run_id not in order.without


def next_runs(
    queued: Sequence[MemoryRun], order: ClaimOrder, leased: Counter[tuple[str, str]], wall: float
) -> list[MemoryRun]:
    """Return the next of these runs in an order."""
    tickets = () if any(run.key or run.priority for run in queued) else order.tickets
    runs = [run for run in queued if run.is_next(order, wall)]
    runs.sort(key=lambda run: (run.run_id not in tickets, run.wake_at or 0.0))
    found: list[MemoryRun] = []
    for queue in order.queues:
        for _, group in itertools.groupby(sorted(runs, key=_by_priority), key=_by_priority):
            by_key: dict[str, list[MemoryRun]] = {}
            for run in group:
                if run.queue == queue:
                    by_key.setdefault(run.key, []).append(run)
            rooms = None if order.per_key is None else {key: order.per_key - leased[queue, key] for key in by_key}
            turns = {key: by_key[key] for key in rotated(by_key, order.after.get(queue))}
            found += in_turns(turns, order.limit - len(found), rooms)
    return found


def _by_priority(run: MemoryRun) -> int:
    return -run.priority


def _replaced(old: MemoryPause, new: OpenPause) -> bool:
    return old.asked.path == new.path and (not old.answered or old.asked.token == new.token)


def expire(run: MemoryRun, wall: float, body: str) -> bool:
    """End the timed-out pauses of a run; return whether there were any."""
    return end_waits(run, [pause for pause in run.pauses if not pause.answered and pause.is_over(wall)], body, wall)


def end_waits(run: MemoryRun, ended: Sequence[MemoryPause], body: str, wall: float) -> bool:
    """Consume pauses by time or by an event, each with a record."""
    for pause in ended:
        pause.answered = pause.expired = run.expired = True
        run.updated_at = wall
        run.add(Record(kind="answered", path=pause.asked.path, body=body), wall)
    if ended:
        run.mark_ready(wall)
    return bool(ended)


def change(run: MemoryRun, append: Append, wall: float) -> None:
    """Apply an append's changes to a run other than its records."""
    run.updated_at = wall
    run.status = append.status or run.status
    run.tokens = run.tokens if append.tokens is None else append.tokens
    run.cost_usd = run.cost_usd if append.cost_usd is None else append.cost_usd
    run.expired = run.expired and append.status != "running"
    if has_ended(append.status):
        run.pauses = [pause for pause in run.pauses if pause.answered]
    if has_ended(append.status):
        run.cancel, run.ended_at = None, wall
    if append.release:
        run.owner = None
        run.worked_s += wall - (wall if run.claimed_at is None else run.claimed_at)
        run.mark_ready(wall)


# --- Schedules of an in-memory store ------------------------------------------------------------------------------


class MemorySchedules:
    """Schedules of an in-memory store."""

    _lock: threading.Lock
    _wall: Callable[[], float]
    _schedules: dict[str, StoredSchedule]

    @abstractmethod
    def _admit(self, admission: Admission, owner: str | None, lease_s: float) -> Lease | RunExists:
        """Create one run."""

    def declare(self, schedule: StoredSchedule) -> bool:
        """Create a schedule, unless the name is used."""
        with self._lock:
            if schedule.name in self._schedules:
                return False
            self._schedules[schedule.name] = attrs.evolve(schedule, version=1)
            return True

    def get_all(
        self, *, pipeline: str | None = None, name: str | None = None, due: bool = False
    ) -> list[StoredSchedule]:
        """Return the matching schedules by name, with the store's time."""
        with self._lock:
            now = self._wall()
            found = [each for _, each in sorted(self._schedules.items()) if pipeline in (None, each.pipeline)]
            named = [each for each in found if name in (None, each.name)]
            return [
                attrs.evolve(each, now=now)
                for each in named
                if not due or (each.due_at is not None and each.due_at <= now)
            ]

    def change(self, schedule: StoredSchedule) -> bool:
        """Replace a schedule of the same version."""
        with self._lock:
            return self._change(schedule)

    def fire(self, schedule: StoredSchedule, admissions: Sequence[Admission]) -> list[Lease | RunExists] | None:
        """Create runs and replace the schedule; `None` for another version."""
        with self._lock:
            if not self._change(schedule):
                return None
            return [self._admit(admission, None, 0.0) for admission in admissions]

    def remove(self, name: str) -> bool:
        """Delete a schedule; its runs stay."""
        with self._lock:
            return self._schedules.pop(name, None) is not None

    def _change(self, schedule: StoredSchedule) -> bool:
        before = self._schedules.get(schedule.name)
        if before is None or before.version != schedule.version:
            return False
        self._schedules[schedule.name] = attrs.evolve(schedule, version=schedule.version + 1)
        return True


# --- Export and import of whole runs ------------------------------------------------------------------------------


class MemoryTransfer:
    """Export and import of a store in memory."""

    _runs: dict[RunId, MemoryRun]
    _lock: threading.Lock

    @abstractmethod
    def _new_run(self, admission: Admission, owner: str | None, lease_s: float) -> MemoryRun: ...

    def read_page(self, run_id: RunId, *, after: int, limit: int) -> list[Record]:
        with self._lock:
            if run_id not in self._runs:
                raise record_rows.not_found(run_id)
            return self._runs[run_id].after(after)[:limit]

    def read_outside(self, run_id: RunId) -> list[Record]:
        records = self.read_page(run_id, after=0, limit=sys.maxsize)
        return [record for record in records if "/~i" not in record.path]

    def repeated(self, run_id: RunId) -> list[StepPath]:
        inside = (each.path for each in self.read_page(run_id, after=0, limit=sys.maxsize) if "/~i" in each.path)
        return [StepPath(path) for path in {path.partition("/~i")[0]: None for path in inside}]

    def read_inside(self, run_id: RunId, *, before: int, limit: int) -> list[ItemRow]:
        records = self.read_page(run_id, after=0, limit=sys.maxsize)
        inside = (each for each in reversed(records) if each.seq < before and "/~i" in each.path)
        return [(each.seq, each.kind, each.path, each.body, each.at) for each in itertools.islice(inside, limit)]

    def put(self, runs: Iterable[tuple[StoredRun, Iterable[Record]]]) -> None:
        given = [(run, list(records)) for run, records in runs]
        with self._lock:
            for run, _ in given:
                if run.run_id in self._runs:
                    raise record_rows.exists(run.run_id)
            for run, records in given:
                self._runs[run.run_id] = self._restored(run, records)

    def _restored(self, run: StoredRun, records: list[Record]) -> MemoryRun:
        admission = Admission(
            run_id=run.run_id,
            pipeline=run.pipeline,
            body="",
            queue=run.queue,
            fingerprint=run.fingerprint,
            parent=run.parent,
            labels=run.labels,
        )
        new = self._new_run(admission, None, 0.0)
        for name in _KEPT:
            setattr(new, name, getattr(run, name))
        new.records = [
            attrs.evolve(each, at=run.created_at if each.at is None else each.at, gist=None) for each in records
        ]
        new.cancel = None if run.cancel is None else CancelRequest(reason=run.cancel)
        for pause in (*run.pauses, *run.waits):
            new.ask(pause, 0.0)
            new.pauses[-1].asked = pause
        if run.status == "sleeping" and run.unclaimed:
            new.ready, new.wake_at = False, run.wake_at
        else:
            new.mark_ready(run.updated_at)
        return new


_KEPT = (
    "status",
    "created_at",
    "updated_at",
    "started_at",
    "ended_at",
    "worked_s",
    "tokens",
    "cost_usd",
    "retries",
    "epoch",
    "expired",
)
"""Fields of a stored run that are kept as they are."""


# --- Messages to webhooks -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class MemoryOutbox:
    """Messages of an in-memory store, which holds its lock around every call."""

    _messages: dict[str, OutboxMessage] = attrs.field(factory=dict)
    _owners: dict[str, str] = attrs.field(factory=dict)

    def add(self, run_id: RunId, messages: Iterable[OutboxMessage], wall: float) -> None:
        for each in messages:
            self._messages[each.id] = attrs.evolve(each, run_id=run_id, created_at=wall, next_at=wall)

    def claim(self, hooks: Sequence[str], owner: str, for_s: float, limit: int, wall: float) -> list[OutboxMessage]:
        due = [each for each in self._messages.values() if each.hook in hooks and _is_due(each, wall)][:limit]
        for each in due:
            self._owners[each.id] = owner
            self._messages[each.id] = attrs.evolve(each, next_at=wall + for_s)
        return due

    def settle(self, message_id: str, owner: str, error: str | None, after_s: float | None, wall: float) -> None:
        found = self._messages.get(message_id)
        if found is None or found.status != "pending" or self._owners.get(message_id) != owner:
            return
        del self._owners[message_id]
        self._messages[message_id] = attrs.evolve(
            found,
            status=settled_status(error, after_s),
            attempts=found.attempts + (error is not None),
            error=error,
            next_at=None if after_s is None or error is None else wall + after_s,
        )

    def listed(self, status: OutboxStatus | None, run_id: RunId | None, limit: int | None) -> list[OutboxMessage]:
        newest = reversed(self._messages.values())
        found = (each for each in newest if status in (None, each.status) and run_id in (None, each.run_id))
        return list(itertools.islice(found, limit))

    def retry(self, message_ids: Sequence[str] | None, wall: float) -> int:
        failed = [
            each
            for each in self._messages.values()
            if each.status == "failed" and (message_ids is None or each.id in message_ids)
        ]
        for each in failed:
            self._messages[each.id] = attrs.evolve(each, status="pending", attempts=0, next_at=wall)
        return len(failed)

    def forget(self, known: Container[RunId]) -> None:
        self._messages = {name: each for name, each in self._messages.items() if each.run_id in known}


def _is_due(message: OutboxMessage, wall: float) -> bool:
    return message.status == "pending" and message.next_at is not None and message.next_at <= wall


# --- Outputs of steps ---------------------------------------------------------------------------------------------


class MemoryCache:
    """Outputs of steps in an in-memory store."""

    _lock: threading.Lock
    _wall: Callable[[], float]
    _cache: dict[str, tuple[CacheEntry, float]]

    def cached(self, key: str) -> str | None:
        """Return the output of an unexpired entry, or None."""
        with self._lock:
            entry, until = self._cache.get(key, (None, 0.0))
            return entry.body if entry is not None and until > self._wall() else None

    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete entries; return their number."""
        with self._lock:
            gone = [
                key
                for key, (entry, _) in self._cache.items()
                if pipeline in (None, entry.pipeline) and step in (None, entry.step)
            ]
            for key in gone:
                del self._cache[key]
            return len(gone)
