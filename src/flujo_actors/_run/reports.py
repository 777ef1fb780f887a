"""What is reported of a step: its result, made of its attempts, its usage and what was nested in it, and its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import attrs

from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success, TerminalOutcome
from .._core.paths import StepPath
from .._core.usage import NO_USAGE, Usage
from .._locks import QUOTA_LOCK
from .messages import Request
from .run import Run


def result_of(
    request: Request,
    *,
    output: object = None,
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


# --- events -------------------------------------------------------------------------------------------------


def report_left_thread(run: Run, name: str, path: StepPath) -> None:
    """Tell telemetry of a thread that runs on although its step was cancelled; the log knows it already."""
    text = "its thread cannot be stopped and runs on; what it returns is not used"
    run.emit("step.unstoppable", path, step_name=name, what="thread", feedback=text)


def emit_attempt_ended(run: Run, request: Request, ended: Attempt, number: int) -> None:
    """Say how an attempt ended."""
    status, text = _status(ended)
    run.emit("attempt.ended", request.path, step_name=request.name, attempt=number, status=status, feedback=text)


def _status(ended: Attempt) -> tuple[str, str | None]:
    match ended:
        case Done():
            return "success", None
        case Failed(feedback=feedback):
            return "failure", feedback
        case Stopped(outcome=outcome):
            return ("paused", None) if isinstance(outcome, Paused) else ("aborted", outcome.reason)
        case _:
            assert_never(ended)


def emit_step_ended(run: Run, request: Request, outcome: TerminalOutcome) -> None:
    """Say how a step ended."""
    facts: dict[str, Any]
    match outcome:
        case Success(step_result=result):
            facts = {"status": "success", "usage": result.usage, "output": result.output}
        case Failure(feedback=feedback, step_result=partial):
            facts = {"status": "failure", "feedback": feedback}
            if partial is not None:
                facts["usage"] = partial.usage
        case Paused():
            facts = {"status": "paused"}
        case Aborted(reason=reason):
            facts = {"status": "aborted", "feedback": reason}
        case _:
            assert_never(outcome)
    run.emit("step.ended", request.path, step_name=request.name, attempts=request.tally.attempts, **facts)
