"""Group commit, the journal actor: concurrent writes share one transaction.

Rules:

1. There is one writer per store and trio run, so that concurrent runs share commits: while one transaction commits in
   its thread, new writes wait, and enter the next one together.
2. Single writes, as those of a lone chain, begin at once. When the last commit carried several, the next one waits a
   scheduling round for more.
3. A write returns when it is durable. It raises `LeaseLost` if the run has another owner by now, and `StoreError` if
   the store failed: then either nothing of it was written, or all of it and the reply was lost.
4. A requested write is not cancelled with its waiter, which keeps waiting, unless the store is silent
   (`store_executor`). An admission without a waiter is released.
5. Leases of open runs are renewed (`leases`) until they are released, and their owners receive cancel requests
   (`cancelling`).
6. A commit costs one hop to a thread and back, and no task of its own: the thread's reply wakes the waiters and begins
   the next commit.
7. A garbage-collected store takes its writer with it.
8. Records without a waiter, the starts of steps, are written after `FLUSH_S` if no other commit carries them: in at
   most four commits a second, and in none where steps are quick.
9. Watchers of the store in this process are notified of every commit at once (`watching`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import attrs
import trio
from outcome import Error, Outcome, Value

from .._bridge.threads import way_in
from .._core import seams
from .._core.outcomes import RunId
from .._core.records.records import Admission, Append, CancelRequest, Lease, OwnerNotice, Record
from ..errors import FlujoError, LeaseLost, RunExists, StoreError
from ..stores._store_port import Store, Verdict
from .cancel_requests import CancelWatch
from .connection_lock import queue_for
from .leases import HeldLease, Leases, new_owner
from .store_executor import StoreExecutor, post, start_thread, store_reply
from .text_exchange import forget_texts, own_texts, publish_texts
from .timer_thread import alarms
from .watch_poller import watchers

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")


FLUSH_S = 0.25
"""Time for which a step's start waits for another write."""

_SHORTEST_REST_S = 0.02


class Expected(Protocol):
    """Run with records that have no waiter."""

    lease: Lease
    is_expected: bool

    def oldest_start(self) -> float | None:
        """Return the monotonic time of its oldest pending start, or None."""

    def take_started(self) -> Sequence[Record]:
        """Return and clear its pending starts."""


class CommitWaiter(Protocol):
    """Writer that may add records to its append."""

    def take_notes(self) -> Sequence[Record]:
        """Return the records written before the append, once, when the commit begins."""


@attrs.frozen(eq=False)
class _Starts:
    """Records of started steps of a run."""

    run: Expected

    def take_notes(self) -> Sequence[Record]:
        return self.run.take_started()


class _PendingWrite(StoreExecutor):
    """Write with a waiter."""

    __slots__ = ("append", "journal")

    def __init__(self, since: Callable[[], float], append: Append, journal: CommitWaiter | None) -> None:
        super().__init__(since)
        self.append, self.journal = append, journal


@attrs.frozen(eq=False)
class _WithoutWaiter:
    """Write without a waiter."""

    append: Append
    journal: CommitWaiter | None = None

    def give(self, answer: Outcome[object]) -> bool:
        """Ignore the reply."""
        return True


@attrs.frozen(eq=False)
class _Batch:
    """One transaction: admissions first, then appends."""

    admissions: list[Admission]
    appends: list[Append]
    waits: list[StoreExecutor | _WithoutWaiter]
    """Waiters in the same order."""


Answer: TypeAlias = Value[object] | Error
"""Reply to a waiter."""


class JournalWriter:
    """Writer of a store for all runs of a trio run."""

    def __init__(self, store: Callable[[], Store | None], *, lease_s: float) -> None:
        self._store = store
        self._in_use: Store | None = None
        """Store, while writes are pending."""
        self._lease_s = lease_s
        self._owner = new_owner()
        self._admissions: list[tuple[StoreExecutor, Admission]] = []
        self._appends: list[_PendingWrite | _WithoutWaiter] = []
        self.writing = False
        """Whether a commit is in flight or about to begin."""
        self._begun = 0.0
        self._since = lambda: self._begun
        """Start of the store's silence, shared by all waiters."""
        self._crowded = True
        """Whether the last commit carried more than one write (rule 2)."""
        self._leases = Leases(self._renew, lease_s=lease_s, borrower=self._borrower)
        asks = hasattr(store(), "cancel_requests")
        self._requests = CancelWatch(self._leases.held, self._cancel_requests if asks else None)
        self._expected: list[Expected] = []
        self._flushing = False
        """Whether a timer is set for pending starts."""
        self._token, self._post = trio.lowlevel.current_trio_token(), way_in()
        self.commits = 0
        """Number of committed transactions."""
        self.written = 0
        """Number of written records."""

    @property
    def waiting(self) -> bool:
        """Return whether a request to the store is unanswered."""
        return self.writing or self._leases.renewing

    @trio.lowlevel.enable_ki_protection  # a task to be woken must have begun to wait
    async def admit(self, admission: Admission) -> Lease:
        """Make a run exist; `RunExists` if its id is taken."""
        wait = StoreExecutor(self._since)
        self._admissions.append((wait, admission))
        self._schedule()
        lease: Lease = await wait.answer()
        return lease

    @trio.lowlevel.enable_ki_protection
    async def write(self, append: Append, journal: CommitWaiter | None, then: T) -> T:
        """Make the append durable with its journal's notes; return `then`."""
        if append.release:
            self.release_lease(append.lease)  # a renewal after the release must not look like a loss
        wait = _PendingWrite(self._since, append, journal)
        self._appends.append(wait)
        self._schedule()
        request = await wait.answer()
        if request is not None:
            self._requests.deliver(append.lease, request)
        return then

    def expect(self, run: Expected) -> None:
        """Schedule records without a waiter (rule 8)."""
        run.is_expected = True
        self._expected.append(run)
        if not self._flushing:
            self._flush_in(FLUSH_S)

    def _flush_in(self, seconds: float) -> None:
        me, token = weakref.ref(self), self._token
        with contextlib.suppress(StoreError):  # without a timer thread, it is written with the next write
            alarms.set(seconds, lambda: post(token, _flush, me))
            self._flushing = True

    def flush(self) -> None:
        """Write the records that have waited long enough; called by the timer."""
        now, self._flushing = seams.clock.monotonic(), False
        waiting, self._expected = self._expected, []
        oldest, wrote = now, False
        for run in waiting:
            since = run.oldest_start()
            run.is_expected = since is not None and now - since < FLUSH_S
            if run.is_expected and since is not None:
                self._expected.append(run)
                oldest = min(oldest, since)
            elif since is not None:
                self._appends.append(_WithoutWaiter(Append(lease=run.lease, records=()), _Starts(run)))
                wrote = True
        if wrote:
            self._schedule()
        if self._expected:
            self._flush_in(FLUSH_S if wrote else max(oldest + FLUSH_S - now, _SHORTEST_REST_S))

    def _schedule(self) -> None:
        if self.writing:
            return
        self.writing, self._begun, self._in_use = True, seams.clock.monotonic(), self._store()
        if self._crowded:
            self._token.run_sync_soon(self._schedule_in_a_round)
        else:
            self._begin()

    def _schedule_in_a_round(self) -> None:
        # Twice: callbacks of threads and timers may run in the very round in which runs write.
        self._token.run_sync_soon(self._begin)

    def _begin(self) -> None:
        """Send the waiting writes to a thread."""
        batch, self._begun = self._next_batch(), seams.clock.monotonic()
        try:
            start_thread(functools.partial(self._written, batch), functools.partial(self._arrived, batch.waits))
        except StoreError as error:
            self._arrived(batch.waits, Value([Error(_copied(error)) for _ in batch.waits]))

    def _arrived(self, waits: list[StoreExecutor | _WithoutWaiter], got: Outcome[list[Answer]]) -> None:
        """Pass the answers from the writer thread to the loop."""
        self._post(functools.partial(self._finish, waits, got))

    def _next_batch(self) -> _Batch:
        admissions, self._admissions = self._admissions, []
        waiting, self._appends = self._appends, []
        appends = [(wait, _with_notes(wait.append, wait.journal)) for wait in waiting]
        appends = [(wait, append) for wait, append in appends if type(wait) is _PendingWrite or _has_content(append)]
        return _Batch(
            [admission for _, admission in admissions],
            [append for _, append in appends],
            [*(wait for wait, _ in admissions), *(wait for wait, _ in appends)],
        )

    def _written(self, batch: _Batch) -> list[Answer]:
        """Write in the thread: one transaction for admissions, one for others."""
        return [
            *self._committed(self._admit_all, batch.admissions),
            *self._committed(self._append_all, batch.appends),
        ]

    def _committed(self, write: Callable[[list[J]], Sequence[object]], jobs: list[J]) -> list[Answer]:
        if not jobs:
            return []
        got = store_reply(lambda: write(jobs))
        if isinstance(got, Error):
            return [Error(_copied(got.error)) for _ in jobs]
        self.commits += 1
        return [Error(answer) if isinstance(answer, FlujoError) else Value(answer) for answer in got.value]

    def _finish(self, waits: list[StoreExecutor | _WithoutWaiter], got: Outcome[list[Answer]]) -> None:
        """Wake all waiters with replies; begin the next commit if needed."""
        for wait, answer in zip(waits, got.unwrap(), strict=True):
            if not wait.give(answer):
                self._release_if_admitted(answer)
        watchers.wake(self._in_use)
        self._crowded = len(waits) > 1
        self.writing = bool(self._admissions or self._appends)
        if self.writing:
            self._begin()
        else:
            self._in_use = None

    def _release_if_admitted(self, answer: Answer) -> None:
        """Release a run whose waiter has left."""
        if isinstance(answer, Value) and isinstance(answer.value, Lease):
            release = Append(lease=answer.value, records=(), release=True)
            self._appends.append(_WithoutWaiter(release))

    def _admit_all(self, admissions: list[Admission]) -> list[Lease | RunExists]:
        assert self._in_use is not None
        return self._in_use.admit_all(admissions, owner=self._owner, lease_s=self._lease_s)

    def _append_all(self, appends: list[Append]) -> list[Verdict]:
        assert self._in_use is not None
        answers = self._in_use.append(appends)
        self.written += sum(len(append.records) for append in appends)
        return answers

    # --- leases ---

    def hold(self, lease: Lease, lost: Callable[[LeaseLost], None], *, since: float | None = None) -> HeldLease:
        """Renew a lease until release; call `lost` on failure."""
        held = self._leases.hold(lease, lost, since=since)
        own_texts(self._store(), lease)
        return held

    def hold_again(self, held: HeldLease) -> HeldLease:
        """Renew a lease whose release was refused by the store."""
        return self.hold(held.lease, held.tell, since=held.until - self._lease_s)

    def release_lease(self, lease: Lease) -> None:
        """Stop renewing a lease, and looking for requests to cancel its run."""
        self._leases.release_lease(lease)
        forget_texts(self._store(), lease)
        self._requests.unwatch(lease)

    def watch(self, lease: Lease, tell: Callable[[CancelRequest], None]) -> None:
        """Pass the run's cancel request to the callback, until release."""
        self._requests.watch(lease, tell)

    def request_for(self, lease: Lease) -> CancelRequest | None:
        """Return a request received with the write that released the run, once."""
        return self._requests.pop_undelivered(lease)

    def newest_message(self, lease: Lease) -> int:
        """Return the number of the run's newest steering message, or 0."""
        return self._requests.newest_message(lease)

    def _cancel_requests(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OwnerNotice]:
        store = self._store()
        if store is None:
            return {}
        publish_texts(store, run_ids)  # polled at the same interval, by the same thread
        return store.cancel_requests(run_ids)

    def _renew(self, leases: Sequence[Lease]) -> list[LeaseLost | None]:
        store = self._store()
        return [None] * len(leases) if store is None else store.renew(leases, lease_s=self._lease_s)

    def _borrower(self) -> str | None:
        store = self._store()
        return None if store is None else queue_for(store).borrower


def _flush(writer: weakref.ref[JournalWriter]) -> None:
    found = writer()
    if found is not None:
        found.flush()


def _has_content(append: Append) -> bool:
    return bool(append.records) or append.release or append.status is not None


def _with_notes(append: Append, journal: CommitWaiter | None) -> Append:
    notes = () if journal is None else journal.take_notes()
    return attrs.evolve(append, records=(*notes, *append.records)) if notes else append


def _copied(error: BaseException) -> BaseException:
    """Return a copy of the error with its own traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


_writers: trio.lowlevel.RunVar[dict[tuple[int, float], JournalWriter]] = trio.lowlevel.RunVar("flujo_actors writers")


def writer_for(store: Store, *, lease_s: float) -> JournalWriter:
    """Return the store's writer in the current trio run."""
    try:
        writers = _writers.get()
    except LookupError:
        writers = {}
        _writers.set(writers)
    writer = writers.get((id(store), lease_s))
    return writer or _new_writer(writers, store, lease_s)


def _new_writer(writers: dict[tuple[int, float], JournalWriter], store: Store, lease_s: float) -> JournalWriter:
    key = id(store), lease_s
    try:
        refer: Callable[[], Store | None] = weakref.ref(store, lambda _: writers.pop(key, None))
    except TypeError:  # a class with slots may allow no weak references; its stores live as long as the loop
        refer = lambda: store  # noqa: E731
    writer = writers[key] = JournalWriter(refer, lease_s=lease_s)
    return writer


def commits_in_flight() -> bool:
    """Return whether the current trio run waits for a store to write."""
    try:
        return any(writer.waiting for writer in list(_writers.get().values()))
    except LookupError:
        return False
