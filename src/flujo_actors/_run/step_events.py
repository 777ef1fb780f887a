"""What telemetry is told about a step."""

from __future__ import annotations

import logging
from typing import Any, assert_never

import trio

from .._core.attempts import Attempt, Done, Failed, Stopped
from .._core.outcomes import Aborted, Failure, Paused, Success, TerminalOutcome
from .._core.paths import StepPath
from .messages import Request
from .run import Run

logger = logging.getLogger("flujo_actors")


async def note_swallowed_cancellation(run: Run, request: Request) -> None:
    """Raise the cancellation that the step's code has let pass, if there is one, and report it."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        report_unstoppable(run, request.name, request.path)
        raise


def report_unstoppable(run: Run, name: str, path: StepPath) -> None:
    """Say that a step went on although it was cancelled."""
    text = "it ended only after its cancellation was requested; what it returned is not used"
    logger.info("step %r of run %s: %s", name, run.run_id, text)
    run.emit("step.unstoppable", path, step_name=name, feedback=text)


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
