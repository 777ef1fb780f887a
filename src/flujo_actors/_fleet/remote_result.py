"""Result of a remote step: outcome, usage, pauses and compensations.

Sections:

- Remote dispatch inside a remote step, or its read-only replay.
- Compensations of an unfinished remote step, collected by read-only replay of its journal.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import attrs

from .._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded
from .._core.failure_info import CompensationStop, ToUndo
from .._core.ledger import Ledger
from .._core.locks import QUOTA_LOCK
from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success
from .._core.quota import amount_of
from .._core.step_paths import ROOT, StepPath, at_or_below, is_tried
from .._core.usage import NO_USAGE, Usage
from .._dsl.declaration_tree import walk_steps
from .._dsl.kinds import MapOver
from .._dsl.pipeline import AnyStep, Pipeline
from .._durable.compensation_records import compensated_in
from .._durable.journal import Pause, PauseAnswer, Recorded
from .._durable.remote_result_refs import RemoteResultRef
from .._durable.store_executor import call_store
from .._durable.store_journal import StoreJournal
from .._runtime.run.messages import StepRequest, StepState, UsageTotal, expanded
from .._runtime.run.run_environment import RemoteSteps, Run
from .._runtime.run.step_results import charge
from .._runtime.tree.step_actor import RunSupervisor
from .._runtime.tree.step_supervisor import of_one_child
from ..stores._store_port import Store
from ..telemetry._null_telemetry import SILENT
from . import remote_call
from .budget_ledger import BudgetLedger, shared
from .remote_call import ReplayedJournal


async def attempt_in(run: Run, state: StepState, journal: StoreJournal, end: remote_call.End | None) -> Attempt | None:
    """Return a remote step's end from its journal, or None."""
    recorded = journal.recall(state.path)
    if recorded is not None:
        context = state.context if recorded.same_context else recorded.context
        _leave_to_compensate(state, recorded)
        assert isinstance(run.journal, StoreJournal)
        left = None if recorded.same_context else recorded.context
        run.journal.children[state.path] = RemoteResultRef(journal.lease.run_id, recorded.outcome, left)
        return await _attempt_of(state, recorded.outcome, context)
    pauses = _pauses_below(journal, state.path)
    if end is None:
        return None
    if pauses and end.status == "paused":
        for pause in pauses:
            await run.journal.paused(pause)
        state.usage += pauses[0].usage
        return AttemptStopped(outcome=pauses[0].paused)
    match end.status:
        case "failed":
            state.attempts, state.usage = 1, state.usage + end.usage
            await _charge(state, end.usage)
            return AttemptFailed(error=end.error, feedback=end.feedback)
        case "aborted":
            return AttemptStopped(outcome=Aborted(reason=end.feedback or "the remote step was aborted"))
    return None


async def _attempt_of(state: StepState, outcome: object, context: object) -> Attempt:
    """Return the end and usage of the step like a local one."""
    assert isinstance(outcome, Success | Failure)
    result = outcome.step_result
    if result is not None:
        state.attempts, state.usage = result.attempts, state.usage + result.usage
        state.history = [*state.history, *result.step_history]
        await _charge(state, result.usage, result.step_history)
    if isinstance(outcome, Success):
        return AttemptSucceeded(
            output=outcome.step_result.output, context=context, metadata=outcome.step_result.metadata
        )
    output, metadata = (None, {}) if result is None else (result.output, result.metadata)
    return AttemptFailed(error=outcome.error, feedback=outcome.feedback or "", output=output, metadata=metadata)


async def _charge(state: StepState, usage: Usage, history: Sequence[StepResult] = ()) -> None:
    """Move the remote step's usage to the waiting caller's account."""
    quotas = state.quotas
    if not quotas or usage is NO_USAGE:
        return
    book = quotas[0].shared
    assert isinstance(book, BudgetLedger)
    with QUOTA_LOCK:
        charge(state, usage, history)
        for quota in quotas:
            quota.absorb(usage)
        book.absorb(quotas, [state.path], amount_of(usage))
    await call_store(functools.partial(book.write, quotas))


async def share_budgets(store: Store, run: Run, state: StepState) -> None:
    """Share the step's budgets with its worker; earlier usage counts here."""
    journal = run.journal
    assert isinstance(journal, StoreJournal)
    earlier = _settled_in(journal) if run.resumed else []
    answered = journal.answered(state.path)
    asked = journal.waiting(state.path) if answered is None else answered.pause
    counted = [state.path] if asked is not None and asked.is_about_limits else []  # by `usage_limits`
    await shared(store, run.run_id, journal, state.quotas, earlier=earlier, counted=counted)


def _leave_to_compensate(state: StepState, recorded: Recorded) -> None:
    """Leave nested compensations to the parent; the step itself is known here."""
    inside = tuple(each for each in recorded.undo if getattr(each, "path", None) != state.path)
    if inside:
        state.leave(0, inside)


def answers_for(run: Run, states: Sequence[StepState]) -> list[remote_call.Answer]:
    """Return the run's answers to pauses of these steps, to pass on."""
    if not run.resumed or not isinstance(run.journal, StoreJournal):
        return []
    return [remote_call.answer_of(each) for state in states for each in _answers_below(run.journal, state.path)]


# A journal is read by path; only here all entries below one are needed.


def _pauses_below(journal: StoreJournal, path: StepPath) -> list[Pause]:
    """Return the open pauses at a step or inside it."""
    return [journal._pauses[place] for place in at_or_below(path, journal._pauses)]


def _settled_in(journal: StoreJournal) -> list[StepPath]:
    """Return the steps settled in earlier sessions."""
    return [path for path in journal._read if not is_tried(path) and path != ROOT]


def _answers_below(journal: StoreJournal, path: StepPath) -> list[PauseAnswer]:
    """Return the answers that were given there, and not used up."""
    return [journal._answers[place] for place in at_or_below(path, journal._answers)]


# --- Remote dispatch inside a remote step -------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class NestedRemoteSteps:
    """Dispatcher for nested steps of a remote step on other workers."""

    remote: RemoteSteps
    here: frozenset[StepPath]

    def takes(self, request: StepRequest) -> bool:
        """Return whether a step is remote; this worker's own request stays local."""
        return request.path not in self.here and self.remote.takes(request)

    def spread(
        self, run: Run, step: MapOver, requests: Iterator[StepRequest]
    ) -> tuple[Iterator[StepRequest], int | None, int]:
        return self.remote.spread(run, step, requests)

    async def attempt(self, run: Run, state: StepState) -> Attempt:
        return await self.remote.attempt(run, state)


# --- Compensations of an unfinished remote step -------------------------------------------------------------------
# Rules:
#
# 1. The step is replayed as by a stopped run: settled steps are recalled, started and unsettled ones were cancelled,
#    and
#    later ones did not start.
# 2. The replay executes, reports and writes nothing. Its entries are left to the enclosing step.
# 3. Compensations made by the step's worker are not repeated.
# 4. A step that never started has no effect.


def is_undoable(step: AnyStep) -> bool:
    """Return whether the step, or one inside it, has a compensation."""
    return any(each.compensate is not None for each in walk_steps(step))


@attrs.frozen(kw_only=True, eq=False)
class ViewOptions:
    """Remote step of a run, as seen by its records."""

    run: Run
    state: StepState
    journal: ReplayedJournal
    pipeline: Pipeline
    remote: RemoteSteps

    async def after(self, attempt: Attempt) -> None:
        """Take in compensations and remaining entries after the end of the step."""
        await self.merge()
        paused = isinstance(attempt, AttemptStopped) and isinstance(attempt.outcome, Paused)
        if self.journal.recall(self.state.path) is None and not paused:
            await self.leave_to_compensate("the remote step was cut short")

    async def merge(self) -> None:
        """Merge compensations and tool calls of the step's worker into the run."""
        run, state = self.run, self.state
        undone = compensated_in(self.journal, self.pipeline)
        run.compensated.update({path: undone[path] for path in at_or_below(state.path, undone)})
        await _record_compensations(run, state, self.journal)
        recorded = self.journal.recall(state.path)
        if recorded is not None:
            await _copy_tool_calls(run, self.journal, tuple(recorded.undo))

    async def leave_to_compensate(self, reason: str) -> None:
        """Leave the step's entries to its parent; see the module's rules."""
        state, recorded = self.state, self.journal.recall(self.state.path)
        if recorded is None:
            found = await self._cut_short(reason)
        else:
            found = tuple(recorded.undo)  # it ended, and no caller waited for it
        undo = tuple(each for each in found if not self._is_known(each))
        await _copy_tool_calls(self.run, self.journal, undo)
        if undo:
            state.leave(0, undo)

    def _is_known(self, entry: ToUndo) -> bool:
        """Return whether an entry was compensated (rule 3) or started."""
        if isinstance(entry, CompensationStop):
            return False
        own = entry.path == self.state.path and self.state.attempts > 0
        return own or entry.path in self.run.compensated

    async def _cut_short(self, reason: str) -> tuple[ToUndo, ...]:
        state = self.state
        around = attrs.evolve(state.around, quotas=())
        request = attrs.evolve(state.request, parent=None, around=around, served=True)
        settled = await of_one_child(RunSupervisor(self._read_only_run(reason)), UsageTotal(), request)
        if settled.result is not None:
            state.usage += settled.result.usage
            state.history = [*state.history, *settled.result.step_history]
        return tuple(map(expanded, settled.undo))

    def _read_only_run(self, reason: str) -> Run:
        """Return the run in read-only form."""
        return attrs.evolve(
            self.run,
            journal=self.journal,
            remote=NestedRemoteSteps(remote=self.remote, here=frozenset({self.state.path})),
            stopping=reason,
            read_only=True,
            resumed=True,
            hooks=None,
            event_stream=None,
            telemetry=SILENT,
            ledger=Ledger(),
            pending=deque(),
            pausing=[],
        )


async def _record_compensations(run: Run, state: StepState, journal: ReplayedJournal) -> None:
    """Record the compensations inside the settled step for the next owner."""
    done = dict(journal.compensations())
    for path in at_or_below(state.path, done):
        if run.journal.recall(path) is None:
            await run.journal.settled(path, Recorded(outcome=done[path], context=None, same_context=True))


async def _copy_tool_calls(run: Run, journal: ReplayedJournal, undo: tuple[ToUndo, ...]) -> None:
    """Copy a granular step's tool calls into its run, for compensation."""
    for entry in undo:
        if isinstance(entry, CompensationStop) or not isinstance(getattr(entry.step, "compensate", None), Mapping):
            continue
        known = {path for path, _ in run.journal.intents(entry.path)}
        for path, intent in journal.intents(entry.path):
            if path not in known:
                await _copy_unit(run, journal, path, intent)


async def _copy_unit(run: Run, journal: ReplayedJournal, path: StepPath, intent: str) -> None:
    await run.journal.intend(path, intent)
    unit = journal.unit(path)
    if unit is not None:
        await run.journal.commit_unit(path, unit.result, unit.usage)
