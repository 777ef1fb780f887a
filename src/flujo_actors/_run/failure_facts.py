"""What handlers and compensations are told of a failure, made from what is remembered of it."""

from __future__ import annotations

import datetime as dt

from .._core.error_info import message_of
from .._core.failures import Cause, StepFailure, stack_trace
from .._core.outcomes import ErrorInfo, Failure
from .aftermath import input_of
from .messages import Request
from .run import Run


def cause_of(request: Request, failure: Failure) -> Cause:
    """The step that failed, with what its attempts worked on."""
    return Cause(
        name=request.name,
        path=request.path,
        attempts=request.tally.attempts,
        input=input_of(request),
        feedback=failure.feedback or "",
        at=dt.datetime.now(dt.UTC),
        error=failure.error,
    )


def failure_from(run: Run, cause: Cause) -> StepFailure:
    """What is told of a failure, without secrets."""
    error = cause.error
    return StepFailure(
        run_id=run.run_id,
        step_name=cause.name,
        path=cause.path,
        error_type=_type_name(error),
        message=run.redact(_message(error)) or cause.feedback,
        stack_trace=run.redact(stack_trace(cause)),
        at=cause.at,
        attempts=cause.attempts,
        input=cause.input,
        feedback=cause.feedback,
        error=error,
    )


def _type_name(error: BaseException | ErrorInfo | None) -> str:
    if error is None:
        return ""
    return error.type_name if isinstance(error, ErrorInfo) else type(error).__name__


def _message(error: BaseException | ErrorInfo | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, ErrorInfo) else message_of(error)
