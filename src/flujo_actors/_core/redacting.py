"""The messages of a run without secrets: only what errors and reasons say is changed, never what a step made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from .error_info import describe_error
from .outcomes import Aborted, ErrorInfo, Failure, Paused, PipelineResult, StepResult, Success
from .record_bodies import Redact, redacted_error

_MESSAGES = (Success, Failure, Paused, Aborted, StepResult, PipelineResult)


def without_secrets(value: object, redact: Redact) -> Any:
    """The outcome, result or error with its texts redacted; any other value as it is."""
    if isinstance(value, ErrorInfo):
        return redacted_error(value, redact)
    return _message(value, redact) if isinstance(value, _MESSAGES) else value


def _message(message: Any, redact: Redact) -> object:
    fields = [field.name for field in attrs.fields(type(message)) if field.name in _BY_FIELD]
    return attrs.evolve(message, **{name: _BY_FIELD[name](getattr(message, name), redact) for name in fields})


def _text(text: str | None, redact: Redact) -> str | None:
    return redact(text) if isinstance(text, str) else text


def _error(error: BaseException | ErrorInfo | None, redact: Redact) -> ErrorInfo | None:
    if error is None:
        return None
    return redacted_error(error if isinstance(error, ErrorInfo) else describe_error(error), redact)


def _results(results: tuple[StepResult, ...], redact: Redact) -> tuple[StepResult, ...]:
    return tuple(without_secrets(each, redact) for each in results)


_BY_FIELD: dict[str, Callable[[Any, Redact], object]] = {
    "error": _error,
    "feedback": _text,
    "message": _text,
    "reason": _text,
    "step_history": _results,
    "step_result": without_secrets,
}
