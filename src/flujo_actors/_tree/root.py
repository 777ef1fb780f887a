"""The executor of a run: from the first hook to the result, with the completion gate in between."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, assert_never

import attrs
import trio

from .._context.isolation import own
from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.outcomes import Aborted, Failure, Paused, PipelineResult, RunStatus
from .._core.paths import ROOT, StepPath
from .._core.quota import Quota
from .._core.usage import NO_USAGE, Usage, UsageLimits
from .._dsl.pipeline import Pipeline
from .._run.messages import NOTHING_AROUND, Around, Bill, Request, Tally, Work, work_of
from .._run.notify import tell_late, tell_pauses
from .._run.run import Run
from ..errors import ControlError
from .children import sequence, vetoed
from .step import NOTHING_CLOSES, StepActors

if TYPE_CHECKING:
    from .._durable.halt import Halt

_CUT_SHORT = Stopped(outcome=Aborted(reason="the run was cut short"))

Rest: TypeAlias = Callable[[PipelineResult], Awaitable[None]]
"""Puts the run away with its result: from then on others may have it. Called again if a hook is against a pause."""

Steps: TypeAlias = Callable[[StepActors, Pipeline, Work], Awaitable[Attempt]]
"""Works until there is an end."""

HOOK_GRACE_S = 5.0
"""How long `post_run` hooks may take after the run was cancelled."""


async def drive(
    run: Run,
    pipeline: Pipeline,
    data: object,
    context: object,
    *,
    limits: UsageLimits | None,
    resumed: bool,
    rest: Rest,
    halt: Halt | None = None,
    answer: object = None,
) -> PipelineResult:
    """Run the pipeline to its result; control errors are raised with the partial result."""
    if run.minds_failures and halt is not None and halt.told is not None:
        run, halt = attrs.evolve(run, closing=halt.told), None
    if resumed:
        run.emit("run.resumed", ROOT, pipeline_name=pipeline.title, answer=answer)
    else:
        run.emit("run.started", ROOT, pipeline_name=pipeline.title, input=data)
    tally = Tally()
    tally.attempts, tally.context = 1, context
    quotas = () if limits is None else (run.quota(limits, owner=f"run {run.run_id}"),)
    request = Request(
        step=pipeline,
        name="",
        path=ROOT,
        parent=None,
        data=data,
        context=context,
        around=_around(data, quotas, scoped=bool(pipeline.asks_of_scope)),
        tally=tally,
    )
    try:
        ended = await _ended(run, pipeline, request, resumed=resumed, halt=halt)
        result = _result(run, ended, tally)
        if not _interrupted(ended):
            await rest(result)
    except BaseException:
        await _announce(run, _result(run, _CUT_SHORT, tally), tally.usage)
        raise
    if run.pausing:
        ended, result = await _told_at_rest(run, ended, result, tally, rest)
    veto = await _announce(run, result, tally.usage)
    return _delivered(result, ended, veto)


def _around(data: object, quotas: tuple[Quota, ...], *, scoped: bool) -> Around:
    """What all steps of the run share."""
    if not scoped:
        return Around(quotas=quotas) if quotas else NOTHING_AROUND
    from .._run.scope import Scope  # only for pipelines whose functions ask for what is in it

    return Around(quotas=quotas, scope=Scope.of_run(data))


async def _told_at_rest(
    run: Run, ended: Attempt, result: PipelineResult, tally: Tally, rest: Rest
) -> tuple[Attempt, PipelineResult]:
    """Tell of the pauses at which the run has come to rest; whoever leaves at one leaves a paused run behind."""
    try:
        veto = await tell_pauses(run, over=result.status != "paused")
        if veto is None:
            return ended, result
        ended = vetoed(veto)
        result = _result(run, ended, tally)
        await rest(result)
    except BaseException:
        await _announce(run, result, tally.usage)
        raise
    return ended, result


def _interrupted(ended: Attempt) -> bool:
    """Whether the process was told to stop: then the run has not ended, and can be resumed."""
    return isinstance(ended, Failed) and isinstance(escalating(ended.error), KeyboardInterrupt | SystemExit)


async def _announce(run: Run, result: PipelineResult, usage: Usage) -> Aborted | Failure | None:
    said = {"status": result.status, "feedback": result.feedback, "output": result.output}
    run.emit("run.ended", ROOT, usage=usage, **said)
    return await _tell_post_run(run, result)


async def _ended(run: Run, pipeline: Pipeline, request: Request, *, resumed: bool, halt: Halt | None) -> Attempt:
    if run.hooks and not resumed:
        veto = await run.hooks.tell("pre_run", input=request.data, context=request.context)
        if veto is not None:
            return vetoed(veto)
    run.ledger.start(ROOT)
    try:
        actors = StepActors(run, closing=_closing(run, pipeline))
        if run.minds_failures:
            ended = await _with_what_comes_after(actors, pipeline, request, halt)
        else:
            ended = await _forward(actors, pipeline, request, halt)
    except BaseExceptionGroup as group:
        raise _first_cause(group) from None
    finally:
        run.ledger.settle(ROOT)
    run.ledger.close()
    return ended


def _closing(run: Run, pipeline: Pipeline) -> frozenset[StepPath]:
    """The steps that can wait for what is around them to be written down: nobody hears of them, or undoes them."""
    here = run.journal.holds and run.outlet is None and run.office is None
    return pipeline.closing_steps if here and run.quiet and not run.minds_failures else NOTHING_CLOSES


def _forward(actors: StepActors, pipeline: Pipeline, request: Request, halt: Halt | None) -> Awaitable[Attempt]:
    """The steps of the run, within its time, until somebody halts them."""
    work = work_of(request, request.data)
    timed = work.quotas and work.quotas[0].limits.time_limit_s is not None
    steps: Steps = _timed if timed else sequence
    return steps(actors, pipeline, work) if halt is None else _halted_or_ended(actors, halt, steps, pipeline, work)


def _with_what_comes_after(
    actors: StepActors, pipeline: Pipeline, request: Request, halt: Halt | None
) -> Awaitable[Attempt]:
    from .scopes import run_ended  # what only runs with handlers or compensations need

    return run_ended(actors, request, functools.partial(_forward, actors, pipeline, request, halt))


async def _timed(actors: StepActors, pipeline: Pipeline, work: Work) -> Attempt:
    """How the steps ended, within the time that the run may work in all."""
    from .limited import asked_before, at_root, within_time  # what only runs with limits need

    before = asked_before(actors.run) if actors.run.resumed else None
    if before is not None:
        return before
    steps = functools.partial(sequence, actors, pipeline, work)
    ended = await within_time(actors.run, work.quotas[0], steps)
    asks = at_root(actors.run, ended)
    if asks is None or not isinstance(asks.outcome, Paused):
        return ended
    request = Request(step=pipeline, name="", path=ROOT, parent=None, data=None, context=work.context, tally=work.tally)
    paused = await actors.pause(request, asks.outcome, ROOT, asks.question)
    return Stopped(outcome=paused)


async def _halted_or_ended(actors: StepActors, halt: Halt, steps: Steps, pipeline: Pipeline, work: Work) -> Attempt:
    ended, stopped = None, halt.stopped
    if stopped is None:
        with halt.scope:
            ended = await steps(actors, pipeline, work)
    if actors.run.untold:
        await tell_late(actors.run)  # of the steps that were cut short: others than a caller that leaves want to know
    ended = ended or halt.stopped
    assert ended is not None
    return ended


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception behind nested groups: nurseries wrap what an actor could not handle, once per level."""
    rest: BaseException = group.split(trio.Cancelled)[1] or group
    while isinstance(rest, BaseExceptionGroup):
        rest = rest.exceptions[0]
    return rest


async def _tell_post_run(run: Run, result: PipelineResult) -> Aborted | Failure | None:
    if not run.hooks:
        return None
    run.untold.extend(run.pausing)  # whoever was to be told of these has left
    with trio.CancelScope(shield=True, deadline=_grace(result)):
        await tell_late(run, watched=False)
        return await run.hooks.tell("post_run", result=result)
    return None


def _grace(result: PipelineResult) -> float:
    return trio.current_time() + HOOK_GRACE_S if result.status == "aborted" else float("inf")


def _delivered(result: PipelineResult, ended: Attempt, veto: Aborted | Failure | None) -> PipelineResult:
    errors = (
        ended.error if isinstance(ended, Failed) else None,
        veto.error if isinstance(veto, Failure) else None,
    )
    for error in filter(None, errors):
        control = escalating(error)
        if control is not None:
            if isinstance(control, ControlError):
                control.result = result
            raise control
    return result


def _result(run: Run, ended: Attempt, bill: Bill) -> PipelineResult:
    status, output, context, feedback, token = _summary(ended, bill)
    if run.undone and status in ("failed", "aborted"):
        feedback = _with_what_was_not_undone(run, feedback)
    error = ended.error if isinstance(ended, Failed) else None
    return PipelineResult(
        run_id=run.run_id,
        status=status,
        output=output,
        step_history=bill.history,
        total_cost_usd=bill.usage.cost_usd,
        total_tokens=0 if bill.usage is NO_USAGE else bill.usage.tokens,
        final_context=own(context) if status == "paused" else context,  # the run goes on with it
        feedback=feedback,
        state_token=token,
        error=error,
        undone=tuple(run.undone.values()),
    )


def _with_what_was_not_undone(run: Run, feedback: str | None) -> str | None:
    from .._core.undoing import could_not  # what only runs with compensations need

    told = could_not(list(run.undone.values()))
    return feedback if told is None else f"{feedback}; {told}"


def _summary(ended: Attempt, bill: Bill) -> tuple[RunStatus, object, object, str | None, str | None]:
    match ended:
        case Done(output=output, context=context):
            return "completed", output, context, None, None
        case Failed(feedback=feedback):
            return "failed", None, bill.context, feedback, None
        case Stopped(outcome=outcome):
            return _stopped(outcome, bill)
        case _:
            assert_never(ended)


def _stopped(outcome: Paused | Aborted, bill: Bill) -> tuple[RunStatus, object, object, str | None, str | None]:
    match outcome:
        case Paused(message=message, state_token=token):
            return "paused", None, bill.context, message, token
        case Aborted(reason=reason):
            return "aborted", None, bill.context, reason, None
        case _:
            assert_never(outcome)
