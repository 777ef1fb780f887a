"""The journal actor: gathers what runs want written into one transaction, and answers after the commit.

Rules:

1. There is one writer per store and trio run, so that concurrent runs share commits: while one transaction commits in
   its thread, everything that comes in waits, and goes into the next one together.
2. While writes come one at a time, as those of a lone chain do, each is begun at once. When the last commit carried
   several, the next one waits a scheduling round for company.
3. A write returns when it is durable. It raises `LeaseLost` if the run has another owner by now, and `StoreError` if
   the store failed: then either nothing of it was written, or all of it and the answer was lost.
4. A write that was asked for is not cancelled with whoever waits for it, who waits all the same.
5. Leases of open runs are renewed together, three times per lease. A run that lost its lease is told at once, and so
   is one whose lease must have expired because the store could not be asked, by this process's monotonic clock.
6. A commit costs one hop to a thread and back, and no task of its own: what comes back from the thread wakes those who
   wait for it, and begins the next commit. The renewing task lives while a run is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs
import trio
from outcome import Error, Outcome, Value, capture

from ..core.records import Admission, Append, Lease, Record
from ..errors import FlujoError, LeaseLost, RunExists, StoreError
from ..stores.port import Store, Verdict
from .processes import new_owner

J = TypeVar("J")
R = TypeVar("R")


Notes: TypeAlias = Callable[[], Sequence[Record]]
"""What else a run has to say, asked for when the commit begins."""


@attrs.frozen(eq=False)
class _Batch:
    """What is written in one go: first the runs that are to exist, then what runs have to say."""

    admissions: list[Admission]
    appends: list[Append]
    tasks: list[trio.lowlevel.Task]
    """Those who wait for it, in the same order."""


Answer: TypeAlias = Value[Any] | Error
"""What somebody who waits is told."""


class JournalWriter:
    """The one that writes to a store for all runs of a trio run; see the module's rules."""

    def __init__(self, store: Store, *, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._owner = new_owner()
        self._admissions: list[tuple[trio.lowlevel.Task, Admission]] = []
        self._appends: list[tuple[trio.lowlevel.Task, Append, Notes]] = []
        self.writing = False
        """Whether a commit is under way, or about to begin."""
        self._crowded = True
        """Whether the last commit carried more than one write (rule 2)."""
        self._leases: dict[Lease, _Held] = {}
        self._renewing: trio.CancelScope | None = None
        self.commits = 0
        """How many transactions were committed."""
        self.written = 0
        """How many records were written."""

    @trio.lowlevel.enable_ki_protection  # whoever is going to be woken must have begun to wait
    async def admit(self, admission: Admission) -> Lease:
        """Make a run exist; `RunExists` if its id is taken."""
        self._admissions.append((trio.lowlevel.current_task(), admission))
        lease: Lease = await self._answer()
        return lease

    @trio.lowlevel.enable_ki_protection
    async def write(self, append: Append, notes: Notes = tuple) -> None:
        """Make the append durable, and what `notes` returns before it; see the module's rules."""
        if append.release:
            self.let_go(append.lease)  # a renewal that comes after the release must not look like a loss
        self._appends.append((trio.lowlevel.current_task(), append, notes))
        await self._answer()

    async def _answer(self) -> Any:
        """What the store says to what the current task has asked for."""
        if not self.writing:
            self.writing = True
            if self._crowded:
                trio.lowlevel.current_trio_token().run_sync_soon(self._begin)
            else:
                self._begin()
        return await trio.lowlevel.wait_task_rescheduled(_not_cancelled)

    def _begin(self) -> None:
        """Send what waits to a thread."""
        batch = self._take()
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        # Not `to_thread`: its limit is shared with whatever else blocks, and keeping it takes a scheduling round.
        trio.lowlevel.start_thread_soon(lambda: self._written(batch), lambda got: soon(self._finish, batch.tasks, got))

    def _take(self) -> _Batch:
        admissions, self._admissions = self._admissions, []
        appends, self._appends = self._appends, []
        return _Batch(
            [admission for _, admission in admissions],
            [_with_notes(append, notes()) for _, append, notes in appends],
            [*(task for task, _ in admissions), *(task for task, _, _ in appends)],
        )

    def _written(self, batch: _Batch) -> list[Answer]:
        """Write in the thread: a transaction for the admissions, if there are any, and one for the rest."""
        return [
            *self._committed(self._admit_all, batch.admissions),
            *self._committed(self._append_all, batch.appends),
        ]

    def _committed(self, write: Callable[[list[J]], list[Any]], jobs: list[J]) -> list[Answer]:
        if not jobs:
            return []
        got = _asked(lambda: write(jobs))
        if isinstance(got, Error):
            return [Error(_copied(got.error)) for _ in jobs]
        self.commits += 1
        return [Error(answer) if isinstance(answer, FlujoError) else Value(answer) for answer in got.value]

    def _finish(self, tasks: list[trio.lowlevel.Task], got: Outcome[list[Answer]]) -> None:
        """Back from the thread: wake everybody with their answer, and begin the next commit if somebody waits."""
        for task, answer in zip(tasks, got.unwrap(), strict=True):
            trio.lowlevel.reschedule(task, answer)
        self._crowded = len(tasks) > 1
        self.writing = bool(self._admissions or self._appends)
        if self.writing:
            self._begin()

    def _admit_all(self, admissions: list[Admission]) -> list[Lease | RunExists]:
        return self._store.admit_all(admissions, owner=self._owner, lease_s=self._lease_s)

    def _append_all(self, appends: list[Append]) -> list[Verdict]:
        answers = self._store.append(appends)
        self.written += sum(len(append.records) for append in appends)
        return answers

    # --- leases ---

    def hold(self, lease: Lease, lost: Callable[[LeaseLost], None]) -> None:
        """Keep a lease alive until it is let go; `lost` is called if it cannot be."""
        self._leases[lease] = _Held(tell=lost, until=trio.current_time() + self._lease_s)
        if self._renewing is None:
            self._renewing = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._renew_leases, self._renewing)

    def let_go(self, lease: Lease) -> None:
        """Stop renewing a lease."""
        self._leases.pop(lease, None)
        if not self._leases and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew_leases(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep(self._lease_s / 3)
                await self._renew()

    async def _renew(self) -> None:
        asked_at, leases, renew = trio.current_time(), list(self._leases), self._store.renew
        got = await trio.to_thread.run_sync(_asked, lambda: renew(leases, lease_s=self._lease_s))
        if isinstance(got, Error):
            self._give_up_expired(got.error)
            return
        for lease, answer in zip(leases, got.value, strict=True):
            held = self._leases.get(lease)
            if held is not None and answer is not None:
                held.tell(answer)
            elif held is not None:
                held.until = asked_at + self._lease_s

    def _give_up_expired(self, error: BaseException) -> None:
        for lease, held in self._leases.items():
            if held.until <= trio.current_time():
                lost = LeaseLost(f"the lease of run {lease.run_id!r} expired: it could not be renewed ({error})")
                lost.__cause__ = error
                held.tell(lost)


@attrs.define(eq=False)
class _Held:
    """A lease that is kept alive."""

    tell: Callable[[LeaseLost], None]
    until: float
    """When it expires, at the earliest, if it is not renewed."""


def _with_notes(append: Append, notes: Sequence[Record]) -> Append:
    return attrs.evolve(append, records=(*notes, *append.records)) if notes else append


def _not_cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _asked(call: Callable[[], R]) -> Value[R] | Error:
    """What the store answered, or a `StoreError`: also for what a store may not raise, since runs wait for it."""
    got = capture(call)
    if isinstance(got, Value) or isinstance(got.error, StoreError) or not isinstance(got.error, Exception):
        return got
    broken = StoreError(f"the store raised {type(got.error).__name__}: {got.error}")
    broken.__cause__ = got.error
    return Error(broken)


def _copied(error: BaseException) -> BaseException:
    """The error for one of several that wait: each raises its own, with its own traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


_writers: trio.lowlevel.RunVar[dict[tuple[int, float], JournalWriter]] = trio.lowlevel.RunVar("flujo_actors writers")


def writer_for(store: Store, *, lease_s: float) -> JournalWriter:
    """The writer of a store in the current trio run."""
    try:
        writers = _writers.get()
    except LookupError:
        writers = {}
        _writers.set(writers)
    writer = writers.get((id(store), lease_s))
    if writer is None:
        writer = writers[id(store), lease_s] = JournalWriter(store, lease_s=lease_s)
    return writer


def commits_under_way() -> bool:
    """Whether the current trio run waits for a store."""
    try:
        return any(writer.writing for writer in _writers.get().values())
    except LookupError:
        return False
