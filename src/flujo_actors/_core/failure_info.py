"""Inputs and results of failure handlers and compensations."""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import attrs

from .outcomes import Aborted, ErrorInfo, Failure, Paused, PipelineResult, Success, TerminalOutcome, Undone
from .step_paths import StepPath


@attrs.frozen(kw_only=True, eq=False)
class Cause:
    """Recorded failure of a step."""

    name: str
    path: StepPath
    attempts: int
    input: object
    feedback: str
    at: dt.datetime
    error: BaseException | ErrorInfo | None = None
    stack_trace: str | None = None
    """Traceback as text, if another process recorded it."""


def stack_trace(cause: Cause) -> str:
    """Return the traceback as text: from the exception, or as recorded."""
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
    """Final failure of a step, after its last attempt and its fallback.

    `on_failure` receives it as its data.
    """

    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the failed step."""
    path: StepPath
    """Path of the failed step."""
    error_type: str
    """The name of the exception's class; empty if nothing was raised."""
    message: str
    """Redacted message of the exception; the feedback if nothing was raised."""
    stack_trace: str
    """The traceback as text, without secrets; empty if nothing was raised."""
    at: dt.datetime
    """Time of the failure, in UTC."""
    attempts: int
    """Number of its attempts."""
    input: Any = attrs.field(repr=False)
    """Data of the step."""
    feedback: str
    """Text of the failure."""
    error: Any = attrs.field(default=None, eq=False, repr=False)
    """Exception; an `ErrorInfo` if another process raised it."""


@attrs.frozen
class Recovered:
    """Handler result that gives the failed step this output."""

    output: Any = None
    """Output that replaces that of the failed step."""


@attrs.frozen(kw_only=True)
class CompensatedToolCall:
    """A call of a granular step's tool."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any]
    """Arguments of the call."""
    result: Any = None
    """Result of the call."""
    key: str
    """The idempotency key that the call was made with."""
    completed: bool = True
    """Whether the call is known to have returned."""


@attrs.frozen(kw_only=True)
class Undo:
    """Step to compensate; `compensate` receives it as its data."""

    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the step to compensate."""
    path: StepPath
    """Path of the step."""
    input: Any = attrs.field(repr=False)
    """Input of the step, or the arguments of a tool call."""
    output: Any = attrs.field(default=None, repr=False)
    """Output of the step."""
    completed: bool
    """Whether the step produced its output; otherwise its effect is unknown."""
    attempts: int
    """Number of attempts of the step."""
    forward_key: str
    """The idempotency key that the step itself was given."""
    reason: str
    """Reason of the compensation."""
    failure: StepFailure | None = None
    """Failure that caused the compensation; `None` if the run was aborted."""
    tool_calls: tuple[CompensatedToolCall, ...] = ()
    """Tool calls of a granular step, in start order."""


T = TypeVar("T")

When: TypeAlias = Literal["started", "completed"]
"""Scope of a compensation: every started call, or completed ones only."""

IfItFails: TypeAlias = Literal["continue", "stop", "pause"]
"""Action after a failed compensation: the next one, stop, or a pause."""

State: TypeAlias = Literal["completed", "failed", "cut short", "paused"]
"""State of a step that may need compensation."""


@attrs.frozen(kw_only=True, eq=False)
class Undoable:
    """Step to compensate, with the arguments of its compensation."""

    step: Any
    """Declaration of the step; `None` if the pipeline lost it."""
    name: str
    path: StepPath
    input: object = None
    output: object = None
    completed: bool = True
    attempts: int = 1
    context: object = None
    """Context after the step; `None` if unchanged."""
    number: int = 1
    """Next run of its compensation: a cancelled one is run again."""
    waiting: Paused | None = None
    """Open pause of its started compensation, if any."""


@attrs.frozen
class CompensationStop:
    """Marker of the position at which compensation stopped for good (rule 6)."""


HALT = CompensationStop()

ToUndo: TypeAlias = Undoable | CompensationStop
"""Compensation entries that a step leaves to its parent."""


def state_of(outcome: TerminalOutcome) -> State:
    """Return the state of a step that settled with this outcome."""
    match outcome:
        case Success():
            return "completed"
        case Paused():
            return "paused"
        case Aborted():
            return "cut short"
        case _:
            return "failed"


def compensation_entries_of(
    state: State, *, own: T | None, inside: Iterable[T], is_call: bool, when: When
) -> tuple[T, ...]:
    """Return the compensation entries of a step in start order.

    `own` is `None` if the step has no compensation or did not start.
    """
    if state == "completed":
        return tuple(inside) if own is None else (own,)
    if own is not None and is_call and when == "started":
        return (own, *inside)
    return tuple(inside)


def in_order(started: Sequence[ToUndo]) -> list[Undoable]:
    """Return the steps to compensate from a list in start order."""
    found: list[Undoable] = []
    for each in reversed(started):
        if isinstance(each, CompensationStop):
            break
        found.append(each)
    return found


def could_not(undone: Sequence[Undone]) -> str | None:
    """Return the sentence about failed compensations, or None."""
    failed = [each for each in undone if not each.success]
    if not failed:
        return None
    failures = "; ".join(f"{each.step_name!r}: {each.feedback}" for each in failed)
    return f"{len(failed)} of {len(undone)} could not be undone: {failures}"


@attrs.frozen(kw_only=True)
class PreRun:
    """A run is about to start."""

    kind: ClassVar[Literal["pre_run"]] = "pre_run"
    run_id: str
    """Id of the run."""
    input: Any = None
    """Data of the run."""
    context: Any = None
    """Context of the run."""


@attrs.frozen(kw_only=True)
class PreStep:
    """A step is about to start."""

    kind: ClassVar[Literal["pre_step"]] = "pre_step"
    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the step."""
    path: str = ""
    """Path of the step."""
    input: Any = None
    """Data of the step."""
    context: Any = None
    """Context that the step receives."""


@attrs.frozen(kw_only=True)
class PostStep:
    """A step settled with any outcome."""

    kind: ClassVar[Literal["post_step"]] = "post_step"
    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the step."""
    outcome: TerminalOutcome
    """Outcome of the step."""
    path: str = ""
    """Path of the step."""


@attrs.frozen(kw_only=True)
class OnStepFailure:
    """A step settled as a failure; emitted once per failed step."""

    kind: ClassVar[Literal["on_step_failure"]] = "on_step_failure"
    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the step."""
    outcome: Failure
    """Failure of the step."""
    path: str = ""
    """Path of the step."""


@attrs.frozen(kw_only=True)
class OnPause:
    """A step paused the run."""

    kind: ClassVar[Literal["on_pause"]] = "on_pause"
    run_id: str
    """Id of the run."""
    step_name: str
    """Name of the step."""
    outcome: Paused
    """Pause with message and token."""
    path: str = ""
    """Path of the step."""


@attrs.frozen(kw_only=True)
class PostRun:
    """The run ended or paused; `result` is the caller's result."""

    kind: ClassVar[Literal["post_run"]] = "post_run"
    run_id: str
    """Id of the run."""
    result: PipelineResult
    """Result of the run."""


HookPayload: TypeAlias = PreRun | PreStep | PostStep | OnStepFailure | OnPause | PostRun
"""Union of all hook payloads."""

PAYLOAD_TYPES: Mapping[str, type[Any]] = {payload_type.kind: payload_type for payload_type in get_args(HookPayload)}
"""Every payload by its kind."""
