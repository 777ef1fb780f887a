"""Step actor: one step from request to report.

Rules:

1. A step that settled in an earlier session does not run again: its record is its report.
2. A span is opened in the ledger before anything else happens, and closed before the outcome is reported.
3. Each outcome is committed before it is passed to hooks, readers and the parent. Without other receivers, if the
   parent settles at once, both are committed together (`_dsl.declaration_tree`).
4. Attempts follow the pure decisions of `_core.retry_decisions`; the actor only executes them.
5. A step whose cancellation was requested never settles as a success, regardless of its return value.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, assert_never

import attrs
import trio
from outcome import Value

from ..._bridge.user_code_guard import guarded
from ..._core import seams
from ..._core.attempt_results import (
    PLAIN,
    Attempt,
    AttemptFailed,
    AttemptStopped,
    AttemptSucceeded,
    ConversationMoved,
    escalating,
)
from ..._core.error_info import message_of
from ..._core.outcomes import Aborted, ErrorInfo, Failure, Paused, Success, TerminalOutcome
from ..._core.records.pause_tokens import approval_hash, make_token
from ..._core.step_paths import StepPath
from ..._dsl.call_plan import agent_name
from ..._dsl.pipeline import Pipeline
from ..._durable.journal import OpenTransaction, Pause, Recorded
from ...errors import NotSerializable, ProtocolError, TransactionRefused
from .. import calls, tree
from ..context.copies import own
from ..run.hooks import notify_later, notify_outcome, notify_start
from ..run.messages import (
    NOTHING_AROUND,
    CompensationState,
    CompletedStep,
    StepRequest,
    StepSettled,
    StepState,
    UsageTotal,
    expanded,
    work_of,
)
from ..run.run_environment import Run, note_swallowed_cancellation, release_if_idle, report_unstoppable
from ..run.step_results import (
    cause_of,
    charge,
    emit_attempt_ended,
    emit_step_ended,
    redacted_attempt,
    report_failure,
    result_in,
    result_of,
    unfinished_result,
)
from ..run.user_functions import failure_of
from .step_supervisor import ROADS, WRAPPERS, StepSupervisor, StrayCancellation, sequence

if TYPE_CHECKING:
    from ..._core.failure_info import Cause, ToUndo
    from ..._core.policies.approval_policy import QuestionSpec
    from ..._core.records.records import ConversationWrite
    from ..run.hooks import Hooks

NOT_COALESCED: frozenset[StepPath] = frozenset()


@attrs.frozen(eq=False)
class RunSupervisor:
    """Supervisor of one run: one gate around all roads of steps."""

    run: Run
    coalesced: frozenset[StepPath] = NOT_COALESCED
    """Steps with coalesced commits."""
    clock: trio.abc.Clock = attrs.field(init=False, factory=trio.lowlevel.current_clock)
    _ended_in: dict[StepPath | None, int] = attrs.field(factory=dict, init=False)
    """Number of ended branches of parallel steps."""

    def children(self, total: UsageTotal) -> StepSupervisor:
        """Return a nursery for one composite's actors, counted in `total`."""
        return StepSupervisor(self, total)

    def open_span(self, path: StepPath, parent: StepPath | None) -> None:
        """Open a span in the ledger: the only place."""
        self.run.ledger.start(path, parent)

    def close_span(self, path: StepPath) -> None:
        """Close a span in the ledger: the only place."""
        self.run.ledger.settle(path)
        if self.run.waits:
            release_if_idle(self.run)

    # --- the gate ---

    async def perform(self, state: StepState) -> StepSettled:
        """Perform the step and return its report; see the module's rules."""
        run, request = self.run, state.request
        served = request.served
        recorded = run.journal.recall(request.path) if run.resumed and not served else None
        if recorded is not None:
            return self._recalled(state, recorded)
        if (request.step.usage_limits is not None or request.degraded) and not served:
            request = self._prepare(state)
        self.open_span(request.path, request.parent)
        run.journal.started(request.path, request.name, request.of)
        if run.is_observed and not served:
            refused = await self._announce(state)
            if refused is not None:
                return await self._settle(state, refused, request.context)
        begun = self.clock.current_time()
        while True:
            try:
                plain = request.around is NOTHING_AROUND and not request.step.on_failure
                ended = await (self._road(state) if plain else self._governed(state))
            except StrayCancellation as error:
                ended = AttemptFailed(error=error, feedback=str(error))
            latency_s = self.clock.current_time() - begun
            if type(ended) is AttemptSucceeded:
                result = result_of(state, ended.output, latency_s, ended.metadata)
                outcome: TerminalOutcome = Success(step_result=result)
                context = ended.context
            else:
                outcome, context = await self._concluded(state, ended, latency_s)
            try:
                return await self._settle(state, outcome, context)
            except ConversationMoved:  # a failed attempt, which may be repeated
                state.conflict = _conflict(state)

    def _prepare(self, state: StepState) -> StepRequest:
        """Apply the step's own limits and expected data form."""
        request = state.request
        limits = request.step.usage_limits
        if limits is not None:
            quota = self.run.quota(limits, owner=f"step {request.name!r}", path=request.path, step_name=request.name)
            around = attrs.evolve(request.around, quotas=(*request.quotas, quota))
            state.request = request = attrs.evolve(request, around=around)
        if request.degraded:
            state.request = request = tree.in_expected_form(request)
        return request

    async def _announce(self, state: StepState) -> Aborted | Failure | None:
        """Notify telemetry, readers and hooks that the step starts; a hook's veto."""
        run, request = self.run, state.request
        run.emit("step.started", request.path, step_name=request.name, input=request.data)
        if run.emits_starts:
            await notify_start(run, request)
        if not run.hooks:
            return None
        if run.journal.lapsed:
            await run.journal.confirm()
        return await _was_notified(run.hooks, request)

    async def _governed(self, state: StepState) -> Attempt:
        """Perform the step within its limits, then run its handlers."""
        if state.request.served:
            ended = await self._road(state)
            if not state.quotas:
                return ended
            asked: Attempt = WRAPPERS["asking"](ended)
            return asked
        if state.quotas:
            ended = await WRAPPERS["limits"](self, state, functools.partial(self._road, state))
        else:
            ended = await self._road(state)
        if state.step.on_failure and isinstance(ended, AttemptFailed):
            ended = await WRAPPERS["handlers"](self, state, ended)
        return ended

    def abandon(self, state: StepState) -> StepSettled:
        """Settle a step that was cancelled."""
        if state.settled is not None:
            return state.settled
        outcome = Aborted(reason=f"step {state.name!r} was cancelled")
        if state.path in self.run.ledger:
            self.close_span(state.path)
            if not state.request.served:
                emit_step_ended(self.run, state, outcome)
                notify_later(self.run, state, outcome)
        undo = _compensation_entries(state, outcome, state.context, state.attempts)
        return _report(state, outcome, state.context, undo=undo, cut_short=True)

    async def fail(self, state: StepState, stray: trio.Cancelled) -> StepSettled:
        """Settle a step as failed that raised `Cancelled` without being cancelled."""
        if state.path not in self.run.ledger:
            raise ProtocolError(f"step {state.name!r} was cancelled after it settled, without a request") from stray
        outcome, context = await self._concluded(state, failure_of(self.run, stray), 0.0)
        return await self._settle(state, outcome, context)

    # --- roads: each makes an attempt, and knows neither the ledger nor the journal of outcomes ---

    def _road(self, state: StepState) -> Awaitable[Attempt]:
        run, request = self.run, state.request
        if run.remote is not None and run.remote.takes(request):
            return run.remote.attempt(run, state)
        road, around = request.step.road, request.around
        if road != "pipeline" and (run.resumed or run.stopping is not None or request.degraded or around.quotas):
            road = "attempts"
        attempt: Awaitable[Attempt] = ROADS[road](self, state)
        return attempt

    # --- from an attempt to an outcome ---

    async def _concluded(self, state: StepState, ended: Attempt, latency_s: float) -> tuple[TerminalOutcome, object]:
        """Return an attempt's outcome and the context after it."""
        match redacted_attempt(self.run, ended):
            case AttemptSucceeded(output=output, context=context, metadata=metadata):
                result = result_of(state, output=output, latency_s=latency_s, metadata=metadata)
                return Success(step_result=result), context
            case (
                AttemptFailed(error=error, feedback=text, output=output, metadata=metadata, of_child=of_child) as failed
            ):
                result = result_of(
                    state, output=output, latency_s=latency_s, metadata=metadata, success=False, feedback=text
                )
                if not of_child:
                    self._report(state, error, text)
                context = state.context if failed.context is None else failed.context
                return Failure(error=error, feedback=text, step_result=result), context
            case AttemptStopped(outcome=Paused() as paused, place=place, question=question, context=context):
                outcome = await self._paused(state, paused, place or state.path, question, context)
                return outcome, state.context if context is None or paused.state_token is None else context
            case AttemptStopped(outcome=aborted):
                return aborted, state.context
            case unknown:
                assert_never(unknown)

    async def _paused(
        self, state: StepState, paused: Paused, place: StepPath, question: QuestionSpec | None, context: Any
    ) -> Paused | Failure:
        written = None if context is state.context else context
        try:
            return await self.pause(state, paused, place, question, written)
        except NotSerializable as error:
            state.pauses = False
            return self._cannot_be_stored(state, error, subject="paused")

    async def pause(
        self,
        state: StepState,
        paused: Paused,
        place: StepPath,
        question: QuestionSpec | None = None,
        context: Any = None,
    ) -> Paused:
        """Give the pausing step a token, passed on by its ancestors."""
        if paused.state_token is not None:
            return paused
        state.pauses = True
        asked = approval_hash(paused.message, state.data, before=self.run.journal.times_answered(place))
        paused = Paused(message=paused.message, state_token=make_token(self.run.run_id, place, asked=asked))
        schema = getattr(state.step, "input_schema", None) if question is None else question.schema
        await self.run.journal.paused(
            Pause(
                path=place,
                step_name=state.name,
                paused=paused,
                input_schema=schema,
                attempts=state.attempts,
                usage=state.usage,
                question=question,
                context=context,
            )
        )
        if question is None or question.wait is None:
            facts = {"message": paused.message, "labels": self.run.labels}
            self.run.emit("run.paused", state.path, step_name=state.name, **facts)
        return paused

    async def _settle(self, state: StepState, outcome: TerminalOutcome, context: object) -> StepSettled:
        """Close the span, write the outcome, notify; then report."""
        run, request = self.run, state.request
        leaves_nothing = request.step.compensate is None and state.compensation_state is None
        undo = () if leaves_nothing else _compensation_entries(state, outcome, context, state.attempts)
        if type(outcome) is Success and state.conversation is not None:
            kept = await self._remember(state, outcome, context, undo)  # may be refused: another attempt follows
            self.close_span(request.path)
            outcome, context, undo = kept
        else:
            self.close_span(request.path)
            if (
                type(outcome) is Success
                and not run.journal.durable
                and context is request.context
                and not state.evidence
            ):
                run.journal.keep(request.path, outcome, undo)  # nothing to wait for
            elif isinstance(outcome, (Success, Failure)) and not _escalates(outcome):
                outcome, context, undo = await self._remember(state, outcome, context, undo)
        if run.telemetry.enabled and not request.served:
            emit_step_ended(run, state, outcome)
        cause = self._cause(state, outcome) if run.handles_failures and type(outcome) is Failure else None
        settled = _report(state, outcome, context, undo, cause)
        if request.served or (run.event_stream is None and not run.hooks):
            return settled
        if isinstance(outcome, Paused) and run.journal.is_wait(outcome):
            return settled  # no person is asked
        state.settled = settled
        overruled = await notify_outcome(run, state, outcome)
        return settled if overruled is None else attrs.evolve(settled, overruled=overruled)

    def _cause(self, state: StepState, outcome: TerminalOutcome) -> Cause | None:
        """Return the failure for the parents of a failed step."""
        if not isinstance(outcome, Failure):
            return None
        compensation_state = state.compensation_state = state.compensation_state or CompensationState()
        inner = compensation_state.cause if isinstance(state.step, Pipeline) else None
        if inner is None:  # made once: its time is stored, and the same for every reader
            compensation_state.own = compensation_state.own or cause_of(state, outcome)
        return inner or compensation_state.own

    async def _remember(
        self, state: StepState, outcome: Success | Failure, context: object, undo: tuple[ToUndo | CompletedStep, ...]
    ) -> tuple[Any, Any, tuple[ToUndo | CompletedStep, ...]]:
        run, same = self.run, context is state.request.context
        evidence = WRAPPERS["evidence"](run, state) if state.evidence else ()
        cause = self._cause(state, outcome) if run.handles_failures else None
        record = Recorded(
            outcome=outcome,
            context=context,
            given=state.request.context,
            same_context=same,
            undo=_expanded(undo) if run.journal.durable else undo,
            cause=cause,
            evidence=evidence,
            cached=state.cached if type(outcome) is Success else (),
            conversation=_conversation_write(state) if type(outcome) is Success else None,
        )
        try:
            closes = state.path in self.coalesced and self._closes(state, record)
            kept = run.journal.hold(state.path, record) if closes else await self._written(state, record)
        except (NotSerializable, TransactionRefused) as error:
            failed = self._cannot_be_stored(state, error)
            undo = _compensation_entries(state, failed, state.context, state.attempts)
            failure = Recorded(outcome=failed, context=state.context, same_context=True, undo=_expanded(undo))
            kept = await run.journal.settled(state.path, failure)
        return kept.outcome, state.context if kept.same_context else kept.context, undo

    def _closes(self, state: StepState, record: Recorded) -> bool:
        """Return whether the parent settles at once after the step (rule 3)."""
        if state.of and not self._is_last(state):
            return False
        plain = not record.evidence and not record.cached and record.conversation is None
        return type(record.outcome) is Success and plain and state.transaction is None

    def _is_last(self, state: StepState) -> bool:
        """Count a branch that has ended; whether it was the last one."""
        request = state.request
        ended = self._ended_in[request.parent] = self._ended_in.get(request.parent, 0) + 1
        return ended == request.of

    def _written(self, state: StepState, record: Recorded) -> Awaitable[Recorded]:
        """Record the step's end, in its own transaction if it has one."""
        transaction = state.transaction
        if transaction is None:
            return self.run.journal.settled(state.path, record)
        return _committed(transaction, state.path, record)

    def _cannot_be_stored(
        self, state: StepState, error: NotSerializable | TransactionRefused, subject: str = "succeeded"
    ) -> Failure:
        text = self.run.redact(f"The step {subject}, but its context cannot be stored: {message_of(error)}")
        result = result_of(state, success=False, feedback=text)
        self._report(state, error, text)
        return Failure(error=error, feedback=text, step_result=result)

    def _recalled(self, state: StepState, recorded: Recorded) -> StepSettled:
        """Return the report of a step that settled in an earlier session."""
        result = result_in(recorded.outcome)
        if result is not None:
            charge(state, result.usage, result.step_history)
            state.attempts = result.attempts
        context = state.context if recorded.same_context else recorded.context
        undo = recorded.undo or _compensation_entries(state, recorded.outcome, context, state.attempts)
        cause = self._recalled_cause(state, recorded) if self.run.handles_failures else None
        return _report(state, recorded.outcome, context, undo=tuple(undo), cause=cause)

    def _recalled_cause(self, state: StepState, recorded: Recorded) -> Cause | None:
        if recorded.cause is None or not isinstance(recorded.outcome, Failure):
            return self._cause(state, recorded.outcome)
        return attrs.evolve(recorded.cause, error=recorded.outcome.error)

    def _report(self, state: StepState, error: BaseException | ErrorInfo | None, feedback: str) -> None:
        report_failure(self.run, state, error, feedback)


def _report(
    state: StepState,
    outcome: TerminalOutcome,
    context: object,
    undo: Any = (),
    cause: Cause | None = None,
    *,
    cut_short: bool = False,
) -> StepSettled:
    """Return the step's one message to its parent: its only constructor call."""
    unfinished = None if isinstance(outcome, (Success, Failure)) else unfinished_result(state, outcome)
    return StepSettled(
        index=state.request.index,
        outcome=outcome,
        context=context,
        cut_short=cut_short,
        unfinished=unfinished,
        undo=undo,
        cause=cause,
        agent_name=agent_name(state.step) if isinstance(outcome, Failure) else "",
    )


def _conversation_write(state: StepState) -> ConversationWrite | None:
    """Return the new messages of the step's conversation, if it has one."""
    loaded = state.conversation
    return None if loaded is None else loaded.written(state.transcript() if state.transcript else (), state.usage)


def _conflict(state: StepState) -> AttemptFailed:
    """Return the failure of an attempt after which another writer was faster."""
    loaded, state.conversation = state.conversation, None
    assert loaded is not None
    state.refused += 1  # a granular step begins another conversation
    error = loaded.conflict()
    return AttemptFailed(error=error, feedback=str(error))


# --- roads ----------------------------------------------------------------------------------------------------


@ROADS.entry("call")
async def _call_function(actors: RunSupervisor, state: StepState) -> Attempt:
    """Call an async function with the step's data, with nothing around it."""
    run, request = actors.run, state.request
    step: Any = request.step
    state.attempts = 1
    if run.telemetry.enabled:
        run.emit("attempt.started", request.path, step_name=request.name, attempt=1)
    data = request.data if step.compensate is None else own(request.data)
    if run.journal.lapsed:
        await run.journal.confirm()
    if seams.on_call is not None:
        seams.on_call(run.run_id, request.path)
    got = await guarded(run.host.call, step.plan.target, data)
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        report_unstoppable(run, request.name, request.path)
        raise
    if type(got) is Value and type(got.value) in PLAIN:
        ended: Attempt = AttemptSucceeded(output=got.value, context=request.context)
    else:
        ended = redacted_attempt(run, calls.plain_attempt(run, state, got))
    if run.telemetry.enabled:
        emit_attempt_ended(run, state, ended, 1)
    return ended


@ROADS.entry("agent")
async def _call_agent(actors: RunSupervisor, state: StepState) -> Attempt:
    """Call a model agent, with nothing around it."""
    run, request = actors.run, state.request
    step: Any = request.step
    state.attempts = 1
    run.emit("attempt.started", request.path, step_name=request.name, attempt=1)
    data = request.data if step.input is None else step.input
    if seams.on_call is not None:
        seams.on_call(run.run_id, request.path)
    ended = redacted_attempt(run, await calls.call_model_agent(run, step, work_of(state, data), step.plan.target))
    await note_swallowed_cancellation(run, state)
    if run.telemetry.enabled:
        emit_attempt_ended(run, state, ended, 1)
    return ended


@ROADS.entry("pipeline")
def _run_pipeline(actors: RunSupervisor, state: StepState) -> Awaitable[Attempt]:
    pipeline: Any = state.step
    state.attempts = 1
    if not actors.run.handles_failures:
        return sequence(actors, pipeline, work_of(state, state.data))
    ended: Awaitable[Attempt] = WRAPPERS["pipeline_failure"](actors, pipeline, state)
    return ended


def _compensation_entries(
    state: StepState, outcome: TerminalOutcome, context: object, attempts: int
) -> tuple[ToUndo | CompletedStep, ...]:
    """Return a step's compensation entries; most have none."""
    if state.step.compensate is None:
        if state.compensation_state is None:
            return ()
    elif isinstance(outcome, Success):
        return (_completed(state, outcome, context),)
    entries: tuple[ToUndo, ...] = WRAPPERS["left"](state, outcome, context, attempts=attempts)
    return entries


def _completed(state: StepState, outcome: Success, context: object) -> CompletedStep:
    changed = None if context is state.context else context
    made = None if state.compensation_state is None else state.compensation_state.input
    data = state.data if made is None else made[0]
    return CompletedStep(
        step=state.step,
        name=state.name,
        path=state.path,
        input=data,
        output=own(outcome.step_result.output),
        attempts=state.attempts,
        context=changed,
    )


def _expanded(undo: tuple[ToUndo | CompletedStep, ...]) -> tuple[ToUndo, ...]:
    return tuple(map(expanded, undo))


async def _committed(transaction: OpenTransaction, path: StepPath, record: Recorded) -> Recorded:
    await transaction.commit(path, record)
    return record


async def _was_notified(hooks: Hooks, request: StepRequest) -> Aborted | Failure | None:
    return await hooks.notify(
        "pre_step", step_name=request.name, path=request.path, input=request.data, context=request.context
    )


def _escalates(outcome: Success | Failure) -> bool:
    return isinstance(outcome, Failure) and escalating(outcome.error) is not None
