"""Group commit, the journal actor: gathers what runs want written into one transaction, and replies after the commit.

Rules:

1. There is one writer per store and trio run, so that concurrent runs share commits: while one transaction commits in
   its thread, everything that comes in waits, and goes into the next one together.
2. While writes come one at a time, as those of a lone chain do, each is begun at once. When the last commit carried
   several, the next one waits a scheduling round for company.
3. A write returns when it is durable. It raises `LeaseLost` if the run has another owner by now, and `StoreError` if
   the store failed: then either nothing of it was written, or all of it and the answer was lost.
4. A write that was asked for is not cancelled with whoever waits for it, who waits all the same, unless the store is
   silent (`store_wait`). An admission that nobody waits for any more is given up.
5. Leases of open runs are kept alive (`leases`) until they are released, and their owners are told of requests to
   cancel them (`cancelling`).
6. A commit costs one hop to a thread and back, and no task of its own: what comes back from the thread wakes those who
   wait for it, and begins the next commit.
7. A store that nobody refers to any more takes its writer with it.
8. What runs have to say that nobody waits for, that steps have begun, is written after `FLUSH_S` without company: in at
   most four commits a second, and in none where steps are quick.
9. Whoever watches runs of the store in this process is told of every commit at once (`watching`).
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import attrs
import trio
from outcome import Error, Outcome, Value, capture

from .._bridge.arrivals import way_in
from .._core.outcomes import RunId
from .._core.records import Admission, Append, CancelRequest, Lease, Record
from ..errors import FlujoError, LeaseLost, RunExists, StoreError
from ..stores._port import Store, Verdict
from .alarms import alarms
from .borrowing import queue_for
from .cancelling import CancelWatch
from .leases import Leases
from .processes import new_owner
from .store_wait import StoreWait, post, start_thread
from .text_exchange import forget_texts, leave_texts
from .watching import watchers

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")


FLUSH_S = 0.25
"""How long the start of a step waits for company."""

_SHORTEST_REST_S = 0.02


class Expected(Protocol):
    """A run that has something to say which nobody waits for."""

    lease: Lease
    is_expected: bool

    def oldest_start(self) -> float | None:
        """Since when it has had to say it, on the monotonic clock; `None` if it was said meanwhile."""

    def take_started(self) -> Sequence[Record]:
        """What it has to say, once."""


class Speaker(Protocol):
    """Who may have more to say than what it writes."""

    def take_notes(self) -> Sequence[Record]:
        """What else is written before it, asked for when the commit begins, once."""


@attrs.frozen(eq=False)
class _Starts:
    """Says which steps of a run have begun."""

    run: Expected

    def take_notes(self) -> Sequence[Record]:
        return self.run.take_started()


class _Write(StoreWait):
    """What somebody wants written who waits for it."""

    __slots__ = ("append", "speaker")

    def __init__(self, since: Callable[[], float], append: Append, speaker: Speaker | None) -> None:
        super().__init__(since)
        self.append, self.speaker = append, speaker


@attrs.frozen(eq=False)
class _Unheard:
    """What is written although nobody waits for it."""

    append: Append
    speaker: Speaker | None = None

    def give(self, answer: Outcome[object]) -> bool:
        """Nobody is told; nobody has left either."""
        return True


@attrs.frozen(eq=False)
class _Batch:
    """What is written in one go: first the runs that are to exist, then what runs have to say."""

    admissions: list[Admission]
    appends: list[Append]
    waits: list[StoreWait | _Unheard]
    """Those who wait for it, in the same order."""


Answer: TypeAlias = Value[object] | Error
"""What somebody who waits is told."""


class JournalWriter:
    """The one that writes to a store for all runs of a trio run; see the module's rules."""

    def __init__(self, store: Callable[[], Store | None], *, lease_s: float) -> None:
        self._store = store
        self._in_use: Store | None = None
        """The store, while there is something to write."""
        self._lease_s = lease_s
        self._owner = new_owner()
        self._admissions: list[tuple[StoreWait, Admission]] = []
        self._appends: list[_Write | _Unheard] = []
        self.writing = False
        """Whether a commit is under way, or about to begin."""
        self._begun = 0.0
        self._since = lambda: self._begun
        """Since when the store has been silent; all who wait share it."""
        self._crowded = True
        """Whether the last commit carried more than one write (rule 2)."""
        self._leases = Leases(self._renew, lease_s=lease_s, borrower=self._borrower)
        asks = hasattr(store(), "cancel_requests")
        self._requests = CancelWatch(self._leases.held, self._cancel_requests if asks else None)
        self._expected: list[Expected] = []
        self._flushing = False
        """Whether an alarm is set for those who are expected to say something."""
        self._token, self._post = trio.lowlevel.current_trio_token(), way_in()
        self.commits = 0
        """How many transactions were committed."""
        self.written = 0
        """How many records were written."""

    @property
    def waiting(self) -> bool:
        """Whether the store has been asked for something and has not answered yet."""
        return self.writing or self._leases.renewing

    @trio.lowlevel.enable_ki_protection  # whoever is going to be woken must have begun to wait
    async def admit(self, admission: Admission) -> Lease:
        """Make a run exist; `RunExists` if its id is taken."""
        wait = StoreWait(self._since)
        self._admissions.append((wait, admission))
        self._begin_soon()
        lease: Lease = await wait.answer()
        return lease

    @trio.lowlevel.enable_ki_protection
    async def write(self, append: Append, speaker: Speaker | None, then: T) -> T:
        """Make the append durable, and what its speaker notes before it; `then` comes back. See the module's rules."""
        if append.release:
            self.let_go(append.lease)  # a renewal that comes after the release must not look like a loss
        wait = _Write(self._since, append, speaker)
        self._appends.append(wait)
        self._begin_soon()
        request = await wait.answer()
        if request is not None:
            self._requests.heard(append.lease, request)
        return then

    def expect(self, run: Expected) -> None:
        """A run has something to say that nobody waits for (rule 8)."""
        run.is_expected = True
        self._expected.append(run)
        if not self._flushing:
            self._flush_in(FLUSH_S)

    def _flush_in(self, seconds: float) -> None:
        me, token = weakref.ref(self), self._token
        with contextlib.suppress(StoreError):  # without a thread to keep the time, it is said with the next write
            alarms.set(seconds, lambda: post(token, _flush, me))
            self._flushing = True

    def flush(self) -> None:
        """Write what has waited for long enough; called when the alarm rings."""
        now, self._flushing = time.monotonic(), False
        waiting, self._expected = self._expected, []
        oldest, wrote = now, False
        for run in waiting:
            since = run.oldest_start()
            run.is_expected = since is not None and now - since < FLUSH_S
            if run.is_expected and since is not None:
                self._expected.append(run)
                oldest = min(oldest, since)
            elif since is not None:
                self._appends.append(_Unheard(Append(lease=run.lease, records=()), _Starts(run)))
                wrote = True
        if wrote:
            self._begin_soon()
        if self._expected:
            self._flush_in(FLUSH_S if wrote else max(oldest + FLUSH_S - now, _SHORTEST_REST_S))

    def _begin_soon(self) -> None:
        if self.writing:
            return
        self.writing, self._begun, self._in_use = True, time.monotonic(), self._store()
        if self._crowded:
            self._token.run_sync_soon(self._begin_in_a_round)
        else:
            self._begin()

    def _begin_in_a_round(self) -> None:
        # Twice: what threads and alarms post may have its turn in the very round in which runs come to write.
        self._token.run_sync_soon(self._begin)

    def _begin(self) -> None:
        """Send what waits to a thread."""
        batch, self._begun = self._take(), time.monotonic()
        try:
            start_thread(functools.partial(self._written, batch), functools.partial(self._arrived, batch.waits))
        except StoreError as error:
            self._arrived(batch.waits, Value([Error(_copied(error)) for _ in batch.waits]))

    def _arrived(self, waits: list[StoreWait | _Unheard], got: Outcome[list[Answer]]) -> None:
        """In the thread: the answers go back to the loop's."""
        self._post(functools.partial(self._finish, waits, got))

    def _take(self) -> _Batch:
        admissions, self._admissions = self._admissions, []
        waiting, self._appends = self._appends, []
        appends = [(wait, _with_notes(wait.append, wait.speaker)) for wait in waiting]
        appends = [(wait, append) for wait, append in appends if type(wait) is _Write or _says_something(append)]
        return _Batch(
            [admission for _, admission in admissions],
            [append for _, append in appends],
            [*(wait for wait, _ in admissions), *(wait for wait, _ in appends)],
        )

    def _written(self, batch: _Batch) -> list[Answer]:
        """Write in the thread: a transaction for the admissions, if there are any, and one for the rest."""
        return [
            *self._committed(self._admit_all, batch.admissions),
            *self._committed(self._append_all, batch.appends),
        ]

    def _committed(self, write: Callable[[list[J]], Sequence[object]], jobs: list[J]) -> list[Answer]:
        if not jobs:
            return []
        got = _asked(lambda: write(jobs))
        if isinstance(got, Error):
            return [Error(_copied(got.error)) for _ in jobs]
        self.commits += 1
        return [Error(answer) if isinstance(answer, FlujoError) else Value(answer) for answer in got.value]

    def _finish(self, waits: list[StoreWait | _Unheard], got: Outcome[list[Answer]]) -> None:
        """Back from the thread: wake everybody with their answer, and begin the next commit if somebody waits."""
        for wait, answer in zip(waits, got.unwrap(), strict=True):
            if not wait.give(answer):
                self._release_if_admitted(answer)
        watchers.poke(self._in_use)
        self._crowded = len(waits) > 1
        self.writing = bool(self._admissions or self._appends)
        if self.writing:
            self._begin()
        else:
            self._in_use = None

    def _release_if_admitted(self, answer: Answer) -> None:
        """Whoever wanted the run has left: let others have it."""
        if isinstance(answer, Value) and isinstance(answer.value, Lease):
            release = Append(lease=answer.value, records=(), release=True)
            self._appends.append(_Unheard(release))

    def _admit_all(self, admissions: list[Admission]) -> list[Lease | RunExists]:
        assert self._in_use is not None
        return self._in_use.admit_all(admissions, owner=self._owner, lease_s=self._lease_s)

    def _append_all(self, appends: list[Append]) -> list[Verdict]:
        assert self._in_use is not None
        answers = self._in_use.append(appends)
        self.written += sum(len(append.records) for append in appends)
        return answers

    # --- leases ---

    def hold(self, lease: Lease, lost: Callable[[LeaseLost], None], *, since: float | None = None) -> None:
        """Keep a lease alive until it is let go; `lost` is called if it cannot be. See `Leases.hold`."""
        self._leases.hold(lease, lost, since=since)

    def let_go(self, lease: Lease) -> None:
        """Stop renewing a lease, and looking for requests to cancel its run."""
        self._leases.let_go(lease)
        forget_texts(lease.run_id)
        self._requests.leave(lease)

    def watch(self, lease: Lease, tell: Callable[[CancelRequest], None]) -> None:
        """Tell of a request to cancel the run, until its lease is let go."""
        self._requests.watch(lease, tell)

    def request_for(self, lease: Lease) -> CancelRequest | None:
        """A request that came with the answer to the write that gave the run up, once."""
        return self._requests.taken(lease)

    def _cancel_requests(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelRequest]:
        store = self._store()
        if store is None:
            return {}
        leave_texts(store, run_ids)  # looked for as often, by the same thread
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


def _says_something(append: Append) -> bool:
    return bool(append.records) or append.release or append.status is not None


def _with_notes(append: Append, speaker: Speaker | None) -> Append:
    notes = () if speaker is None else speaker.take_notes()
    return attrs.evolve(append, records=(*notes, *append.records)) if notes else append


def _asked(call: Callable[[], R]) -> Value[R] | Error:
    """What the store answered, or a `StoreError`: also for what a store may not raise, since runs wait for it."""
    got = capture(call)
    if isinstance(got, Value) or isinstance(got.error, StoreError) or not isinstance(got.error, Exception):
        return got
    from ..telemetry._redaction.live_redaction import redacted  # what only programs with errors need

    broken = StoreError(redacted(f"the store raised {type(got.error).__name__}: {got.error}"))
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
    """The writer of a store in the current trio run, for as long as somebody refers to the store."""
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


def commits_under_way() -> bool:
    """Whether the current trio run waits for a store to write."""
    try:
        return any(writer.waiting for writer in list(_writers.get().values()))
    except LookupError:
        return False
