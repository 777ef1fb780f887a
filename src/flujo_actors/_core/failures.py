"""What failure handlers and compensations are told, and what they may answer."""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Mapping
from typing import Any

import attrs

from .outcomes import ErrorInfo
from .paths import StepPath


@attrs.frozen(kw_only=True, eq=False)
class Cause:
    """A step that failed, as it is remembered for those who are told of it."""

    name: str
    path: StepPath
    attempts: int
    input: object
    feedback: str
    at: dt.datetime
    error: BaseException | ErrorInfo | None = None
    stack_trace: str | None = None
    """The traceback as text, if another process wrote it down."""


def stack_trace(cause: Cause) -> str:
    """The traceback as text: from the exception, or as it was written down."""
    if cause.stack_trace is not None:
        return cause.stack_trace
    match cause.error:
        case BaseException() as error:
            return "".join(traceback.format_exception(error))
        case ErrorInfo(frames=frames) as info:
            return "\n".join([*map(str, frames), str(info)])
        case None:
            return ""


@attrs.frozen(kw_only=True)
class StepFailure:
    """A step that failed for good: after its last attempt, and its fallback. What `on_failure` gets as its data."""

    run_id: str
    step_name: str
    path: StepPath
    error_type: str
    """The name of the exception's class; empty if nothing was raised."""
    message: str
    """What the exception said, without secrets; the feedback if nothing was raised."""
    stack_trace: str
    """The traceback as text, without secrets; empty if nothing was raised."""
    at: dt.datetime
    """When it failed, in UTC."""
    attempts: int
    input: Any = attrs.field(repr=False)
    feedback: str
    error: Any = attrs.field(default=None, eq=False, repr=False)
    """The exception; an `ErrorInfo` if another process raised it."""


@attrs.frozen
class Recovered:
    """What a handler returns to make the failed step a success with this output."""

    output: Any = None


@attrs.frozen(kw_only=True)
class ToolCall:
    """A call of a granular step's tool."""

    name: str
    arguments: Mapping[str, Any]
    result: Any = None
    key: str
    """The idempotency key that the call was made with."""
    completed: bool = True
    """Whether the call is known to have returned; one that is not may have done anything."""


@attrs.frozen(kw_only=True)
class Undo:
    """A step whose effects are to be undone: what `compensate` gets as its data."""

    run_id: str
    step_name: str
    path: StepPath
    input: Any = attrs.field(repr=False)
    """What the step worked on; the arguments, if it is a tool call that is undone."""
    output: Any = attrs.field(default=None, repr=False)
    completed: bool
    """Whether the step had its output; one that has not may have done anything, or nothing."""
    attempts: int
    forward_key: str
    """The idempotency key that the step itself was given."""
    reason: str
    """Why it is undone."""
    failure: StepFailure | None = None
    """What failed; `None` if the run was aborted."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the tools of a granular step did, in the order in which they began."""
