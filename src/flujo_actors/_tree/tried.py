"""Failed attempts, written down before anything is done about them, and read again when the run goes on.

From the moment on at which one is written down, nothing of it is ever done again: what comes next, a retry, the
fallback, undoing or handlers, goes on where an earlier part of the run ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .. import errors
from .._core import paths
from .._core.attempts import Failed, Stopped, escalating
from .._core.outcomes import Aborted, ErrorInfo, Failure, StepResult
from .._core.usage import NO_USAGE
from .._durable.journal import Recorded
from .._run.messages import Request
from .._run.reports import charge, result_of
from .._run.run import Run

if TYPE_CHECKING:
    from .._core.failures import Cause
    from .._core.selection import Evidence


async def remember_failed(run: Run, request: Request, ended: Failed | Stopped, *, final: bool = False) -> None:
    """Write down the attempts so far: whatever the step does next may outlive this part of the run."""
    tally = request.tally
    failure = _failure(request, ended, final=final)
    cause: Cause | None = None
    if run.minds_failures and isinstance(ended, Failed):
        from .._run.failure_facts import cause_of  # what only runs with handlers or compensations need

        inner = None if tally.aftermath is None else tally.aftermath.cause
        cause = inner or cause_of(request, failure)
    record = Recorded(
        outcome=failure,
        context=request.context,
        same_context=True,
        undo=tally.left_inside(),
        cause=cause,
        evidence=_learned(run, request) if tally.evidence else (),
    )
    await run.journal.settled(paths.tried(request.path), record)


def _learned(run: Run, request: Request) -> tuple[Evidence, ...]:
    from .._run.beliefs import taken_evidence  # what only runs with selections need

    return taken_evidence(run, request)


def _failure(request: Request, ended: Failed | Stopped, *, final: bool) -> Failure:
    noted: dict[str, object] = {"refused": request.tally.refused, "refusal": request.tally.refusal}
    if final:
        noted["final"] = True
    if isinstance(ended, Stopped):
        assert isinstance(ended.outcome, Aborted)
        ended = Failed(error=None, feedback=ended.outcome.reason)
        noted["aborted"] = True
    control = escalating(ended.error)
    if control is not None:
        noted["control"] = type(control).__name__
    low = "min_confidence" in ended.metadata  # whoever reviews it must see it, and how sure it was
    if low:
        noted["confidence"] = ended.metadata.get("confidence")
    output = ended.output if low else None
    result = result_of(request, output=output, metadata=noted, success=False, feedback=ended.feedback)
    return Failure(error=ended.error, feedback=ended.feedback, step_result=result)


@attrs.frozen(kw_only=True)
class Earlier:
    """How the attempts ended that an earlier part of the run made."""

    ended: Failed | Stopped
    final: bool
    """Whether nothing else was to be tried."""


def failed_earlier(run: Run, request: Request) -> Earlier | None:
    """The last of the attempts that an earlier part of the run made, all of them counted."""
    tried = run.journal.recall(paths.tried(request.path))
    if tried is None or not isinstance(tried.outcome, Failure) or tried.outcome.step_result is None:
        return None
    failure, result = tried.outcome, tried.outcome.step_result
    tally = request.tally
    tally.attempts, tally.history = result.attempts, list(result.step_history)
    tally.refused, tally.refusal = result.metadata.get("refused", 0), result.metadata.get("refusal")
    if tally.usage is NO_USAGE:  # otherwise it was counted with what the step asked about its limits
        tally.usage = result.usage
        charge(request, tally.usage, tally.history)
    if tried.undo or tried.cause is not None:
        _left_behind(request, tried, failure)
    return Earlier(ended=_ended(failure, result), final=bool(result.metadata.get("final")))


def _left_behind(request: Request, tried: Recorded, failure: Failure) -> None:
    from .._run.aftermath import Aftermath  # what only runs with handlers or compensations need

    aftermath = request.tally.aftermath = request.tally.aftermath or Aftermath()
    aftermath.undo = {0: tried.undo} if tried.undo else {}
    aftermath.cause = None if tried.cause is None else attrs.evolve(tried.cause, error=failure.error)


def _ended(failure: Failure, result: StepResult) -> Failed | Stopped:
    text = failure.feedback or ""
    if result.metadata.get("aborted"):
        return Stopped(outcome=Aborted(reason=text))
    error = _control(failure, result.metadata.get("control")) or failure.error
    noted = {"confidence": result.metadata["confidence"]} if "confidence" in result.metadata else {}
    return Failed(error=error, feedback=text, output=result.output, metadata=noted)


def _control(failure: Failure, name: object) -> BaseException | None:
    """The error that stopped the run, as far as it is one of the library's own."""
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not issubclass(kind, errors.ControlError):
        return None
    return kind(failure.error.message if isinstance(failure.error, ErrorInfo) else str(failure.error))
