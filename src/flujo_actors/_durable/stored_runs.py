"""Runs that survive their process: kept in a store, owned by one process at a time.

Rules:

1. A run exists in the store before any of its work is done.
2. Opening a run claims its lease; putting it back releases it. While it is open the lease is renewed, and if it is lost
   all the same, the run is cancelled at once.
3. A run is resumed only by the pipeline it was started with, unless the caller says otherwise.
4. An answer is in the store before anything is done with it. All that the run has stored was read before, and nothing
   is asked of the answer that could refuse the run afterwards: what was answered once can be resumed.
5. A run that has ended is never opened again: it would complete by having nothing to do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .._core import record_bodies
from .._core.deliveries import AFTER_DEATH, deaths_without_progress
from .._core.outcomes import PipelineResult, RunId
from .._core.paths import ROOT
from .._core.pause_tokens import parse_token
from .._core.records import (
    Admission,
    Append,
    CancelRequest,
    Lease,
    Record,
    RunQuery,
    StoredRun,
    StoredStatus,
    TakenRun,
)
from .._core.settings import DurabilitySettings
from .._dsl.pipeline import Pipeline
from ..errors import (
    AlreadyAnswered,
    LeaseLost,
    NotPaused,
    RunLeased,
    StoreError,
)
from ..stores._port import Store
from .admissions import Admissions, ResumeMode, answer_schema_at, given_to, step_at
from .cancelling import end_as_aborted
from .claiming import (
    at_work,
    can_be_had,
    claimed,
    give_up,
    give_up_new,
    granted,
    granted_new,
    refuse_if_ended,
    refuse_if_held,
    refuse_run_inside_borrower,
)
from .group_commit import JournalWriter, writer_for
from .halt import Halt
from .journal import Pause
from .pauses import expire, put_off, waiting_pause
from .runs import Hold, OpenRun
from .store_journal import SchemaOf, StoreJournal
from .store_wait import PATIENCE_S, call_store

if TYPE_CHECKING:
    from .undo_records import StepAt


@attrs.define(kw_only=True, eq=False)
class StoredRuns:
    """The runs of one pipeline in a store; see the module's rules."""

    store: Store
    pipeline: Pipeline
    settings: DurabilitySettings
    redact: record_bodies.Redact
    mode: ResumeMode = "strict"
    _admissions: Admissions = attrs.field(init=False)
    _schema_of: SchemaOf = attrs.field(init=False)
    _step_at: StepAt = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._admissions = Admissions(self.pipeline)
        self._schema_of = partial(answer_schema_at, self.pipeline)
        self._step_at = partial(step_at, self.pipeline)

    def admission(self, run_id: RunId, data: object, context: object, *, queue: str | None = None) -> Admission:
        """What makes a run exist; `NotSerializable` if what it is given cannot be stored."""
        return self._admissions.of(run_id, data, context, queue)

    async def admit(self, run_id: RunId, data: object, context: object) -> OpenRun:
        admission = self.admission(run_id, data, context)
        refuse_run_inside_borrower(self.store, run_id)
        asked_at = trio.current_time()
        lease = await self._writer().admit(admission)  # also for who is cancelled meanwhile: it must be given up
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            await self._release(lease)
            raise
        return OpenRun(run_id=run_id, data=data, context=context, journal=self._journal(lease), since=asked_at)

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        await call_store(lambda: waiting_pause(self.store, token))
        read = await self._read(Lease(run_id=run_id, owner="", epoch=0))
        pause = read.journal.waiting(path)
        if pause is None:
            raise AlreadyAnswered(f"the pause at {token!r} has been answered already")
        return pause

    async def answer(self, token: str, answer: object, *, wait: bool) -> OpenRun:
        run_id, path = parse_token(token)
        record = Record(
            kind="answered", path=path, body=record_bodies.make_body(answer=record_bodies.stored_value(answer))
        )
        refuse_run_inside_borrower(self.store, run_id)
        if not wait:
            await refuse_if_held(self.store, run_id)  # before the answer is used up
        await call_store(lambda: self.store.answer(run_id, path, token=token, record=record))
        return await self.reopen(run_id, wait=wait, answered=True)

    async def take(self, run_id: RunId) -> OpenRun:
        """Open a run that waits for a worker; `RunLeased` if somebody was faster, `NotPaused` if it has ended."""
        run = await call_store(lambda: self.store.get(run_id))
        lease_s, died = self.settings.lease_s, run.last_owner is not None
        lease = await call_store(lambda: granted(self.store, run, lease_s), if_left=partial(give_up, self.store))
        begin = partial(self._begun, lease) if lease.epoch == 1 else partial(self._opened, lease, run, after_death=died)
        return await self._or_give_up(lease, begin)

    async def take_new(self, run_id: RunId) -> TakenRun | None:
        """Claim a run that waits for its first worker, and read it, in one go; `None` if that cannot be done."""
        claim = partial(granted_new, self.store, run_id, self.settings.lease_s)
        return await call_store(claim, if_left=partial(give_up_new, self.store))

    async def open_new(self, taken: TakenRun) -> OpenRun:
        """Open a run that was taken so."""
        return await self._or_give_up(taken.lease, partial(self._begun, taken.lease, list(taken.records)))

    async def _begun(self, lease: Lease, records: list[Record] | None = None) -> OpenRun:
        """A run that nobody has begun before."""
        self._writer().hold(lease, _told_by_the_store)
        return attrs.evolve(await self._read(lease, records), resumed=False)

    async def defer(self, token: str, decision: Any, *, wait: bool) -> OpenRun:
        run_id, _ = parse_token(token)
        if not wait:
            await refuse_if_held(self.store, run_id)
        await call_store(lambda: put_off(self.store, token, decision))
        return await self.reopen(run_id, wait=wait, answered=True)

    async def expire(self) -> None:
        if hasattr(self.store, "expire"):  # otherwise nothing in it has a deadline
            await call_store(lambda: expire(self.store))

    async def next_due_s(self) -> float | None:
        return await call_store(self.store.next_due_s) if hasattr(self.store, "next_due_s") else None

    async def reopen(self, run_id: RunId, *, wait: bool, answered: bool = False, cancel: str | None = None) -> OpenRun:
        refuse_run_inside_borrower(self.store, run_id)
        lease = await claimed(self.store, run_id, lease_s=self.settings.lease_s, wait=wait, answered=answered)
        return await self._or_give_up(lease, partial(self._reopened, lease, cancel))

    async def _reopened(self, lease: Lease, cancel: str | None) -> OpenRun:
        run = await call_store(lambda: self.store.get(lease.run_id))
        refuse_if_ended(run)  # it may have ended before the claim
        opened = await self._opened(lease, run)
        if cancel is not None:
            await opened.journal.cancel(cancel)
        return opened

    async def _or_give_up(self, lease: Lease, begin: Callable[[], Awaitable[OpenRun]]) -> OpenRun:
        """The run that was claimed; whatever keeps it from being opened, others may have it then."""
        try:
            return await begin()
        except BaseException:
            await self._release(lease)
            raise

    async def _opened(self, lease: Lease, run: StoredRun, *, after_death: bool = False) -> OpenRun:
        self._writer().hold(lease, _told_by_the_store)  # reading a long run may take longer than a lease
        opened = await self._read(lease)
        told = {"owner": lease.owner, "epoch": lease.epoch, **({AFTER_DEATH: True} if after_death else {})}
        note = Record(kind="resumed", path=ROOT, body=record_bodies.make_body(**told))
        unasked = _journal_of(opened).unasked(run.pauses)
        await self._writer().write(Append(lease=lease, records=(note,), pauses=unasked, status="running"), None, None)
        return attrs.evolve(opened, deaths=opened.deaths + 1) if after_death else opened

    async def _read(self, lease: Lease, new: list[Record] | None = None) -> OpenRun:
        """All that the run has stored, read, unless it is new: `CorruptRecord` names what cannot be."""
        records = await call_store(lambda: self.store.read(lease.run_id)) if new is None else new
        data, context = self._given(lease.run_id, records)
        journal = self._journal(lease)
        if new is None:  # a new run has its admission alone, which says nothing of steps
            await call_store(lambda: journal.load(records))
        return OpenRun(
            run_id=lease.run_id,
            data=data,
            context=context,
            journal=journal,
            resumed=True,
            deaths=deaths_without_progress(records),
        )

    def _given(self, run_id: RunId, records: list[Record]) -> tuple[object, object]:
        """The input and the context that the run was started with, if this pipeline may go on with it."""
        return given_to(self.pipeline, run_id, records, self.mode)

    async def rest(self, run: OpenRun, result: PipelineResult) -> None:
        if _journal_of(run).at_rest:
            await self._end_resting(run.run_id, result)
        else:
            await _journal_of(run).ended(result)

    async def end_as_failed(self, run: OpenRun, feedback: str) -> None:
        """End a run that is not begun again."""
        await _journal_of(run).ended(PipelineResult(run_id=run.run_id, status="failed", feedback=feedback))

    async def _end_resting(self, run_id: RunId, result: PipelineResult) -> None:
        """End a run that waits for an answer; whoever has taken it up by now has the last word."""
        with contextlib.suppress(RunLeased, NotPaused):
            opened = await self.reopen(run_id, wait=False)
            await _journal_of(opened).ended(result)

    async def put_back(self, run: OpenRun) -> None:
        journal = _journal_of(run)
        if journal.at_rest:
            await self._heed_request(journal.lease)
        else:
            status: StoredStatus | None = "paused" if journal.asks else None
            await self._release(journal.lease, status=status, records=journal.take_held())

    async def _release(
        self, lease: Lease, *, status: StoredStatus | None = None, records: tuple[Record, ...] = ()
    ) -> None:
        """Let another process have the run at once, instead of when the lease expires; not if the store is silent."""
        as_if_cancelled = trio.CancelScope(deadline=-math.inf)
        with as_if_cancelled, contextlib.suppress(StoreError):  # then the lease expires by itself
            await self._writer().write(Append(lease=lease, records=records, status=status, release=True), None, None)
        await self._heed_request(lease)

    async def _heed_request(self, lease: Lease) -> None:
        """End a run that was given up just when somebody asked for its end."""
        request = self._writer().request_for(lease)
        if request is not None:
            with trio.move_on_after(PATIENCE_S, shield=True), contextlib.suppress(StoreError, NotPaused):
                await call_store(lambda: end_as_aborted(self.store, lease.run_id, request))

    def holding(self, run: OpenRun) -> Holding:
        return Holding(self._writer(), _journal_of(run).lease, self.redact, since=run.since)

    async def left_behind(self) -> list[RunId]:
        """The runs of this pipeline that are under way, and those whose questions are answered."""
        found = await self.left_runs()
        return [run.run_id for run in sorted(found, key=lambda run: not can_be_had(self.store, run))]

    async def left_runs(self) -> list[StoredRun]:
        """The same as a listing shows them, latest change first."""
        name = self.pipeline.title
        running = await call_store(lambda: self.store.find(RunQuery(pipeline=name, status="running")))
        paused = await call_store(lambda: self.store.find(RunQuery(pipeline=name, status="paused")))
        waiting = (run for run in paused if not run.pauses or run.expired)
        return [*(run for run in running if not run.unclaimed), *waiting]

    def _writer(self) -> JournalWriter:
        return writer_for(self.store, lease_s=self.settings.lease_s)

    def journal_of(self, lease: Lease) -> StoreJournal:
        """A journal to read a run with, or to write to it under its lease."""
        return self._journal(lease)

    def _journal(self, lease: Lease) -> StoreJournal:
        return StoreJournal(
            self.store,
            self._writer(),
            lease,
            redact=self.redact,
            schema_of=self._schema_of,
            step_at=self._step_at,
            cold=self.settings.cold,
        )


class Holding(Hold):
    """While a run is open: its lease is renewed, and whoever works on it is told when it is lost or shall end."""

    def __init__(
        self, writer: JournalWriter, lease: Lease, redact: record_bodies.Redact, *, since: float | None
    ) -> None:
        super().__init__(Halt())
        self._writer, self._lease, self._redact, self._since = writer, lease, redact, since

    def __enter__(self) -> Hold:
        self._writer.hold(self._lease, self.lose, since=self._since)
        self._writer.watch(self._lease, self._end)
        at_work.add(self._lease)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self.scope.__exit__(kind, error, traceback)
        finally:
            at_work.discard(self._lease)
            self._writer.let_go(self._lease)

    def _end(self, request: CancelRequest) -> None:
        assert self.halt is not None
        self.halt.now(self._redact(request.told), undoes=request.undoes)


def _told_by_the_store(lost: LeaseLost) -> None:
    """Nothing is done yet, and the first write will be refused."""


def _journal_of(run: OpenRun) -> StoreJournal:
    assert isinstance(run.journal, StoreJournal)
    return run.journal
