"""Typed events of a run: one vocabulary for every sink.

Rules:
1. Events are frozen values. The emitter sets `at`: seconds, on one clock per run. No clock is read here.
2. `run_id` and `path` give the location: the step's path in the tree, `""` for the run itself.
3. A session of a run opens with `run.started` or `run.resumed` and closes with `run.ended`; likewise
   `step.*`, `attempt.*`, `model.*`, `tool.*` and `retrieval.*` come in pairs for every ending.
4. A field that may hold user or model content (prompts, inputs, outputs) is declared with
   `_content()`, one for verbose telemetry with `_detail()`; no other module decides this.

Sections:

- Events of budgets, selections, confidence and loop detection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import attrs

from .event_kinds import CONTENT as _CONTENT
from .event_kinds import DETAIL as _DETAIL
from .event_kinds import EventKind, InAttempt, InRun, InStep, content
from .event_kinds import InAttempt as _InAttempt
from .event_kinds import InRun as _InRun
from .event_kinds import InStep as _InStep
from .event_kinds import content as _content
from .event_kinds import detail as _detail
from .labels import NO_LABELS
from .outcomes import RunStatus
from .usage import NO_USAGE, BudgetLevel, Usage

# --- Events of budgets --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class BudgetLevelChanged(InRun):
    """The remaining budget of the step at `path` changed its level."""

    kind: ClassVar[Literal["budget.level"]] = "budget.level"
    step_name: str = ""
    level: BudgetLevel
    before: BudgetLevel
    fraction: float


@attrs.frozen(kw_only=True)
class SelectionChosen(InStep):
    """An agent was selected; `observations` counts its known outcomes."""

    kind: ClassVar[Literal["selection.chosen"]] = "selection.chosen"
    arm: str
    category: str
    theta: float | None = None
    observations: int = 0


@attrs.frozen(kw_only=True)
class ConfidenceLow(InAttempt):
    """An answer had low confidence; `confidence` is `None` if unknown."""

    kind: ClassVar[Literal["confidence.low"]] = "confidence.low"
    confidence: float | None = None
    min_confidence: float
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class LoopFound(InAttempt):
    """A loop was detected; `reaction` is the guard's action, if any."""

    kind: ClassVar[Literal["loop.detected"]] = "loop.detected"
    loop: str
    times: int
    reaction: str | None = None
    cycle: tuple[str, ...] | None = content()


@attrs.frozen(kw_only=True)
class LoopCompacted(InAttempt):
    """A loop with `keep_history` deleted the records of old turns."""

    kind: ClassVar[Literal["loop.compacted"]] = "loop.compacted"
    turn: int
    """Number of finished turns."""
    kept: int
    """Number of turns that are kept."""


# --- Events of schedules ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ScheduleFired(InRun):
    """A worker created the run of an instant, `late_s` after it."""

    kind: ClassVar[Literal["schedule.fired"]] = "schedule.fired"
    schedule: str
    late_s: float = 0.0


@attrs.frozen(kw_only=True)
class ScheduleSkipped(InRun):
    """An instant has no run: an earlier run has not ended."""

    kind: ClassVar[Literal["schedule.skipped"]] = "schedule.skipped"
    schedule: str


@attrs.frozen(kw_only=True)
class ScheduleFailed(InRun):
    """An instant has no run: its input could not be made."""

    kind: ClassVar[Literal["schedule.failed"]] = "schedule.failed"
    schedule: str
    feedback: str | None = None


# --- Events of rate limits, budgets, caches and messages ----------------------------------------------------------


@attrs.frozen(kw_only=True)
class RateWaited(InRun):
    """A request waited for its rate limit."""

    kind: ClassVar[Literal["rate.waited"]] = "rate.waited"
    name: str
    wait_s: float


@attrs.frozen(kw_only=True)
class RateBlocked(InRun):
    """Provider refusal (429) that blocks a rate limit for all processes."""

    kind: ClassVar[Literal["rate.blocked"]] = "rate.blocked"
    name: str
    for_s: float


@attrs.frozen(kw_only=True)
class BudgetWarned(InRun):
    """The share `warn_at` of a window's budget is spent."""

    kind: ClassVar[Literal["budget.warned"]] = "budget.warned"
    name: str
    scope: str
    """Scope value; empty for all runs of the name."""
    window: str
    fraction: float
    """Spent share of the scarcest resource."""
    ends_at: float
    """End of the window in epoch seconds."""


@attrs.frozen(kw_only=True)
class StepCached(InStep):
    """A step settled with a stored output of an earlier run."""

    kind: ClassVar[Literal["step.cached"]] = "step.cached"


@attrs.frozen(kw_only=True)
class AgentSteered(InAttempt):
    """Messages from outside are part of the next request."""

    kind: ClassVar[Literal["agent.steered"]] = "agent.steered"
    messages: int


# --- Typed events of a run ----------------------------------------------------------------------------------------


StepStatus = Literal["success", "failure", "paused", "aborted"]
"""Status of an ended step, attempt, model call or tool call."""
ArosStage = Literal["deterministic", "llm", "retry", "simplified", "extractor", "degrade"]
"""Repair or fallback stage of a structured step."""


def content_fields(event_type: type[Any]) -> tuple[str, ...]:
    """Return the names of the content fields of an event class."""
    return tuple(field.name for field in attrs.fields(event_type) if field.metadata.get(_CONTENT))


def detail_fields(event_type: type[Any]) -> tuple[str, ...]:
    """Return the fields of an event class that only verbose telemetry exports."""
    return tuple(field.name for field in attrs.fields(event_type) if field.metadata.get(_DETAIL))


def facts(event: Event) -> dict[str, object]:
    """Return the event as a flat mapping, `kind` first, without defaults."""
    facts: dict[str, object] = {"kind": event.kind}
    for name in attrs.fields_dict(type(event)):
        facts |= _fact(name, getattr(event, name))
    return facts


def _fact(name: str, value: object) -> dict[str, object]:
    match value:
        case None:
            return {}
        case str() | Mapping() if not value:
            return {}
        case Usage():
            return {part: number for part, number in attrs.asdict(value).items() if number}
        case _:
            return {name: value}


@attrs.frozen(kw_only=True)
class RunTaken(_InRun):
    """A worker claimed a queued run or remote step."""

    kind: ClassVar[Literal["run.taken"]] = "run.taken"
    pipeline_name: str = ""
    """Name of the pipeline."""
    queue: str = ""
    """Name of the queue."""
    waited_s: float = 0.0
    """Seconds in the queue."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""


@attrs.frozen(kw_only=True)
class RunStarted(_InRun):
    kind: ClassVar[Literal["run.started"]] = "run.started"
    pipeline_name: str = ""
    """Name of the pipeline."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""
    input: object = _content()
    """Data of the run."""


@attrs.frozen(kw_only=True)
class RunEndedEvent(_InRun):
    kind: ClassVar[Literal["run.ended"]] = "run.ended"
    status: RunStatus
    """Status of the run."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""
    error_type: str | None = None
    """Class name of the error."""
    feedback: str | None = None
    """Text of the failure."""
    usage: Usage = NO_USAGE
    """Usage of the run."""
    output: object = _content()
    """Output of the run."""


@attrs.frozen(kw_only=True)
class RunPausedEvent(_InRun):
    """A step paused the run; `path` and `step_name` identify the step.

    `run.ended` with `paused` follows.
    """

    kind: ClassVar[Literal["run.paused"]] = "run.paused"
    step_name: str = ""
    """Name of the paused step."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""
    message: str | None = _content()
    """Question to the person."""


@attrs.frozen(kw_only=True)
class RunWaiting(_InRun):
    """A step waits for a time or an event, without a person."""

    kind: ClassVar[Literal["run.waiting"]] = "run.waiting"
    step_name: str = ""
    """Name of the waiting step."""
    wait_kind: str = ""
    """Kind of the wait."""
    due_at: float | None = None
    """End of the wait in epoch seconds, if any."""


@attrs.frozen(kw_only=True)
class RunWoken(_InRun):
    """A put-away wait ended, by its time, an event or a wake."""

    kind: ClassVar[Literal["run.woken"]] = "run.woken"
    step_name: str = ""
    """Name of the waiting step."""
    wait_kind: str = ""
    """Kind of the wait."""
    late_s: float = 0.0
    """Seconds after the end of the wait."""
    span: str | None = None
    """Span of the run when it was put away, as W3C `traceparent`."""


@attrs.frozen(kw_only=True)
class EventSent(_InRun):
    """A client sent an event; `run_id` is its first receiver, or empty."""

    kind: ClassVar[Literal["event.sent"]] = "event.sent"
    event: str = ""
    key: str = ""
    status: str = ""
    """`delivered`, `buffered` or `duplicate`."""
    receivers: int = 0


@attrs.frozen(kw_only=True)
class EventDelivered(_InRun):
    """A step received the event that it waited for."""

    kind: ClassVar[Literal["event.delivered"]] = "event.delivered"
    step_name: str = ""
    """Name of the waiting step."""
    event: str = ""
    """Name of the event."""


@attrs.frozen(kw_only=True)
class EventRefused(_InRun):
    """A buffered event did not fit the step that waits for it."""

    kind: ClassVar[Literal["event.refused"]] = "event.refused"
    step_name: str = ""
    """Name of the waiting step."""
    event: str = ""
    """Name of the event."""
    feedback: str | None = None
    """Reason of the refusal."""


@attrs.frozen(kw_only=True)
class RunResumed(_InRun):
    """A run resumed; `answer` is the value passed to `resume`, if any."""

    kind: ClassVar[Literal["run.resumed"]] = "run.resumed"
    pipeline_name: str = ""
    """Name of the pipeline."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""
    answer: object = _content()
    """Answer of the person."""


@attrs.frozen(kw_only=True)
class RunRetried(_InRun):
    """A retried run continues; it follows `run.resumed` once per retry."""

    kind: ClassVar[Literal["run.retried"]] = "run.retried"
    pipeline_name: str = ""
    """Name of the pipeline."""
    labels: Mapping[str, str] = NO_LABELS
    """Labels of the run."""
    number: int = 1
    """Number of the retry, from 1."""
    mode: str = "strict"
    """Handling of a changed pipeline."""
    from_start: bool = False
    """Whether completed steps run again."""
    reason: str | None = None
    """Reason of the retry."""
    by: str | None = None
    """Name of the person."""


@attrs.frozen(kw_only=True)
class StepStarted(_InStep):
    kind: ClassVar[Literal["step.started"]] = "step.started"
    input: object = _content()
    """Data of the step."""


@attrs.frozen(kw_only=True)
class StepEnded(_InStep):
    """`usage` is that of all attempts of the step, nested steps included."""

    kind: ClassVar[Literal["step.ended"]] = "step.ended"
    status: StepStatus
    """Status of the step."""
    error_type: str | None = None
    """Class name of the error."""
    feedback: str | None = None
    """Text of the failure."""
    attempts: int = 0
    """Number of attempts."""
    usage: Usage = NO_USAGE
    """Usage of the step."""
    output: object = _content()
    """Output of the step."""


@attrs.frozen(kw_only=True)
class StepRetry(_InAttempt):
    """`attempt` is the one that failed; the next begins after `delay_s`."""

    kind: ClassVar[Literal["step.retry"]] = "step.retry"
    delay_s: float = 0.0
    """Seconds before the next attempt."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class StepFallback(_InStep):
    kind: ClassVar[Literal["step.fallback"]] = "step.fallback"
    fallback_name: str
    """Name of the fallback step."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class StepRecovered(_InStep):
    """A handler has made a success of the step's failure."""

    kind: ClassVar[Literal["step.recovered"]] = "step.recovered"
    handler_name: str = ""
    """Name of the failure handler."""


@attrs.frozen(kw_only=True)
class HandlerFailed(_InStep):
    """A failure handler failed; `path` and `step_name` identify the failed step."""

    kind: ClassVar[Literal["handler.failed"]] = "handler.failed"
    handler_name: str
    """Name of the failure handler."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class UndoStarted(_InStep):
    """Compensation of an attempt starts: `steps` compensations, caused by `feedback`."""

    kind: ClassVar[Literal["undo.started"]] = "undo.started"
    steps: int = 0
    """Number of steps to compensate."""
    feedback: str | None = None
    """Reason of the compensation."""


@attrs.frozen(kw_only=True)
class UndoEnded(_InStep):
    """The compensation of this step has ended."""

    kind: ClassVar[Literal["undo.ended"]] = "undo.ended"
    status: StepStatus
    """Status of the compensation."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class StepUnstoppable(_InStep):
    """A thread or a step continues to run after its cancellation."""

    kind: ClassVar[Literal["step.unstoppable"]] = "step.unstoppable"
    what: Literal["thread", "step"] = "step"
    """Whether a thread or a step ignores cancellation."""
    feedback: str | None = None
    """Description of the running code."""


@attrs.frozen(kw_only=True)
class AttemptStarted(_InAttempt):
    kind: ClassVar[Literal["attempt.started"]] = "attempt.started"


@attrs.frozen(kw_only=True)
class AttemptEnded(_InAttempt):
    kind: ClassVar[Literal["attempt.ended"]] = "attempt.ended"
    status: StepStatus
    """Status of the attempt."""
    error_type: str | None = None
    """Class name of the error."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class AgentSystem(_InAttempt):
    """`text` is the resolved system prompt, as the model gets it."""

    kind: ClassVar[Literal["agent.system"]] = "agent.system"
    text: str | None = _content()
    """System prompt."""


@attrs.frozen(kw_only=True)
class AgentInput(_InAttempt):
    kind: ClassVar[Literal["agent.input"]] = "agent.input"
    data: object = _content()
    """Data of the agent."""


@attrs.frozen(kw_only=True)
class AgentResponse(_InAttempt):
    kind: ClassVar[Literal["agent.response"]] = "agent.response"
    output: object = _content()
    """Output of the agent."""


@attrs.frozen(kw_only=True)
class AgentUsage(_InAttempt):
    """Usage of an agent; `cost_usd` is `None` without a known price.

    `zero_tokens` marks an answer that counted none.
    """

    kind: ClassVar[Literal["agent.usage"]] = "agent.usage"
    model: str | None = None
    """Name of the model."""
    provider: str | None = None
    """Name of the provider."""
    agent_name: str | None = None
    """Name of the agent."""
    input_tokens: int = 0
    """Input tokens."""
    output_tokens: int = 0
    """Output tokens."""
    cached_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    requests: int = 0
    """Number of model requests."""
    tool_calls: int = 0
    """Number of tool calls."""
    cost_usd: float | None = None
    """Cost, if a price is known."""
    zero_tokens: bool = attrs.field()
    """Whether the provider reported no tokens."""

    @zero_tokens.default
    def _counted_none(self) -> bool:
        return self.input_tokens + self.output_tokens == 0


@attrs.frozen(kw_only=True)
class ModelStarted(_InAttempt):
    """A model call started; `call_id` pairs the two events of overlapping calls.

    `settings` holds temperature, token limit, penalties, seed and stop sequences of the request.
    """

    kind: ClassVar[Literal["model.started"]] = "model.started"
    call_id: str = ""
    """Id of the model call."""
    model: str
    """Name of the requested model."""
    provider: str | None = None
    """Name of the provider."""
    agent_name: str | None = None
    """Name of the agent."""
    settings: Mapping[str, object] | None = None
    """Settings of the request."""


@attrs.frozen(kw_only=True)
class ModelEnded(_InAttempt):
    kind: ClassVar[Literal["model.ended"]] = "model.ended"
    call_id: str = ""
    """Id of the model call."""
    model: str
    """Name of the requested model."""
    provider: str | None = None
    """Name of the provider."""
    response_model: str | None = None
    """Name of the model that answered."""
    finish_reason: str | None = None
    """Reason of the answer's end."""
    status: StepStatus = "success"
    """Status of the call."""
    error_type: str | None = None
    """Class name of the error."""
    feedback: str | None = None
    """Text of the failure."""
    input_tokens: int = 0
    """Input tokens."""
    output_tokens: int = 0
    """Output tokens."""
    cached_tokens: int = 0
    """Input tokens that the provider read from its cache."""


@attrs.frozen(kw_only=True)
class ToolStarted(_InAttempt):
    kind: ClassVar[Literal["tool.started"]] = "tool.started"
    tool_name: str
    """Name of the tool."""
    tool_call_id: str = ""
    """Id of the call."""
    arguments: object = _content()
    """Arguments of the call."""


@attrs.frozen(kw_only=True)
class ToolEnded(_InAttempt):
    kind: ClassVar[Literal["tool.ended"]] = "tool.ended"
    tool_name: str
    """Name of the tool."""
    tool_call_id: str = ""
    """Id of the call."""
    status: StepStatus = "success"
    """Status of the call."""
    error_type: str | None = None
    """Class name of the error."""
    feedback: str | None = None
    """Text of the failure."""
    result: object = _content()
    """Result of the call."""


@attrs.frozen(kw_only=True)
class RetrievalStarted(_InAttempt):
    """A retrieval started; `source` is the source's name, its collection by default."""

    kind: ClassVar[Literal["retrieval.started"]] = "retrieval.started"
    collection: str
    source: str = ""
    query: str | None = _content()


@attrs.frozen(kw_only=True)
class RetrievalEnded(_InAttempt):
    """A retrieval ended; `found` counts the passages after floor and filters.

    `cached` marks a result from the run's own cache.
    """

    kind: ClassVar[Literal["retrieval.ended"]] = "retrieval.ended"
    collection: str
    source: str = ""
    status: StepStatus = "success"
    error_type: str | None = None
    found: int = 0
    best_score: float | None = None
    cached: bool = False
    feedback: str | None = None
    documents: object = _content()


@attrs.frozen(kw_only=True)
class ContextAssembled(_InAttempt):
    """Context was assembled; `recalled` if in an earlier session."""

    kind: ClassVar[Literal["context.assembled"]] = "context.assembled"
    segments: int = 0
    tokens: int = 0
    dropped: int = 0
    skipped: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Failures of the skipped sources."""
    recalled: bool = False
    text: str | None = _content()


@attrs.frozen(kw_only=True)
class _Aros(_InAttempt):
    """Structured output event; `provider_error` is the error's type name.

    `schema_hash` distinguishes schemas; `raw_text` is the input or the output of the stage.
    """

    stage: ArosStage
    """Stage of the repair."""
    provider_error: str | None = None
    """Error of the provider."""
    schema_hash: str | None = None
    """Hash of the schema."""
    raw_text: str | None = _content()
    """Text of the model."""


@attrs.frozen(kw_only=True)
class ArosRepairStarted(_Aros):
    kind: ClassVar[Literal["aros.repair.started"]] = "aros.repair.started"


@attrs.frozen(kw_only=True)
class ArosRepairSuccess(_Aros):
    """A repair succeeded; `passes` lists the applied repairs."""

    kind: ClassVar[Literal["aros.repair.success"]] = "aros.repair.success"
    passes: tuple[str, ...] | None = _detail()
    """Repairs that were made."""


@attrs.frozen(kw_only=True)
class ArosRepairFailed(_Aros):
    kind: ClassVar[Literal["aros.repair.failed"]] = "aros.repair.failed"
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class ArosFallbackStage(_Aros):
    kind: ClassVar[Literal["aros.fallback.stage"]] = "aros.fallback.stage"
    feedback: str | None = None
    """Reason of the fallback."""


@attrs.frozen(kw_only=True)
class HookFailed(_InRun):
    """A hook failed; `hook` is its name, `hook_kind` its moment (`"pre_step"`…)."""

    kind: ClassVar[Literal["hook.failed"]] = "hook.failed"
    step_name: str = ""
    """Name of the step."""
    hook: str
    """Name of the hook."""
    hook_kind: str
    """Kind of the hook's payload."""
    feedback: str | None = None
    """Text of the failure."""


@attrs.frozen(kw_only=True)
class RetentionDeleted(_InRun):
    """A worker deleted ended runs by the retention settings; `run_id` is empty."""

    kind: ClassVar[Literal["retention.deleted"]] = "retention.deleted"
    runs: int = 0
    """Number of deleted runs."""
    bytes: int = 0
    """Size of the deleted rows."""
    took_s: float = 0.0
    """Seconds of the deletion."""


RunEvent = RunTaken | RunStarted | RunEndedEvent | RunPausedEvent | RunResumed | RunRetried
WaitEvent = RunWaiting | RunWoken | EventSent | EventDelivered | EventRefused
StepEvent = StepStarted | StepEnded | StepRetry | StepFallback | StepUnstoppable
AttemptEvent = AttemptStarted | AttemptEnded
AgentEvent = AgentSystem | AgentInput | AgentResponse | AgentUsage
CallEvent = ModelStarted | ModelEnded | ToolStarted | ToolEnded | RetrievalStarted | RetrievalEnded
FailureEvent = StepRecovered | HandlerFailed | UndoStarted | UndoEnded
ArosEvent = ArosRepairStarted | ArosRepairSuccess | ArosRepairFailed | ArosFallbackStage

GovernanceEvent = BudgetLevelChanged | SelectionChosen | ConfidenceLow | LoopFound | LoopCompacted | AgentSteered
LimitEvent = RateWaited | RateBlocked | BudgetWarned | StepCached

ScheduleEvent = ScheduleFired | ScheduleSkipped | ScheduleFailed

_Beside = ContextAssembled | ArosEvent | HookFailed | GovernanceEvent | RetentionDeleted | ScheduleEvent | LimitEvent
Event = RunEvent | WaitEvent | StepEvent | FailureEvent | AttemptEvent | AgentEvent | CallEvent | _Beside
"""Union of all events that a sink receives."""

EVENT_TYPES: Mapping[EventKind, type[Any]] = {event_type.kind: event_type for event_type in get_args(Event)}
"""Every event by its kind."""
