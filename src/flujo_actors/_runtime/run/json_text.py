"""`to_json`: JSON for other programs, with secrets of errors redacted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from ..._core.error_info import describe_error
from ..._core.outcomes import Aborted, ErrorInfo, Failure, Paused, PipelineResult, StepResult, Success
from ..._core.records.json_codec import TAG, json_of, untagged
from ..._core.records.record_bodies import Redact, redacted_error
from ...telemetry._redaction.redactor import redacted

_MESSAGES = (Success, Failure, Paused, Aborted, StepResult, PipelineResult)
_AN_ERROR = f'"{TAG}":"error"'


def to_json(value: object, *, plain: bool = False) -> str:
    """Return an outcome, a result or any storable value as JSON text.

    Errors, feedback, reasons and prompts are redacted; outputs and contexts are unchanged.

    Args:
        value: value to write.
        plain: whether type tags and names of classes, which only `from_json` needs, are omitted: for browsers.

    Raises:
        TypeError: the value has no JSON form.

    Example:
        ```python
        result = Flujo(Step("greet", str.upper)).run("ada")
        assert from_json(to_json(result), PipelineResult) == result
        ```
    """
    if plain:
        return _plain(value)
    text = json_of(_without_secrets(value, redacted))
    if _AN_ERROR not in text:
        return text
    return json.dumps(_errors_redacted(json.loads(text)), separators=(",", ":"))


def _plain(value: object) -> str:
    data = json.loads(json_of(_without_secrets(value, redacted)))
    return json.dumps(untagged(_errors_redacted(data)), separators=(",", ":"))


def _errors_redacted(data: object) -> object:
    """Return the data with redacted exceptions inside outputs and contexts."""
    if isinstance(data, list):
        return [_errors_redacted(each) for each in data]
    if not isinstance(data, dict):
        return data
    if data.get(TAG) == "error":
        return {TAG: "error", "value": _texts_redacted(data.get("value"))}
    return {name: _errors_redacted(each) for name, each in data.items()}


def _texts_redacted(data: object) -> object:
    if isinstance(data, str):
        return redacted(data)
    if isinstance(data, list):
        return [_texts_redacted(each) for each in data]
    return {name: _texts_redacted(each) for name, each in data.items()} if isinstance(data, dict) else data


def _without_secrets(value: object, redact: Redact) -> Any:
    """Return the outcome, result or error with redacted texts; other values unchanged."""
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
    return tuple(_without_secrets(each, redact) for each in results)


_BY_FIELD: dict[str, Callable[[Any, Redact], object]] = {
    "error": _error,
    "feedback": _text,
    "message": _text,
    "reason": _text,
    "step_history": _results,
    "step_result": _without_secrets,
}
