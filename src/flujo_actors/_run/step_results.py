"""What a step's result is made of: its attempts, its usage and what was nested in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from .._core.attempts import Attempt, Failed, Stopped
from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success, TerminalOutcome
from .._core.usage import NO_USAGE, Usage
from .._locks import QUOTA_LOCK
from .messages import Request
from .run import Run


def result_of(
    request: Request,
    *,
    output: Any = None,
    latency_s: float = 0.0,
    metadata: Any = (),
    success: bool = True,
    feedback: str | None = None,
) -> StepResult:
    """The step's result, with everything its tally has counted."""
    tally = request.tally
    return StepResult(
        name=request.name,
        output=output,
        success=success,
        attempts=tally.attempts,
        latency_s=latency_s,
        token_counts=tally.usage.tokens,
        cost_usd=tally.usage.cost_usd,
        feedback=feedback,
        metadata=dict(metadata),
        step_history=tally.history,
        usage=tally.usage,
    )


def told(run: Run, ended: Attempt) -> Attempt:
    """How an attempt ended, with what it says freed of secrets: reasons given by code quote errors, too."""
    match ended:
        case Failed(feedback=str() as said):
            return attrs.evolve(ended, feedback=run.redact(said))
        case Stopped(outcome=Aborted(reason=str() as said)):
            return attrs.evolve(ended, outcome=Aborted(reason=run.redact(said)))
        case Stopped(outcome=Paused(message=str() as said) as paused):
            return attrs.evolve(ended, outcome=attrs.evolve(paused, message=run.redact(said)))
    return ended


def unfinished_result(request: Request, outcome: TerminalOutcome) -> StepResult | None:
    """What a step that paused or was aborted had used until then, if anything."""
    if request.tally.usage is NO_USAGE or isinstance(outcome, (Success, Failure)):
        return None
    text = outcome.message if isinstance(outcome, Paused) else outcome.reason
    return result_of(request, success=False, feedback=text)


def result_in(outcome: TerminalOutcome) -> StepResult | None:
    """The result of the step behind an outcome, if it has one."""
    return outcome.step_result if isinstance(outcome, Success | Failure) else None


def charge(request: Request, usage: Usage, history: Iterable[StepResult] = ()) -> None:
    """Count what an earlier part of the run has used, and know how large its calls were."""
    if not request.quotas or usage is NO_USAGE:
        return
    from .known_sizes import sizes_in  # what only limited runs need that go on

    sizes = sizes_in(request.step, StepResult(name=request.name, usage=usage, step_history=tuple(history)))
    with QUOTA_LOCK:
        for quota in request.quotas:
            quota.spend(usage)
            for caller, size in sizes.items():
                quota.learn(caller, size)
