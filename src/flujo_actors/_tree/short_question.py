"""The short way of a step that is one question to a model agent; the rules are those of `short_way`."""

from __future__ import annotations

from .._calls.short_answer import has_short_answer, short_answer
from .._core.attempts import Done
from .._core.outcomes import StepResult, Success
from .._dsl.step import Step
from .._run.messages import Request, Settled
from .._run.run import Run, note_swallowed_cancellation
from .short_way import ShortWay


def is_short(run: Run, request: Request) -> bool:
    """Whether a step that is just a question is one that nobody sees, limits, or has answered elsewhere."""
    if run.outlet is not None or run.office is not None or run.is_seen(request.path):
        return False
    step = request.step
    if request.quotas or request.degraded or step.usage_limits is not None:
        return False
    return isinstance(step, Step) and has_short_answer(step)


async def just_ask(actors: ShortWay, request: Request) -> Settled:
    """Do such a step and say how it ended."""
    run, step = actors.run, request.step
    assert isinstance(step, Step)
    run.ledger.start(request.path, request.parent)
    if actors.remembers is None:
        run.journal.started(request.path, request.name, request.of)
    begun, request.tally.attempts = actors.clock.current_time(), 1
    ended = await short_answer(run, step, request)
    await note_swallowed_cancellation(run, request)
    latency_s = actors.clock.current_time() - begun
    if not isinstance(ended, Done):
        outcome, context = await actors.concluded(request, ended, latency_s)
        return await actors.settle(request, outcome, context)
    success = Success(step_result=_result_of(request, ended, latency_s))
    if actors.remembers is not None:
        return actors.remembered(actors.remembers, request, success)
    if step.compensate is None:
        return await actors.settled_durably(request, success)
    return await actors.settle(request, success, request.context)


def _result_of(request: Request, done: Done, latency_s: float) -> StepResult:
    usage = request.tally.usage
    return StepResult(
        name=request.name,
        output=done.output,
        latency_s=latency_s,
        token_counts=usage.tokens,
        cost_usd=usage.cost_usd,
        metadata=done.metadata,
        usage=usage,
    )
