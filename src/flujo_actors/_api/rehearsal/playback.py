"""Playback of one recorded run on the present code, in memory.

A playback is a fork of the run in a store of its own, executed by the ordinary runner. Sessions alternate with
recorded answers, as they did in the recorded run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import attrs

from ..._bridge.host_loop import Host
from ..._core.attempt_results import AttemptFailed, AttemptSucceeded, escalating
from ..._core.outcomes import Failure, PipelineResult, RunId, StepResult, Success, TerminalOutcome
from ..._core.quota import Quota
from ..._core.records import record_bodies
from ..._core.records.pause_tokens import parse_token
from ..._core.records.records import Record, RecordKind, StoredRun
from ..._core.settings_model import Settings
from ..._core.step_paths import ROOT, StepPath
from ..._core.usage import UsageLimits
from ..._dsl.pipeline import Pipeline
from ..._dsl.step_declaration import Step
from ..._durable.durable_run_registry import DurableRunRegistry
from ..._durable.fingerprint import Fingerprint, form_of
from ..._durable.forks import RECORDED, REHEARSED, fork, record_of_fork
from ..._durable.journal import Journal
from ..._durable.run_admission import register_types_of
from ..._durable.run_registry import OpenRun, RunRegistry
from ..._runtime.run.messages import StepSettled, StepState
from ..._runtime.run.run_environment import Run
from ..._runtime.run.step_results import charge
from ..._runtime.tree import usage_limits as _loaded_for_budgets  # noqa: F401
from ..._runtime.tree.attempt import AttemptRunner
from ..._runtime.tree.step_actor import RunSupervisor
from ...errors import Diverged
from ...stores._memory_store import MemoryStore
from ...stores._store_port import Store
from .oracle import Oracle, RecordedJournal, RecordEnds, UnitFailed, is_aside
from .recorded_run import UNKNOWN, RecordedRun
from .verdicts import Difference

# --- Gate: every step passes it, and none has an effect ------------------------------------------------------------
# The ordinary supervisor executes the run. This one answers the steps whose effects are recorded, and compares the
# others with their records (`oracle`).


class SilentTelemetry:
    """Redactor of a telemetry without its sinks."""

    enabled = False

    def __init__(self, telemetry: Any) -> None:
        self.redact, self.learn = telemetry.redact, telemetry.learn

    def report(self, kind: object, **facts: object) -> None:
        """Emit nothing."""

    def measure(self, gauges: object) -> None:
        """Report nothing."""


@attrs.frozen(eq=False)
class RunRehearsal:
    """Parts of a run that are replaced for its rehearsal."""

    oracle: Oracle
    budget: Quota | None = None
    """Budget of live model requests, shared by the runs of a rehearsal."""

    def supervisor(self, run: Run, coalesced: frozenset[StepPath]) -> RunSupervisor:
        """Return the supervisor that answers from the record."""
        return RecordedSupervisor(run, oracle=self.oracle)

    def prepared(self, run: Run) -> Run:
        """Return the run without hooks, sinks, engines and shared state."""
        return attrs.evolve(
            run,
            gate=self,
            journal=cast(Journal, RecordedJournal(run.journal, self.oracle)),
            telemetry=cast(Any, SilentTelemetry(run.telemetry)),
            hooks=None,
            remote=None,
            live=None,
            beliefs=None,
            cache=None,
            rates=None,
            retry=None,
        )

    def limits(self, given: UsageLimits | None) -> UsageLimits | None:
        """Return the limits of the run; a budget needs some."""
        return given if given is not None or self.budget is None else UsageLimits()

    @property
    def windows(self) -> RunRehearsal | None:
        """Return the source of shared quotas, if there is a budget."""
        return None if self.budget is None else self

    async def opened(self, run: Run, quota: Quota) -> tuple[Quota, ...]:
        """Return the quotas of the run and of the rehearsal."""
        return (quota,) if self.budget is None else (quota, self.budget)

    async def close(self, run: Run) -> None:
        """Keep the budget for the other runs."""


@attrs.frozen(eq=False)
class RecordedSupervisor(RunSupervisor):
    """Supervisor whose steps are answered by an oracle, or compared with it."""

    oracle: Oracle = attrs.field(kw_only=True)

    async def perform(self, state: StepState) -> StepSettled:
        """Perform a step without effects, and compare it with its record."""
        path = state.request.path
        if self.run.journal.recall(path) is not None:
            if path not in self.oracle.taken:
                self.oracle.checked.setdefault(path)
            return await super().perform(state)
        try:
            match self.oracle.way(path, state.request.step, state.request.data):
                case "run":
                    return await self._executed(state)
                case "recorded":
                    return await self._taken(state)
                case "skip":
                    return await self._answered(state, Success(step_result=StepResult(name=state.name)), state.context)
        except Diverged as error:
            if state.settled is not None or not self._follows(path, error):
                raise
            recorded = self.oracle.recording.outcome(path)
            assert recorded is not None
            return await self._answered(state, recorded, self._recorded_context(state))

    def _follows(self, path: StepPath, error: Diverged) -> bool:
        """Note a divergence; return whether the run continues as recorded.

        Concurrent branches then reach their own divergences, and the first in recorded order is reported.
        """
        self.oracle.divergences.append(error.difference)
        return self.oracle.present.follows and path in self.oracle.recording.settled

    # --- answered from the record ---

    async def _taken(self, state: StepState) -> StepSettled:
        path, step = state.request.path, state.request.step
        outcome = self.oracle.answer(path, step, state.data, sees_context=_sees_context(step))
        self.oracle.taken[path] = None
        result = getattr(outcome, "step_result", None)
        if result is not None:
            charge(state, result.usage, result.step_history)
            state.attempts = result.attempts
        context = self._recorded_context(state)
        if not is_aside(path) and isinstance(outcome, Success) and isinstance(step, Step):
            outcome, context = await self._judged(state, step, outcome, context)
        return await self._answered(state, outcome, context)

    async def _answered(self, state: StepState, outcome: TerminalOutcome, context: object) -> StepSettled:
        """Settle a step that was not executed."""
        request = state.request
        self.open_span(request.path, request.parent)
        self.run.journal.started(request.path, request.name, request.of)
        return await self._settle(state, outcome, context)

    def _recorded_context(self, state: StepState) -> object:
        recording, path = self.oracle.recording, state.request.path
        unchanged = path not in recording.settled or recording.context_data(path) is UNKNOWN
        return state.context if unchanged else recording.context(path)

    async def _judged(
        self, state: StepState, step: Step, outcome: Success, context: object
    ) -> tuple[TerminalOutcome, object]:
        """Validate and merge a recorded output with the present code."""
        result = outcome.step_result
        if step.bare or not _can_be_judged(step, result):
            return outcome, context
        done = AttemptSucceeded(output=result.output, context=state.context, metadata=result.metadata)
        ended = await AttemptRunner(self, state).validated(step, done)
        now: TerminalOutcome = outcome
        if isinstance(ended, AttemptFailed):
            now = Failure(error=ended.error, feedback=ended.feedback, step_result=result)
        merged = ended.context if isinstance(ended, AttemptSucceeded) else context
        difference = self.oracle.compare(state.path, now, merged, state.context)
        if difference is None:
            return outcome, merged
        return (outcome, context) if self._note(difference) else (now, merged)

    # --- executed ---

    async def _executed(self, state: StepState) -> StepSettled:
        settled = await super().perform(state)
        path, outcome = state.path, settled.outcome
        control = escalating(outcome.error) if isinstance(outcome, Failure) else None
        if isinstance(control, UnitFailed):
            return self._as_recorded(state, settled)
        if isinstance(control, Diverged) and self._follows(path, control):
            return self._as_recorded(state, settled)
        if isinstance(control, Diverged | RecordEnds):
            raise control
        if not isinstance(outcome, Success | Failure) or control is not None:
            return settled
        self.oracle.checked[path] = None
        if path not in self.oracle.recording.settled:
            self.oracle.is_changed = True
            return settled
        difference = self.oracle.compare(path, outcome, settled.context, state.context)
        if difference is None or not self._note(difference):
            return settled
        return self._as_recorded(state, settled)

    def _note(self, difference: Difference) -> bool:
        """Note a difference; return whether the run continues as recorded."""
        self.oracle.differences.append(difference)
        self.oracle.is_changed = not self.oracle.present.follows
        return self.oracle.present.follows

    def _as_recorded(self, state: StepState, settled: StepSettled) -> StepSettled:
        outcome = self.oracle.recording.outcome(state.path)
        self.oracle.checked[state.path] = None
        assert outcome is not None
        return attrs.evolve(settled, outcome=outcome, context=self._recorded_context(state))


def _sees_context(step: object) -> bool:
    return isinstance(step, Step) and step.shows_context


def _can_be_judged(step: Step, result: StepResult) -> bool:
    """Return whether the output is as the agent returned it."""
    plain = not step.processors.after_plans and not step.weighs and step.context_sources is None
    own = not (result.metadata or {}).keys() & {"fallback_triggered", "degraded", "cached"}
    return plain and own and not step.plan.sees_context


# --- Performer ----------------------------------------------------------------------------------------------------


class RunDriver(Protocol):
    """Execution of an opened run by its `Flujo`."""

    def __call__(
        self, runs: RunRegistry, opened: OpenRun, host: Host, *, rehearsing: RunRehearsal
    ) -> Awaitable[PipelineResult]: ...


@attrs.frozen(kw_only=True, eq=False)
class Performer:
    """A `Flujo` as rehearsals use it."""

    pipeline: Pipeline
    store: Store | None
    settings: Settings
    redact: Callable[[str], str]
    drive: RunDriver

    def steps(self, recording: RecordedRun) -> Any:
        """Return the pipeline's facts in the recorded form."""
        stored = recording.body(recording.records[0]).get("fingerprint")
        return Fingerprint.of(self.pipeline, form=form_of(stored)).steps


def performer_of(*, context_model: type | None, **parts: Any) -> Performer:
    """Return the parts of a `Flujo`, with its types registered."""
    register_types_of(parts["pipeline"], context_model)
    return Performer(**parts)


# --- Playback -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class Playback:
    """One recorded run on the present code."""

    performer: Performer
    recording: RecordedRun
    rehearsing: RunRehearsal
    seq: int = 1
    """Last record that is recalled; the others are compared or replaced."""
    store: MemoryStore = attrs.field(factory=MemoryStore)
    """Store of the fork."""

    @property
    def forked(self) -> RunId:
        """Return the id of the fork: that of the recorded run."""
        return self.recording.run.run_id

    async def run(self, host: Host) -> PipelineResult:
        """Run the fork to its end, or to an unanswered question."""
        recording = self.recording
        self.store.put([(_unowned(recording.run), recording.whole)])
        fork(self.store, _ORIGIN, self.seq, new_id=self.forked)
        runs = self._registry()
        opened = await runs.reopen(self.forked, wait=False, answered=True)
        while True:
            result = await self.performer.drive(runs, opened, host, rehearsing=self.rehearsing)
            if result.status != "paused" or not self._answer(result):
                return result
            opened = await runs.reopen(self.forked, wait=False, answered=True)

    def _registry(self) -> DurableRunRegistry:
        performer = self.performer
        return DurableRunRegistry(
            store=self.store,
            pipeline=performer.pipeline,
            settings=performer.settings.durability,
            redact=performer.redact,
            mode="force",
        )

    def _answer(self, result: PipelineResult) -> bool:
        """Give the recorded answer to an open question; whether there is one."""
        pauses = {pause.token: pause for pause in self.store.get(self.forked).pauses}
        for token, pause in pauses.items():
            _, path = parse_token(token)
            asked = record_bodies.read_body(pause.body, where=f"the question at {path!r}")
            body = self.rehearsing.oracle.question(path, asked)
            if body is not None:
                record = Record(kind="answered", path=path, body=body)
                self.store.answer(self.forked, path, token=token, record=record)
                return True
        return False

    def records(self) -> tuple[StoredRun, list[Record]]:
        """Return the fork and its records."""
        return self.store.get(self.forked), list(self.store.read(self.forked))


_ORIGIN = RunId("")
"""Id of the recorded run in the store of its fork."""


def _unowned(run: StoredRun) -> StoredRun:
    return attrs.evolve(
        run, run_id=_ORIGIN, pauses=(), waits=(), leased=False, owner=None, parent=None, cancel=None, queue=None
    )


# --- Kept runs ----------------------------------------------------------------------------------------------------
# A rehearsal with `into` keeps its forks as ended runs, `rehearsal of …`. With each fork it keeps the recorded run, so
# that a page of that store shows both side by side, and with the first fork the summary. These are no runs of
# listings: they belong to a fork, and are deleted with it.


def runs_to_keep(playback: Playback, new_id: RunId, reason: str | None) -> list[tuple[StoredRun, list[Record]]]:
    """Return a fork and its recorded run, for the store of rehearsals."""
    recording, (fork, records) = playback.recording, playback.records()
    copy = RunId(f"{new_id}{RECORDED}")
    recorded = attrs.evolve(_unowned(recording.run), run_id=copy, parent=new_id, last_owner=None, left_s=None)
    return [
        _ended_fork(recording.run, fork, records, new_id, reason),
        (recorded, [record_of_fork(each, copy) for each in recording.whole]),
    ]


def _ended_fork(
    origin: StoredRun, fork: StoredRun, records: list[Record], new_id: RunId, reason: str | None
) -> tuple[StoredRun, list[Record]]:
    kept = [record_of_fork(each, new_id) for each in records]
    kept[0] = attrs.evolve(kept[0], body=_named_origin(kept[0], origin.run_id))
    status, ended_at = fork.status, fork.ended_at
    if status not in ("completed", "failed", "aborted"):
        status, ended_at = "aborted", time.time()
        body = record_bodies.make_body(status=status, feedback=reason or "the rehearsal stopped here")
        kept.append(Record(kind="ended", path=ROOT, body=body, seq=kept[-1].seq + 1, at=ended_at))
    run = attrs.evolve(
        _unowned(fork),
        run_id=new_id,
        pipeline=f"{REHEARSED}{origin.pipeline}",
        status=status,
        ended_at=ended_at,
        last_owner=None,
        left_s=None,
        wake_at=None,
        expired=False,
        records=kept[-1].seq,
    )
    return run, kept


def _named_origin(record: Record, run_id: RunId) -> str:
    parts = record_bodies.read_body(record.body, where="record 1")
    del parts["v"]
    seq = (parts.get("origin") or {}).get("seq", 1)
    return record_bodies.make_body(**{**parts, "origin": {"run_id": run_id, "seq": seq}})


def summary_to_keep(rehearsal_id: str, data: object, first_fork: str) -> tuple[StoredRun, list[Record]]:
    """Return the summary as an ended run; its input is the report."""
    now = time.time()
    bodies = {"admitted": record_bodies.make_body(input=data), "ended": record_bodies.make_body(status="completed")}
    records = [
        Record(kind=cast(RecordKind, kind), path=ROOT, body=body, seq=seq, at=now)
        for seq, (kind, body) in enumerate(bodies.items(), 1)
    ]
    run = StoredRun(
        run_id=RunId(rehearsal_id),
        pipeline="rehearsal",
        status="completed",
        created_at=now,
        updated_at=now,
        ended_at=now,
        epoch=1,
        leased=False,
        records=len(records),
        parent=RunId(first_fork),
    )
    return run, records
