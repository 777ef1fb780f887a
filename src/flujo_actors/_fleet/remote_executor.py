"""Remote executor: the worker side of remote steps.

Rules:

1. A remote step is executed under its own lease, and writes to its own run; its paths and keys are the root's.
2. The outcome of a single step and the end of the remote run are one commit.
3. Its pauses are pauses of its own run; the waiting caller repeats them in its run.
4. A parked one keeps its work; one that is cancelled for good ends as aborted.
5. A control error, which ends the whole run, is passed on by name.

Sections:

- Remote steps in a store: opening, ending and parking.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from .._core.attempt_results import AttemptStopped, escalating
from .._core.outcomes import Aborted, Failure, Paused, RunId, Success, TerminalOutcome
from .._core.records import record_bodies
from .._core.records.records import Append, Lease, Record, StoredStatus, poisonous
from .._core.step_paths import ROOT, StepPath
from .._core.usage import NO_USAGE, Usage
from .._dsl.declaration_tree import find_step
from .._durable.durable_run_registry import DurableRunRegistry
from .._durable.journal import Recorded
from .._durable.run_admission import answer_schema_at, step_at
from .._durable.run_registry import OpenRun
from .._durable.store_executor import call_store
from .._durable.store_journal import StoreJournal
from .._runtime.run.messages import EventStream, InheritedScope, StepRequest, UsageTotal
from .._runtime.run.run_environment import RemoteSteps, Run
from .._runtime.tree.run_supervisor import first_cause
from .._runtime.tree.step_actor import RunSupervisor
from ..errors import ControlError, CorruptRecord, FingerprintMismatch
from .budget_ledger import drawn_on, warning
from .remote_call import ENDED, PARKED, control_data
from .remote_request import RemoteItem, RemoteRequest, event_stream_of, in_trace, quota_of, read_request, set_carried
from .remote_result import NestedRemoteSteps
from .remote_stream import ChunkPublisher, listener_of, signal_of

if TYPE_CHECKING:
    from .._bridge.host_loop import Host
    from .._core.quota import Amount, Quota
    from .._core.records.records import ClaimedRun
    from .._core.settings_model import FleetSettings
    from ..stores.postgres._session import Signals


# --- Remote steps in a store --------------------------------------------------------------------------------------


class RemoteJournal(StoreJournal):
    """The journal of a remote step; see rule 2."""

    puts_away = False
    """Its parent waits for it: its own waits pass in process."""
    top: StepPath | None = None
    """The single step that this is all about."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        if path != self.top:
            return await super().settled(path, record)
        append = Append(
            lease=self.lease,
            records=(self._settled_record(path, record),),
            withdrawn=self._withdraw(path),
            evidence=record.evidence,
            status="completed" if isinstance(record.outcome, Success) else "failed",
            release=True,
        )
        await self._writer.write(append, self, None)
        self.at_rest = True
        return record

    async def end(self, status: StoredStatus, **said: object) -> None:
        """Record the end or pause of the remote run."""
        await self._write("ended", ROOT, record_bodies.make_body(status=status, **said), status=status, release=True)
        self.at_rest = True

    async def park(self) -> None:
        """Park the run until a caller waits for it again."""
        await self._writer.write(Append(lease=self.lease, records=(), status="paused", release=True), None, None)
        self.at_rest = True


@attrs.define(kw_only=True, eq=False)
class RemoteRuns(DurableRunRegistry):
    """Remote steps in a store, of callers that have the same pipeline."""

    version: str
    asked: RemoteRequest | None = attrs.field(default=None, init=False)

    def _given(self, run_id: RunId, records: list[Record]) -> tuple[object, object]:
        where = f"record 1 of the remote step {run_id!r}"
        if not records or records[0].kind != "admitted":
            raise CorruptRecord(f"{where}: it is not its admission")
        body = record_bodies.read_body(records[0].body, where=where)
        self.asked = read_request(body, where=where)
        if self.asked.version != self.version and self.mode == "strict":
            raise FingerprintMismatch(
                f"{run_id!r} is a step of another version of the pipeline: it was requested by {self.asked.version}, "
                f"and this worker executes {self.version}"
            )
        return None, None

    async def put_back(self, run: OpenRun) -> None:
        """Release an unfinished step; a nested pause does not pause it."""
        journal = run.journal
        assert isinstance(journal, RemoteJournal)
        if journal.at_rest:
            await super().put_back(run)
        else:
            await self._release(journal.lease)

    def _journal(self, lease: Lease) -> RemoteJournal:
        return RemoteJournal(
            self.store,
            self._writer(),
            lease,
            redact=self.redact,
            schema_of=partial(answer_schema_at, self.pipeline),
            step_at=partial(step_at, self.pipeline),
            cold=self.settings.cold,
        )


# --- Remote executor ----------------------------------------------------------------------------------------------


MakeRun = Callable[..., Run]
"""A run of this worker's `Flujo`, of that id, with that journal."""


class KnownSizes:
    """Call sizes of limited runs here; only first calls are guesses.

    Near a limit, guessed calls run one at a time.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[RunId, dict[str, Amount]] = OrderedDict()

    def of(self, run: RunId) -> dict[str, Amount]:
        """Return one run's sizes by caller, shared by its steps."""
        known = self._of.setdefault(run, {})
        self._of.move_to_end(run)
        if len(self._of) > _RUNS_KNOWN:
            self._of.popitem(last=False)
        return known


_RUNS_KNOWN = 1000
"""Of how many runs a worker remembers how large their calls are."""


@attrs.frozen(kw_only=True, eq=False)
class RemoteExecutor:
    """Executor of remote steps for one worker."""

    runs: DurableRunRegistry
    version: str
    make_run: MakeRun
    remote: Callable[[], RemoteSteps | None]
    settings: FleetSettings
    signals: Signals | None
    carry: tuple[ContextVar[object], ...]
    guess: Amount
    """Estimate of a first call under limits."""
    _sizes: KnownSizes = attrs.field(factory=lambda: KnownSizes(), init=False)

    async def execute(
        self, child: RunId, host: Host, *, claimed: ClaimedRun | None = None, per_key: int | None = None
    ) -> None:
        """Claim a remote step if needed; execute it from its last record."""
        ours = self.runs
        runs = RemoteRuns(
            store=ours.store,
            pipeline=ours.pipeline,
            settings=ours.settings,
            redact=ours.redact,
            mode=ours.mode,
            version=self.version,
        )
        opened = await (runs.take(child, per_key=per_key) if claimed is None else runs.open_claimed(claimed))
        asked, journal = runs.asked, opened.journal
        assert asked is not None
        assert isinstance(journal, RemoteJournal)
        try:
            with runs.lease_hold(opened) as hold:
                assert hold.halt is not None
                outcomes = await hold.halt.unless_requested(
                    functools.partial(self._outcomes, opened, asked, journal, host)
                )
                await _record_end(journal, outcomes)
            hold.check()
        finally:
            await runs.put_back(opened)
            self._notify_caller(asked, child)

    def _notify_caller(self, request: RemoteRequest, child: RunId) -> None:
        if self.signals is not None and request.reply is not None:
            self.signals.send(request.reply, signal_of(ENDED, child), about=child)

    async def _outcomes(
        self, opened: OpenRun, request: RemoteRequest, journal: RemoteJournal, host: Host
    ) -> list[TerminalOutcome]:
        why = poisonous(opened.deaths, max_deliveries=self.settings.max_deliveries)
        if why is not None:
            await journal.end("failed", feedback=why)
            return []
        set_carried(self.carry, request.carried)
        with in_trace(request.trace, request.labels):
            now = await self._now(request)
            requests = [self._request(request, item, now) for item in request.items]
            await drawn_on(self.runs.store, request.run, journal, requests)
            journal.top = requests[0].path if len(requests) == 1 else None
            async with self._event_stream(opened, request, journal.lease.epoch) as event_stream:
                run = self._run(opened, request, host, event_stream)
                async with warning(run, journal):
                    return await _all_executed(run, requests)

    async def _now(self, request: RemoteRequest) -> float:
        """Return the store's clock, if the step draws on budgets of windows."""
        has_windows = any("window" in limit for item in request.items for limit in item.limits)
        return await call_store(self.runs.store.now) if has_windows else 0.0

    @contextlib.asynccontextmanager
    async def _event_stream(
        self, opened: OpenRun, request: RemoteRequest, epoch: int
    ) -> AsyncIterator[EventStream | None]:
        """Yield the steps' event stream for a reader; flush it finally."""
        if self.signals is None or request.reply is None or request.streams is None:
            yield None
            return
        event_stream = event_stream_of(request.streams, self.runs.pipeline)
        publisher = ChunkPublisher(self.signals, request.reply, opened.run_id, epoch, listener_of(self.signals.url))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.pass_on, event_stream)
            yield event_stream
            event_stream.close()

    def _run(self, opened: OpenRun, request: RemoteRequest, host: Host, event_stream: EventStream | None) -> Run:
        remote = self.remote()
        here = frozenset(item.path for item in request.items)
        away = None if remote is None else NestedRemoteSteps(remote=remote, here=here)
        labelled = attrs.evolve(opened, labels=request.labels)
        return self.make_run(labelled, host, root=request.run, event_stream=event_stream, remote=away)

    def _quotas(self, request: RemoteRequest, item: RemoteItem, now: float) -> tuple[Quota, ...]:
        known = self._sizes.of(request.run) if item.limits else {}
        return tuple(quota_of(data, guess=self.guess, known=known, now=now) for data in item.limits)

    def _request(self, request: RemoteRequest, item: RemoteItem, now: float) -> StepRequest:
        step = find_step(self.runs.pipeline, item.path)
        if step is None:
            raise FingerprintMismatch(f"there is no step at {item.path!r} of this worker's pipeline")
        return StepRequest(
            step=step,
            name=item.name,
            path=item.path,
            parent=None,
            data=item.data,
            context=request.context,
            around=InheritedScope(quotas=self._quotas(request, item, now), scope=item.scope),
            served=True,
        )


async def _all_executed(run: Run, requests: list[StepRequest]) -> list[TerminalOutcome]:
    """Return the steps' ends; earlier settled steps are not repeated."""
    recorded = {request.path: run.journal.recall(request.path) if run.resumed else None for request in requests}
    outcomes = [record.outcome for record in recorded.values() if record is not None]
    try:
        async with RunSupervisor(run).children(UsageTotal()) as steps:
            for request in requests:
                if recorded[request.path] is None:
                    steps.spawn(request)
            while steps.waiting:
                settled = await steps.next()
                assert settled is not None
                outcomes.append(settled.outcome)
    except BaseExceptionGroup as group:  # one failed commit is the error of all steps in it
        raise first_cause(group) from None
    return outcomes


async def _record_end(journal: RemoteJournal, outcomes: list[TerminalOutcome] | AttemptStopped) -> None:
    """Record the remote run's end or pause, unless recorded."""
    if journal.at_rest:
        return
    if isinstance(outcomes, AttemptStopped):
        assert isinstance(outcomes.outcome, Aborted)
        if outcomes.outcome.reason == PARKED:
            await journal.park()
        else:
            await journal.end("aborted", feedback=outcomes.outcome.reason)
        return
    control = next((error for each in outcomes if (error := _control_in(each)) is not None), None)
    used = sum((_used_by(each) for each in outcomes), NO_USAGE)
    aborted = next((each for each in outcomes if isinstance(each, Aborted)), None)
    if control is not None:
        spent = record_bodies.usage_data(used)
        await journal.end("failed", feedback=str(control), control=control_data(control), usage=spent)
    elif aborted is not None:
        await journal.end("aborted", feedback=aborted.reason)
    elif any(isinstance(each, Paused) for each in outcomes):
        await journal.end("paused")
    else:
        await journal.end("completed")


def _used_by(outcome: TerminalOutcome) -> Usage:
    """Return the usage of a step without record, ended by control."""
    if not isinstance(outcome, Failure) or outcome.step_result is None or _control_in(outcome) is None:
        return NO_USAGE
    return outcome.step_result.usage


def _control_in(outcome: TerminalOutcome) -> BaseException | None:
    error = escalating(outcome.error) if isinstance(outcome, Failure) else None
    return error if isinstance(error, ControlError) else None
