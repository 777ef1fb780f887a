"""The bodies of records: JSON objects with a version, made and read in one place.

Rules:

1. A body of an unknown version is refused.
2. An exception is stored as what it said, after redaction.
3. A context that a step left as it found it is not stored again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import cattrs

from ..errors import CorruptRecord, NotSerializable
from .error_info import describe_error
from .outcomes import ErrorInfo, Failure, PipelineResult, StepOutcome, TerminalOutcome
from .records import RECORD_VERSION
from .usage import Usage
from .wire import decode, from_data, to_data

Redact = Callable[[str], str]
"""Takes the secrets out of a text."""


def make_body(**parts: Any) -> str:
    """A body of the current version; the parts are JSON data."""
    try:
        return json.dumps({"v": RECORD_VERSION, **parts}, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise NotSerializable("the value is nested too deeply to be stored, or contains itself") from None


def read_body(text: str, *, where: str) -> dict[str, Any]:
    """The parts of a body; `CorruptRecord` names `where` it cannot be read."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise CorruptRecord(f"{where}: its body is not JSON ({error})") from error
    version = body.get("v") if isinstance(body, dict) else None
    if not isinstance(version, int) or not 1 <= version <= RECORD_VERSION:
        raise CorruptRecord(f"{where}: its body has version {version!r}, this code knows 1 to {RECORD_VERSION}")
    parts: dict[str, Any] = body
    return parts


def read_value(data: Any, *, where: str) -> Any:
    """A stored value."""
    try:
        return decode(data)
    except (NotSerializable, TypeError, ValueError, KeyError) as error:
        raise CorruptRecord(f"{where}: {error}") from error


def outcome_data(outcome: TerminalOutcome, redact: Redact) -> Any:
    """An outcome as JSON data, its error redacted."""
    if isinstance(outcome, Failure) and outcome.error is not None:
        info = outcome.error if isinstance(outcome.error, ErrorInfo) else describe_error(outcome.error)
        outcome = attrs.evolve(outcome, error=redacted_error(info, redact))
    return to_data(outcome)


def read_outcome(data: Any, *, where: str) -> Any:
    """A stored outcome."""
    try:
        return from_data(data, StepOutcome)
    except NotSerializable as error:
        raise CorruptRecord(f"{where}: {error}") from error


def result_data(result: PipelineResult) -> dict[str, Any]:
    """What a result adds to the records before it: how the run stands, and its totals."""
    return {
        "status": result.status,
        "feedback": result.feedback,
        "total_tokens": result.total_tokens,
        "total_cost_usd": result.total_cost_usd,
    }


def redacted_error(info: ErrorInfo, redact: Redact) -> ErrorInfo:
    """The error without secrets, down to its causes."""
    return ErrorInfo(
        type_name=info.type_name,
        message=redact(info.message),
        notes=tuple(map(redact, info.notes)),
        causes=tuple(redacted_error(cause, redact) for cause in info.causes),
    )


def read_usage(data: Any, *, where: str) -> Usage:
    """A stored usage."""
    try:
        return cattrs.structure(data, Usage)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise CorruptRecord(f"{where}: its usage cannot be read ({error})") from error


def usage_data(usage: Usage) -> dict[str, Any]:
    """A usage as JSON data."""
    return attrs.asdict(usage)
