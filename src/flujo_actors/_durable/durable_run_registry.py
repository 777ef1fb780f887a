"""Registry of durable runs: stored, owned by one process at a time.

Rules:

1. A run exists in the store before any of its work is done.
2. Opening a run claims its lease; putting it back releases it. While it is open the lease is renewed, and if it is lost
   all the same, the run is cancelled at once.
3. A run is resumed only by its original pipeline, unless the caller requests otherwise.
4. An answer is stored before it is used. All records of the run were read before, and no later check of the answer can
   refuse the run: an answered run can be resumed.
5. An ended run is never opened again: it would complete by having nothing to do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .._core.labels import NO_LABELS, Labels
from .._core.outcomes import PipelineResult, RunId
from .._core.records import record_bodies
from .._core.records.context_patches import StoredContexts
from .._core.records.pause_tokens import parse_token
from .._core.records.records import (
    AFTER_DEATH,
    Admission,
    Append,
    CancelRequest,
    ClaimedRun,
    ClaimOrder,
    Lease,
    OpenFact,
    OpenPause,
    Record,
    RunQuery,
    StoredRun,
    StoredStatus,
    deaths_without_progress,
)
from .._core.records.run_state import RetryRecord, kept_records, new_retry, retries_in
from .._core.settings_model import DurabilitySettings
from .._core.step_paths import ROOT
from .._core.usage import NO_USAGE
from .._dsl.kinds import MapOver
from .._dsl.pipeline import Pipeline
from ..errors import (
    AlreadyAnswered,
    LeaseLost,
    NotPaused,
    RunLeased,
    StoreError,
)
from ..stores._store_port import Store, required
from . import long_runs
from .cancel_requests import end_as_aborted
from .claims import (
    can_be_had,
    claim_abandoned,
    claimed,
    granted,
    owned_here,
    refuse_if_asleep,
    refuse_if_ended,
    refuse_if_held,
    refuse_run_inside_borrower,
    release_run,
    release_runs,
)
from .group_commit import JournalWriter, writer_for
from .journal import Pause
from .leases import new_owner
from .long_runs import LongRun
from .pause_lookup import expire, postponed, waiting_in_run
from .remote_result_refs import refers_to_runs
from .run_admission import (
    Admissions,
    ResumeMode,
    answer_schema_at,
    carried_to,
    dropped_usage,
    is_same_pipeline,
    start_values,
    step_at,
    widest_mode,
)
from .run_registry import NOTHING_CARRIED, LeaseHold, OpenRun, StopRequest
from .store_executor import PATIENCE_S, call_store
from .store_journal import SchemaOf, StoreJournal, read_pause

if TYPE_CHECKING:
    from .compensation_records import StepAt
    from .operations.webhooks import RunMessages, Webhooks


_DUE_AT_ONCE = 100
"""Number of due runs that a store makes claimable at once."""

_PUT_AWAY: tuple[StoredStatus, ...] = ("paused", "sleeping")

_OWNED: tuple[OpenFact, ...] = ("leased", "unreleased")
"""Facts of claimed runs: an owner may die before it writes that the run continues."""


@attrs.define(kw_only=True, eq=False)
class DurableRunRegistry:
    """The runs of one pipeline in a store; see the module's rules."""

    store: Store
    pipeline: Pipeline
    settings: DurabilitySettings
    redact: record_bodies.Redact
    mode: ResumeMode = "strict"
    webhooks: Webhooks | None = None
    _admissions: Admissions = attrs.field(init=False)
    _schema_of: SchemaOf = attrs.field(init=False)
    _step_at: StepAt = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._admissions = Admissions(self.pipeline)
        self._schema_of = partial(answer_schema_at, self.pipeline)
        self._step_at = partial(step_at, self.pipeline)

    def admission(
        self,
        run_id: RunId,
        data: object,
        context: object,
        *,
        queue: str | None = None,
        carried: Mapping[str, object] = NOTHING_CARRIED,
        labels: Labels = NO_LABELS,
    ) -> Admission:
        """Return the admission of a run; raise `NotSerializable` for unstorable data."""
        if labels:
            required(self.store, "set_labels", subject="a run with labels", port="RunLabels")
        admission = self._admissions.of(run_id, data, context, queue, carried, labels)
        return admission if self.webhooks is None else self.webhooks.noted(admission)

    async def admit(self, run_id: RunId, data: object, context: object, labels: Labels = NO_LABELS) -> OpenRun:
        admission = self.admission(run_id, data, context, labels=labels)
        refuse_run_inside_borrower(self.store, run_id)
        asked_at = trio.current_time()
        lease = await self._writer().admit(admission)  # also for a cancelled caller: it must be released
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            await self._release(lease)
            raise
        journal = self._journal(lease)
        journal.outbox = self._messages(run_id, labels)
        return OpenRun(run_id=run_id, data=data, context=context, journal=journal, since=asked_at, labels=labels)

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        asked, run = await call_store(lambda: waiting_in_run(self.store, token))
        if run.records > long_runs.LONG_RUN and self._can_read_parts():
            return await call_store(lambda: self._pause_of_long(run_id, asked))
        read = await self._read(Lease(run_id=run_id, owner="", epoch=0))
        pause = read.journal.waiting(path)
        if pause is None:
            raise AlreadyAnswered(f"the pause at {token!r} has been answered already")
        return pause

    def _pause_of_long(self, run_id: RunId, asked: OpenPause) -> Pause:
        """Return a pause of a long run, without its context; blocks."""
        outside = self.store.read_outside(run_id)
        if not is_same_pipeline(self.pipeline, run_id, outside, known=self._admissions.known):
            self._given(run_id, self.store.read(run_id))
        record = Record(kind="paused", path=asked.path, body=asked.body, at=asked.asked_at)
        return read_pause(record, self._schema_of(asked.path), StoredContexts(), where=f"the pause at {asked.token!r}")

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

    async def take(self, run_id: RunId, *, per_key: int | None = None) -> OpenRun:
        """Open a queued run; raise `RunLeased` or `NotPaused` if impossible."""
        run = await call_store(lambda: self.store.get(run_id))
        if run.is_asleep:
            await call_store(partial(refuse_if_asleep, self.store, run))
        lease_s, died, since = self.settings.lease_s, run.last_owner is not None, trio.current_time()
        claim = partial(granted, self.store, run, lease_s, per_key)
        lease = await call_store(claim, if_left=partial(release_run, self.store))
        new = partial(self._new_run, lease, labels=run.labels, key=run.key)
        again = partial(self._opened, lease, run, after_death=died)
        return await self._or_release(lease, partial(new if lease.epoch == 1 else again, since=since))

    async def take_next(self, order: ClaimOrder) -> list[ClaimedRun]:
        """Claim the next queued runs of an order at once."""
        claim = partial(self.store.claim_next, order, owner=new_owner(), lease_s=self.settings.lease_s)
        return await call_store(claim, if_left=partial(release_runs, self.store))

    async def open_claimed(self, taken: ClaimedRun) -> OpenRun:
        """Open a run of such a claim."""
        new = partial(self._new_run, taken.lease, list(taken.records), labels=taken.run.labels, key=taken.run.key)
        again = partial(self._opened, taken.lease, taken.run, since=trio.current_time(), records=taken.records)
        return await self._or_release(taken.lease, new if taken.lease.epoch == 1 else again)

    async def claim_abandoned(self, run_ids: Sequence[RunId]) -> dict[RunId, Callable[[], Awaitable[OpenRun]]]:
        """Claim the available ones of these runs at once, if possible."""
        if not hasattr(type(self.store), "claim_all"):  # a wrapper may have its own `read`, and only pass on the rest
            return {}
        claim = partial(claim_abandoned, self.store, run_ids, self.settings.lease_s)
        taken = await call_store(claim, if_left=partial(release_runs, self.store))
        return {each.run.run_id: partial(self.open_claimed, each) for each in taken}

    async def _new_run(
        self,
        lease: Lease,
        records: list[Record] | None = None,
        *,
        labels: Labels,
        key: str = "",
        since: float | None = None,
    ) -> OpenRun:
        """Return a run that was never started before."""
        self._writer().hold(lease, _reported_by_store, since=since)
        return attrs.evolve(await self._read(lease, records, labels), resumed=False, key=key)

    async def defer(self, token: str, decision: Any, *, wait: bool) -> OpenRun:
        run_id, _ = parse_token(token)
        if not wait:
            await refuse_if_held(self.store, run_id)
        await call_store(lambda: postponed(self.store, token, decision))
        return await self.reopen(run_id, wait=wait, answered=True)

    async def expire(self) -> None:
        if hasattr(self.store, "expire"):  # otherwise nothing in it has a deadline
            await call_store(lambda: expire(self.store))
        while hasattr(self.store, "due") and await call_store(self.store.due) >= _DUE_AT_ONCE:
            pass  # delayed starts become claimable, too

    async def next_due_s(self) -> float | None:
        return await call_store(self.store.next_due_s) if hasattr(self.store, "next_due_s") else None

    async def reopen(self, run_id: RunId, *, wait: bool, answered: bool = False, cancel: str | None = None) -> OpenRun:
        refuse_run_inside_borrower(self.store, run_id)
        lease, since = await claimed(
            self.store,
            run_id,
            lease_s=self.settings.lease_s,
            wait=wait,
            answered=answered,
            early=answered or cancel is not None,
        )
        return await self._or_release(lease, partial(self._reopened, lease, cancel, since))

    async def _reopened(self, lease: Lease, cancel: str | None, since: float) -> OpenRun:
        run = await call_store(lambda: self.store.get(lease.run_id))
        refuse_if_ended(run)  # it may have ended before the claim
        opened = await self._opened(lease, run, since=since)
        if cancel is not None:
            await opened.journal.cancel(cancel)
        return opened

    async def _or_release(self, lease: Lease, begin: Callable[[], Awaitable[OpenRun]]) -> OpenRun:
        """Open the claimed run, or release it on any error."""
        try:
            return await begin()
        except BaseException:
            await self._release(lease)
            raise

    async def _opened(
        self,
        lease: Lease,
        run: StoredRun,
        *,
        since: float,
        after_death: bool = False,
        records: Sequence[Record] = (),
    ) -> OpenRun:
        self._writer().hold(lease, _reported_by_store, since=since)  # reading a long run may take longer than a lease
        is_long = run.records > long_runs.LONG_RUN and not records and self._can_read_parts()
        read = self._read_parts(lease, run.labels) if is_long else self._read(lease, labels=run.labels, claimed=records)
        opened = attrs.evolve(await read, key=run.key)
        facts = {"owner": lease.owner, "epoch": lease.epoch, **({AFTER_DEATH: True} if after_death else {})}
        note = Record(kind="resumed", path=ROOT, body=record_bodies.make_body(**facts))
        unasked = _journal_of(opened).unasked((*run.pauses, *run.waits))
        await self._writer().write(Append(lease=lease, records=(note,), pauses=unasked, status="running"), None, None)
        return attrs.evolve(opened, deaths=opened.deaths + 1) if after_death else opened

    async def _read(
        self,
        lease: Lease,
        new: list[Record] | None = None,
        labels: Labels = NO_LABELS,
        claimed: Sequence[Record] = (),
    ) -> OpenRun:
        """Read a run's records; `CorruptRecord` names an unreadable one."""
        known = new or list(claimed)
        records = known or await call_store(lambda: self.store.read(lease.run_id))
        retries = retries_in(records) if new is None else []
        whole, records = records, kept_records(records) if retries else records
        data, context = self._given(lease.run_id, records)
        journal = self._journal(lease)
        journal.outbox = self._messages(lease.run_id, labels)
        if new is None:  # a new run has only its admission, without steps
            await _load(journal, records, at_once=bool(claimed))
        return OpenRun(
            run_id=lease.run_id,
            data=data,
            context=context,
            journal=journal,
            resumed=True,
            deaths=deaths_without_progress(records),
            carried=carried_to(lease.run_id, records),
            retry=new_retry(whole) if retries else None,
            dropped_usage=await call_store(lambda: dropped_usage(lease.run_id, whole)) if retries else NO_USAGE,
            key_id=RunId(f"{lease.run_id}~r{fresh}") if (fresh := _last_fresh(retries)) else None,
            labels=labels,
        )

    def _can_read_parts(self) -> bool:
        return hasattr(type(self.store), "read_inside") and not self.settings.cold

    async def _read_parts(self, lease: Lease, labels: Labels) -> OpenRun:
        """Read a long run without its settled items.

        A run that was retried, or whose pipeline changed, is read as a whole.
        """
        run = await call_store(lambda: self._long_run(lease.run_id))
        if run is None:
            return await self._read(lease, labels=labels)
        data, context = self._given(lease.run_id, run.records)
        journal = self._journal(lease)
        journal.outbox = self._messages(lease.run_id, labels)
        await call_store(lambda: journal.load_parts(run))
        return OpenRun(
            run_id=lease.run_id,
            data=data,
            context=context,
            journal=journal,
            resumed=True,
            deaths=deaths_without_progress(each for each in run.records if each.seq > run.progress),
            carried=carried_to(lease.run_id, run.records),
            labels=labels,
        )

    def _long_run(self, run_id: RunId) -> LongRun | None:
        outside = self.store.read_outside(run_id)
        if retries_in(outside) or not is_same_pipeline(self.pipeline, run_id, outside, known=self._admissions.known):
            return None
        run = LongRun(run_id, outside, lambda path: isinstance(self._step_at(path), MapOver))
        run.read(self.store)
        return run

    def _messages(self, run_id: RunId, labels: Labels) -> RunMessages | None:
        """Return the messages of a run to webhooks, if there are any."""
        return None if self.webhooks is None else self.webhooks.messages(run_id, self.pipeline.title, labels)

    def _given(self, run_id: RunId, records: list[Record]) -> tuple[object, object]:
        """Return the start's input and context, if this pipeline may resume."""
        return start_values(
            self.pipeline, run_id, records, widest_mode(self.mode, records), known=self._admissions.known
        )

    async def put_away(self, run: OpenRun, result: PipelineResult) -> None:
        if _journal_of(run).at_rest:
            await self._end_paused(run.run_id, result)
        else:
            await _journal_of(run).ended(result)

    async def end_as_failed(self, run: OpenRun, feedback: str) -> None:
        """End a run that is not begun again."""
        await _journal_of(run).ended(PipelineResult(run_id=run.run_id, status="failed", feedback=feedback))

    async def _end_paused(self, run_id: RunId, result: PipelineResult) -> None:
        """End a paused run, unless another owner has claimed it."""
        with contextlib.suppress(RunLeased, NotPaused):
            opened = await self.reopen(run_id, wait=False)
            await _journal_of(opened).ended(result)

    async def put_back(self, run: OpenRun) -> None:
        journal = _journal_of(run)
        if journal.at_rest:
            await self._apply_cancel_request(journal.lease)
        else:
            status: StoredStatus | None = "paused" if journal.asks else None
            await self._release(journal.lease, status=status, records=journal.take_held())

    async def _release(
        self, lease: Lease, *, status: StoredStatus | None = None, records: tuple[Record, ...] = ()
    ) -> None:
        """Release the run at once, unless the store is silent."""
        as_if_cancelled = trio.CancelScope(deadline=-math.inf)
        with as_if_cancelled, contextlib.suppress(StoreError):  # then the lease expires by itself
            await self._writer().write(Append(lease=lease, records=records, status=status, release=True), None, None)
        await self._apply_cancel_request(lease)

    async def _apply_cancel_request(self, lease: Lease) -> None:
        """End a run released at the moment of a cancel request."""
        request = self._writer().request_for(lease)
        if request is not None:
            with trio.move_on_after(PATIENCE_S, shield=True), contextlib.suppress(StoreError, NotPaused):
                await call_store(lambda: end_as_aborted(self.store, lease.run_id, request))

    def lease_hold(self, run: OpenRun) -> RunHolder:
        return RunHolder(self._writer(), _journal_of(run), self.redact, since=run.since)

    async def abandoned(self) -> list[RunId]:
        """Return this pipeline's running and answered runs."""
        found = await self.abandoned_runs()
        return [run.run_id for run in sorted(found, key=lambda run: not can_be_had(self.store, run))]

    async def abandoned_runs(self) -> list[StoredRun]:
        """Return the same as a listing shows them, latest change first."""
        name = self.pipeline.title
        running = await call_store(lambda: self.store.find(RunQuery(pipeline=name, status="running")))
        ready = [RunQuery(pipeline=name, status=status, answered=True) for status in _PUT_AWAY]
        owned = [RunQuery(pipeline=name, status=status, facts=_OWNED) for status in _PUT_AWAY]
        put_away = await call_store(lambda: [run for query in (*ready, *owned) for run in self.store.find(query)])
        waiting = (
            run
            for run in put_away
            if run.ready or not (run.pauses or run.waits) or run.expired or run.last_owner is not None
        )
        return [*(run for run in running if not run.unclaimed), *waiting]  # a due delayed start has no owner yet

    def _writer(self) -> JournalWriter:
        return writer_for(self.store, lease_s=self.settings.lease_s)

    def check_records(self, run_id: RunId, records: Sequence[Record]) -> None:
        """Read the records as a resume does; `CorruptRecord` names a wrong one."""
        nothing_written: Any = None
        self._journal_of(Lease(run_id=run_id, owner="", epoch=0), nothing_written).load(records)

    def _journal(self, lease: Lease) -> StoreJournal:
        return self._journal_of(lease, self._writer())

    def _journal_of(self, lease: Lease, writer: JournalWriter) -> StoreJournal:
        return StoreJournal(
            self.store,
            writer,
            lease,
            redact=self.redact,
            schema_of=self._schema_of,
            step_at=self._step_at,
            cold=self.settings.cold,
        )


SHORT = 50
"""Number of records of a claimed run that are loaded without a thread."""


async def _load(journal: StoreJournal, records: list[Record], *, at_once: bool) -> None:
    """Load the records, in a thread unless they are few."""
    if at_once and len(records) <= SHORT and not refers_to_runs(records):
        journal.load(records)
    else:
        await call_store(lambda: journal.load(records))


class RunHolder(LeaseHold):
    """Hold of an open run: renews its lease, reports loss and stops."""

    def __init__(
        self, writer: JournalWriter, journal: StoreJournal, redact: record_bodies.Redact, *, since: float | None
    ) -> None:
        super().__init__(StopRequest())
        self._writer, self._journal, self._redact, self._since = writer, journal, redact, since
        self._lease = journal.lease

    def __enter__(self) -> LeaseHold:
        self._journal.held = self._writer.hold(self._lease, self.revoke, since=self._since)
        self._writer.watch(self._lease, self._end)
        owned_here.add(self._lease)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self.scope.__exit__(kind, error, traceback)
        finally:
            owned_here.discard(self._lease)
            self._writer.release_lease(self._lease)

    def _end(self, request: CancelRequest) -> None:
        assert self.halt is not None
        self.halt.now(self._redact(request.given_reason), undoes=request.undoes)


def _reported_by_store(lost: LeaseLost) -> None:
    """Report no loss yet; the first write will be refused."""


def _last_fresh(retries: Sequence[RetryRecord]) -> int:
    """Return the number of the last retry from the start."""
    return max((retry.number for retry in retries if retry.from_start), default=0)


def _journal_of(run: OpenRun) -> StoreJournal:
    assert isinstance(run.journal, StoreJournal)
    return run.journal
