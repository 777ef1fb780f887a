"""What happens in a run, as typed events: one vocabulary for every sink.

Rules:
1. Events are frozen values. The emitter gives `at`: seconds, on one clock per run. No clock is read here.
2. `run_id` and `path` say where: the step's path in the tree, `""` for the run itself.
3. A stretch of a run opens with `run.started` or `run.resumed` and closes with `run.ended`; likewise
   `step.*`, `attempt.*`, `model.*`, `tool.*` and `retrieval.*` come in pairs, whatever the ending was.
4. A field that may hold what users or models wrote (prompts, inputs, outputs) is declared with
   `_content()`, one that only verbose telemetry shows with `_detail()`; it is decided nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import attrs

from .event_kinds import EventKind
from .event_places import CONTENT as _CONTENT
from .event_places import DETAIL as _DETAIL
from .event_places import InAttempt as _InAttempt
from .event_places import InRun as _InRun
from .event_places import InStep as _InStep
from .event_places import content as _content
from .event_places import detail as _detail
from .governance_events import BudgetLevelChanged as BudgetLevelChanged
from .governance_events import ConfidenceLow as ConfidenceLow
from .governance_events import LoopFound as LoopFound
from .governance_events import SelectionChosen as SelectionChosen
from .outcomes import RunStatus
from .usage import NO_USAGE, Usage

StepStatus = Literal["success", "failure", "paused", "aborted"]
"""How a step, attempt, model call or tool call ended."""
ArosStage = Literal["deterministic", "llm", "retry", "simplified", "extractor", "degrade"]
"""Which repair or fallback stage a structured step is in."""


def content_fields(event_type: type[Any]) -> tuple[str, ...]:
    """The names of the content fields of an event class."""
    return tuple(field.name for field in attrs.fields(event_type) if field.metadata.get(_CONTENT))


def detail_fields(event_type: type[Any]) -> tuple[str, ...]:
    """The names of the fields of an event class that only verbose telemetry shows."""
    return tuple(field.name for field in attrs.fields(event_type) if field.metadata.get(_DETAIL))


def facts(event: Event) -> dict[str, object]:
    """The event as a flat mapping: `kind` first, then every field that says something."""
    said: dict[str, object] = {"kind": event.kind}
    for name in attrs.fields_dict(type(event)):
        said |= _fact(name, getattr(event, name))
    return said


def _fact(name: str, value: object) -> dict[str, object]:
    match value:
        case None:
            return {}
        case str() if not value:
            return {}
        case Usage():
            return {part: number for part, number in attrs.asdict(value).items() if number}
        case _:
            return {name: value}


@attrs.frozen(kw_only=True)
class RunTaken(_InRun):
    """A worker begins, or goes on with, a run or a remote step that waited in a queue; the run's own events follow."""

    kind: ClassVar[Literal["run.taken"]] = "run.taken"
    pipeline_name: str = ""
    queue: str = ""
    waited_s: float = 0.0


@attrs.frozen(kw_only=True)
class RunStarted(_InRun):
    kind: ClassVar[Literal["run.started"]] = "run.started"
    pipeline_name: str = ""
    input: object = _content()


@attrs.frozen(kw_only=True)
class RunEnded(_InRun):
    kind: ClassVar[Literal["run.ended"]] = "run.ended"
    status: RunStatus
    feedback: str | None = None
    usage: Usage = NO_USAGE
    output: object = _content()


@attrs.frozen(kw_only=True)
class RunPaused(_InRun):
    """`path` and `step_name` are those of the step that asks; `run.ended` with `paused` follows."""

    kind: ClassVar[Literal["run.paused"]] = "run.paused"
    step_name: str = ""
    message: str | None = _content()


@attrs.frozen(kw_only=True)
class RunResumed(_InRun):
    """`answer` is what `resume` was given, if it was given anything."""

    kind: ClassVar[Literal["run.resumed"]] = "run.resumed"
    pipeline_name: str = ""
    answer: object = _content()


@attrs.frozen(kw_only=True)
class StepStarted(_InStep):
    kind: ClassVar[Literal["step.started"]] = "step.started"
    input: object = _content()


@attrs.frozen(kw_only=True)
class StepEnded(_InStep):
    """`usage` is that of all attempts of the step, nested steps included."""

    kind: ClassVar[Literal["step.ended"]] = "step.ended"
    status: StepStatus
    feedback: str | None = None
    attempts: int = 0
    usage: Usage = NO_USAGE
    output: object = _content()


@attrs.frozen(kw_only=True)
class StepRetry(_InAttempt):
    """`attempt` is the one that failed; the next begins after `delay_s`."""

    kind: ClassVar[Literal["step.retry"]] = "step.retry"
    delay_s: float = 0.0
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class StepFallback(_InStep):
    kind: ClassVar[Literal["step.fallback"]] = "step.fallback"
    fallback_name: str
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class StepRecovered(_InStep):
    """A handler has made a success of the step's failure."""

    kind: ClassVar[Literal["step.recovered"]] = "step.recovered"
    handler_name: str = ""


@attrs.frozen(kw_only=True)
class HandlerFailed(_InStep):
    """`path` and `step_name` are those of the step whose failure the handler was told of."""

    kind: ClassVar[Literal["handler.failed"]] = "handler.failed"
    handler_name: str
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class UndoStarted(_InStep):
    """What an attempt of this step did is about to be undone: `steps` compensations, because of `feedback`."""

    kind: ClassVar[Literal["undo.started"]] = "undo.started"
    steps: int = 0
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class UndoEnded(_InStep):
    """The compensation of this step has ended."""

    kind: ClassVar[Literal["undo.ended"]] = "undo.ended"
    status: StepStatus
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class StepUnstoppable(_InStep):
    """A thread or a step goes on although it was canceled."""

    kind: ClassVar[Literal["step.unstoppable"]] = "step.unstoppable"
    what: Literal["thread", "step"] = "step"
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class AttemptStarted(_InAttempt):
    kind: ClassVar[Literal["attempt.started"]] = "attempt.started"


@attrs.frozen(kw_only=True)
class AttemptEnded(_InAttempt):
    kind: ClassVar[Literal["attempt.ended"]] = "attempt.ended"
    status: StepStatus
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class AgentSystem(_InAttempt):
    """`text` is the resolved system prompt, as the model gets it."""

    kind: ClassVar[Literal["agent.system"]] = "agent.system"
    text: str | None = _content()


@attrs.frozen(kw_only=True)
class AgentInput(_InAttempt):
    kind: ClassVar[Literal["agent.input"]] = "agent.input"
    data: object = _content()


@attrs.frozen(kw_only=True)
class AgentResponse(_InAttempt):
    kind: ClassVar[Literal["agent.response"]] = "agent.response"
    output: object = _content()


@attrs.frozen(kw_only=True)
class AgentUsage(_InAttempt):
    """`cost_usd` is `None` where no price is known; `zero_tokens` marks an answer that counted none."""

    kind: ClassVar[Literal["agent.usage"]] = "agent.usage"
    model: str | None = None
    provider: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    tool_calls: int = 0
    cost_usd: float | None = None
    zero_tokens: bool = attrs.field()

    @zero_tokens.default
    def _counted_none(self) -> bool:
        return self.input_tokens + self.output_tokens == 0


@attrs.frozen(kw_only=True)
class ModelStarted(_InAttempt):
    """`call_id` pairs the two events of a call; it is needed only where calls of one step overlap."""

    kind: ClassVar[Literal["model.started"]] = "model.started"
    call_id: str = ""
    model: str
    provider: str | None = None


@attrs.frozen(kw_only=True)
class ModelEnded(_InAttempt):
    kind: ClassVar[Literal["model.ended"]] = "model.ended"
    call_id: str = ""
    model: str
    provider: str | None = None
    response_model: str | None = None
    finish_reason: str | None = None
    status: StepStatus = "success"
    error_type: str | None = None
    feedback: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@attrs.frozen(kw_only=True)
class ToolStarted(_InAttempt):
    kind: ClassVar[Literal["tool.started"]] = "tool.started"
    tool_name: str
    tool_call_id: str = ""
    arguments: object = _content()


@attrs.frozen(kw_only=True)
class ToolEnded(_InAttempt):
    kind: ClassVar[Literal["tool.ended"]] = "tool.ended"
    tool_name: str
    tool_call_id: str = ""
    status: StepStatus = "success"
    feedback: str | None = None
    result: object = _content()


@attrs.frozen(kw_only=True)
class RetrievalStarted(_InAttempt):
    """`source` is the name of the source, which is its collection's unless it was given another."""

    kind: ClassVar[Literal["retrieval.started"]] = "retrieval.started"
    collection: str
    source: str = ""
    query: str | None = _content()


@attrs.frozen(kw_only=True)
class RetrievalEnded(_InAttempt):
    """`found` counts what passed the floor and every filter; `cached` says that the run had searched for it before."""

    kind: ClassVar[Literal["retrieval.ended"]] = "retrieval.ended"
    collection: str
    source: str = ""
    status: StepStatus = "success"
    found: int = 0
    best_score: float | None = None
    cached: bool = False
    feedback: str | None = None
    documents: object = _content()


@attrs.frozen(kw_only=True)
class ContextAssembled(_InAttempt):
    """`recalled` says that an earlier part of the run had assembled it; nothing was searched for again."""

    kind: ClassVar[Literal["context.assembled"]] = "context.assembled"
    segments: int = 0
    tokens: int = 0
    dropped: int = 0
    skipped: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why each of the skipped sources failed."""
    recalled: bool = False
    text: str | None = _content()


@attrs.frozen(kw_only=True)
class _Aros(_InAttempt):
    """`provider_error` is the error's type name; `schema_hash` tells schemas apart, not what they say; `raw_text` is
    what the stage began with, or came to."""

    stage: ArosStage
    provider_error: str | None = None
    schema_hash: str | None = None
    raw_text: str | None = _content()


@attrs.frozen(kw_only=True)
class ArosRepairStarted(_Aros):
    kind: ClassVar[Literal["aros.repair.started"]] = "aros.repair.started"


@attrs.frozen(kw_only=True)
class ArosRepairSuccess(_Aros):
    """`passes` lists what the repair did to the text."""

    kind: ClassVar[Literal["aros.repair.success"]] = "aros.repair.success"
    passes: tuple[str, ...] | None = _detail()


@attrs.frozen(kw_only=True)
class ArosRepairFailed(_Aros):
    kind: ClassVar[Literal["aros.repair.failed"]] = "aros.repair.failed"
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class ArosFallbackStage(_Aros):
    kind: ClassVar[Literal["aros.fallback.stage"]] = "aros.fallback.stage"
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class HookFailed(_InRun):
    """`hook` is the hook's name, `hook_kind` the moment it was called at (`"pre_step"`…)."""

    kind: ClassVar[Literal["hook.failed"]] = "hook.failed"
    step_name: str = ""
    hook: str
    hook_kind: str
    feedback: str | None = None


RunEvent = RunTaken | RunStarted | RunEnded | RunPaused | RunResumed
StepEvent = StepStarted | StepEnded | StepRetry | StepFallback | StepUnstoppable
AttemptEvent = AttemptStarted | AttemptEnded
AgentEvent = AgentSystem | AgentInput | AgentResponse | AgentUsage
CallEvent = ModelStarted | ModelEnded | ToolStarted | ToolEnded | RetrievalStarted | RetrievalEnded
FailureEvent = StepRecovered | HandlerFailed | UndoStarted | UndoEnded
ArosEvent = ArosRepairStarted | ArosRepairSuccess | ArosRepairFailed | ArosFallbackStage

GovernanceEvent = BudgetLevelChanged | SelectionChosen | ConfidenceLow | LoopFound

_Beside = ContextAssembled | ArosEvent | HookFailed | GovernanceEvent
Event = RunEvent | StepEvent | FailureEvent | AttemptEvent | AgentEvent | CallEvent | _Beside
"""Everything a sink can be told."""

EVENT_TYPES: Mapping[EventKind, type[Any]] = {event_type.kind: event_type for event_type in get_args(Event)}
"""Every event by its kind."""
