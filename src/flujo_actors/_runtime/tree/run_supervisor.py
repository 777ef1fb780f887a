"""Executor of a run: first hook to result, with completion gate."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, assert_never

import attrs
import trio

from ..._core.attempt_results import (
    Attempt,
    AttemptFailed,
    AttemptStopped,
    AttemptSucceeded,
    CancelPending,
    escalating,
)
from ..._core.error_info import error_type_of
from ..._core.failure_info import could_not
from ..._core.ledger import Ledger
from ..._core.outcomes import Aborted, Failure, Paused, PipelineResult, RunStatus
from ..._core.quota import Quota
from ..._core.step_paths import ROOT, StepPath
from ..._core.usage import NO_USAGE, Usage, UsageLimits
from ..._dsl.pipeline import Pipeline
from ...errors import ControlError
from ..context.copies import own
from ..run.hooks import notify_late, notify_pauses
from ..run.messages import NOTHING_AROUND, AttemptInput, InheritedScope, StepRequest, StepState, UsageTotal, work_of
from ..run.run_environment import Run
from ..run.step_results import Scope, charge
from .step_actor import NOT_COALESCED, RunSupervisor
from .step_supervisor import WRAPPERS, StrayCancellation, sequence, vetoed

if TYPE_CHECKING:
    from ..._core.records.records import CancelRequest
    from ..._durable.run_registry import StopRequest

_CUT_SHORT = AttemptStopped(outcome=Aborted(reason="the run was cut short"))

Rest: TypeAlias = Callable[[PipelineResult], Awaitable[None]]
"""Put the run away with its result, claimable by others.

It is repeated if a hook refuses a pause.
"""


class Windows(Protocol):
    """Budgets of windows, shared with other runs."""

    async def opened(self, run: Run, quota: Quota) -> tuple[Quota, ...]:
        """Return the quotas of a run: its own and its windows'."""

    async def close(self, run: Run) -> None:
        """Emit due warnings while the run has its lease."""


Steps: TypeAlias = Callable[[RunSupervisor, Pipeline, AttemptInput], Awaitable[Attempt]]
"""Work until the end."""

HOOK_GRACE_S = 5.0
"""Timeout of `post_run` hooks after a cancellation."""


async def drive(
    run: Run,
    pipeline: Pipeline,
    data: object,
    context: object,
    *,
    limits: UsageLimits | None,
    resumed: bool,
    rest: Rest,
    halt: StopRequest | None = None,
    answer: object = None,
    windows: Windows | None = None,
) -> PipelineResult:
    """Run the pipeline to its result; control errors carry the partial result."""
    requested = halt
    if run.handles_failures and halt is not None and halt.end_reason is not None:
        run, halt = attrs.evolve(run, stopping=halt.end_reason), None
    _announce_start(run, pipeline.title, {"answer": answer} if resumed else {"input": data}, resumed=resumed)
    quotas: tuple[Quota, ...] = () if limits is None else (run.quota(limits, owner=f"run {run.run_id}"),)
    if windows is not None:
        quotas = await windows.opened(run, quotas[0])
    around = _root_scope(data, quotas, scoped=bool(pipeline.scope_keywords))
    message = StepRequest(step=pipeline, name="", path=ROOT, parent=None, data=data, context=context, around=around)
    state = StepState(message)
    state.attempts, state.last_context = 1, context
    if run.dropped_usage is not NO_USAGE:
        state.usage = run.dropped_usage
        charge(state, run.dropped_usage)
    try:
        ended = await _ended(run, pipeline, state, resumed=resumed, halt=halt)
        result = _result(run, ended, state)
        if result.status == "sleeping":
            result = attrs.evolve(result, wakes_at=await run.journal.wakes_at())
        if not _interrupted(ended):
            if windows is not None:
                await windows.close(run)
            try:
                await rest(result)
            except CancelPending as pending:
                ended = await _cancelled_at_end(run, pipeline, state, requested, pending.request)
                result = _result(run, ended, state)
                await rest(result)
    except BaseException:
        await _announce(run, _result(run, _CUT_SHORT, state), state.usage)
        raise
    if run.pausing:
        ended, result = await _report_pauses(run, ended, result, state, rest)
    veto = await _announce(run, result, state.usage)
    return _delivered(result, ended, veto)


def _announce_start(run: Run, title: str, given: Mapping[str, object], *, resumed: bool) -> None:
    """Emit the first events of an execution."""
    run.emit("run.resumed" if resumed else "run.started", ROOT, pipeline_name=title, labels=run.labels, **given)
    if run.retry is not None:
        run.emit("run.retried", ROOT, pipeline_name=title, labels=run.labels, **attrs.asdict(run.retry))


async def _cancelled_at_end(
    run: Run, pipeline: Pipeline, state: StepState, halt: StopRequest | None, request: CancelRequest
) -> Attempt:
    """Compensate a run that was cancelled after its last step.

    The entries of this session count, not those that an earlier one recorded: some of them are compensated by now.
    """
    assert halt is not None  # a run that can be cancelled from outside has one
    halt.now(run.telemetry.redact(request.given_reason), undoes=request.undoes)
    run = attrs.evolve(run, ledger=Ledger(), resumed=False)
    return await _ended(run, pipeline, state, resumed=True, halt=halt)


def _root_scope(data: object, quotas: tuple[Quota, ...], *, scoped: bool) -> InheritedScope:
    """Return the scope shared by all steps of the run."""
    if not scoped:
        return InheritedScope(quotas=quotas) if quotas else NOTHING_AROUND
    return InheritedScope(quotas=quotas, scope=Scope.of_run(data))


async def _report_pauses(
    run: Run, ended: Attempt, result: PipelineResult, state: StepState, rest: Rest
) -> tuple[Attempt, PipelineResult]:
    """Report the pauses of a resting run, also to leaving readers."""
    try:
        veto = await notify_pauses(run, over=result.status not in ("paused", "sleeping"))
        if veto is None:
            return ended, result
        ended = vetoed(veto)
        result = _result(run, ended, state)
        await rest(result)
    except BaseException:
        await _announce(run, result, state.usage)
        raise
    return ended, result


def _interrupted(ended: Attempt) -> bool:
    """Return whether the process was stopped, leaving the run resumable."""
    return isinstance(ended, AttemptFailed) and isinstance(escalating(ended.error), KeyboardInterrupt | SystemExit)


async def _announce(run: Run, result: PipelineResult, usage: Usage) -> Aborted | Failure | None:
    if run.telemetry.enabled:
        facts = {"status": result.status, "feedback": result.feedback, "output": result.output, "labels": run.labels}
        run.emit("run.ended", ROOT, usage=usage, error_type=error_type_of(result.error), **facts)
    return await _notify_post_run(run, result)


async def _ended(run: Run, pipeline: Pipeline, state: StepState, *, resumed: bool, halt: StopRequest | None) -> Attempt:
    if run.hooks and not resumed:
        veto = await run.hooks.notify("pre_run", input=state.data, context=state.context)
        if veto is not None:
            return vetoed(veto)
    actors = _supervisor(run, _coalesced(run, pipeline))
    actors.open_span(ROOT, None)
    try:
        if run.handles_failures:
            ended = await _with_failure_handlers(actors, pipeline, state, halt)
        else:
            ended = await _forward(actors, pipeline, state, halt)
    except StrayCancellation as error:
        ended = AttemptFailed(error=error, feedback=str(error))
    except BaseExceptionGroup as group:
        raise first_cause(group) from None
    finally:
        actors.close_span(ROOT)
    run.ledger.close()
    return ended


def _supervisor(run: Run, coalesced: frozenset[StepPath]) -> RunSupervisor:
    if run.gate is None:
        return RunSupervisor(run, coalesced=coalesced)
    rehearsed: RunSupervisor = run.gate.supervisor(run, coalesced)
    return rehearsed


def _coalesced(run: Run, pipeline: Pipeline) -> frozenset[StepPath]:
    """Return the steps with coalesced commits: without readers and compensations."""
    here = run.journal.holds and run.event_stream is None and run.remote is None
    return pipeline.coalesced_steps if here and not run.is_observed and not run.handles_failures else NOT_COALESCED


def _forward(
    actors: RunSupervisor, pipeline: Pipeline, state: StepState, halt: StopRequest | None
) -> Awaitable[Attempt]:
    """Run the steps within the run's time until a stop request."""
    work = work_of(state, state.data)
    timed = work.quotas and work.quotas[0].limits.time_limit_s is not None
    steps: Steps = WRAPPERS["run_time"] if timed else sequence
    return steps(actors, pipeline, work) if halt is None else _halted_or_ended(actors, halt, steps, pipeline, work)


def _with_failure_handlers(
    actors: RunSupervisor, pipeline: Pipeline, state: StepState, halt: StopRequest | None
) -> Awaitable[Attempt]:
    forward = functools.partial(_forward, actors, pipeline, state, halt)
    ended: Awaitable[Attempt] = WRAPPERS["run_failure"](actors, state, forward)
    return ended


async def _halted_or_ended(
    actors: RunSupervisor, halt: StopRequest, steps: Steps, pipeline: Pipeline, work: AttemptInput
) -> Attempt:
    ended, stopped = None, halt.stopped
    if stopped is None:
        with halt.scope:
            ended = await steps(actors, pipeline, work)
    if actors.run.pending:
        await notify_late(actors.run)  # of cancelled steps: callers other than a leaving one read it
    ended = ended or halt.stopped
    assert ended is not None
    return ended


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception inside nested groups, one per nursery level."""
    rest: BaseException = group.split(trio.Cancelled)[1] or group
    while isinstance(rest, BaseExceptionGroup):
        rest = rest.exceptions[0]
    return rest


async def _notify_post_run(run: Run, result: PipelineResult) -> Aborted | Failure | None:
    if not run.hooks:
        return None
    run.pending.extend(run.pausing)  # the reader of these has left
    with trio.CancelScope(shield=True, deadline=_grace(result)):
        await notify_late(run, watched=False)
        return await run.hooks.notify("post_run", result=result)
    return None


def _grace(result: PipelineResult) -> float:
    return trio.current_time() + HOOK_GRACE_S if result.status == "aborted" else float("inf")


def _delivered(result: PipelineResult, ended: Attempt, veto: Aborted | Failure | None) -> PipelineResult:
    errors = (
        ended.error if isinstance(ended, AttemptFailed) else None,
        veto.error if isinstance(veto, Failure) else None,
    )
    for error in filter(None, errors):
        control = escalating(error)
        if control is not None:
            if isinstance(control, ControlError):
                control.result = result
            raise control
    return result


def _result(run: Run, ended: Attempt, total: UsageTotal) -> PipelineResult:
    status, output, context, feedback, token = _summary(run, ended, total)
    if run.compensated and status in ("failed", "aborted"):
        feedback = _with_uncompensated(run, feedback)
    error = ended.error if isinstance(ended, AttemptFailed) else None
    return PipelineResult(
        run_id=run.run_id,
        status=status,
        output=output,
        step_history=total.history,
        total_cost_usd=total.usage.cost_usd,
        total_tokens=0 if total.usage is NO_USAGE else total.usage.tokens,
        final_context=own(context) if status in ("paused", "sleeping") else context,  # the run continues with it
        feedback=feedback,
        state_token=token,
        error=error,
        undone=tuple(run.compensated.values()),
        labels=run.labels,
    )


def _with_uncompensated(run: Run, feedback: str | None) -> str | None:
    text = could_not(list(run.compensated.values()))
    return feedback if text is None else f"{feedback}; {text}"


def _summary(run: Run, ended: Attempt, total: UsageTotal) -> tuple[RunStatus, object, object, str | None, str | None]:
    match ended:
        case AttemptSucceeded(output=output, context=context):
            return "completed", output, context, None, None
        case AttemptFailed(feedback=feedback):
            return "failed", None, total.last_context, feedback, None
        case AttemptStopped():
            return _stopped(run, ended, total)
        case _:
            assert_never(ended)


def _stopped(
    run: Run, ended: AttemptStopped, total: UsageTotal
) -> tuple[RunStatus, object, object, str | None, str | None]:
    match ended.outcome:
        case Paused() as paused:
            inner = total.last_context if ended.context is None else ended.context
            asked = run.journal.question(paused)
            if asked is None:
                return "sleeping", None, inner, None, None
            return "paused", None, inner, asked.message, asked.state_token
        case Aborted(reason=reason):
            return "aborted", None, total.last_context, reason, None
        case _:
            assert_never(ended.outcome)
