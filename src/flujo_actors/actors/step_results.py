"""What a step's result is made of: its attempts, its usage and what was nested in it."""

from __future__ import annotations

from typing import Any

import attrs

from ..core.attempts import Attempt, Failed, Stopped
from ..core.outcomes import Aborted, Failure, Paused, StepResult, Success, TerminalOutcome
from ..core.quota import QUOTA_LOCK, Quota
from ..core.usage import NO_USAGE, Usage
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


def usage_in(outcome: TerminalOutcome) -> Usage:
    """What the step behind an outcome has used."""
    result = outcome.step_result if isinstance(outcome, Success | Failure) else None
    return NO_USAGE if result is None else result.usage


def charge(quotas: tuple[Quota, ...], usage: Usage) -> None:
    """Count what an earlier part of the run has used."""
    with QUOTA_LOCK:
        for quota in quotas:
            quota.spend(usage)
