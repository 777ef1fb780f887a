"""Events as OpenTelemetry spans and metrics (extra `otel`).

Rules:
1. run > step > attempt > model or tool call; nested steps nest by path. The run's span is a child of the span
   that is current where `run.started` (or `run.resumed`) is emitted.
2. Every span ends with a status: success and pause are `OK`, failure and abort are `ERROR`.
3. `run.ended` ends whatever is still open, with an error that says so, and forgets the run.
4. Events of a run that is not open are dropped: it has ended, and its spans with it. But what is done for a run of
   another process, and in its trace, hangs below the span that was open there.
"""

from __future__ import annotations

import importlib
from typing import assert_never

import attrs
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_current_span, get_tracer_provider

from ..._core import events as ev
from ..._core.usage import Usage
from ...errors import DeclarationError
from . import _semantic_conventions as conventions
from ._metrics import Metrics
from ._open_spans import RUN, Key, OpenSpans

_NO_ERROR = {"success": StatusCode.OK, "completed": StatusCode.OK, "paused": StatusCode.OK}


class OtelSink:
    """Turns events into spans and metrics; without providers, the global ones are used.

    Emitting never waits as long as the provider's span processor does not: use a `BatchSpanProcessor`.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        if tracer_provider is None and meter_provider is None:
            _refuse_without_sdk()
        self._tracer = (tracer_provider or get_tracer_provider()).get_tracer("flujo_actors")
        self._metrics = Metrics(meter_provider)
        self._runs: dict[str, OpenSpans] = {}
        self._guests: dict[str, OpenSpans] = {}

    @property
    def open_runs(self) -> int:
        """How many runs have open spans."""
        return len(self._runs)

    def emit(self, event: ev.Event) -> None:
        """Open, end or annotate the span the event is about."""
        self._measure(event)
        match event:
            case ev.RunStarted() | ev.RunResumed():
                self._open_run(event)
            case ev.RunEnded():
                self._end_run(event)
            case _ if spans := self._runs.get(event.run_id) or self._guest(event):
                _trace(spans, event)
                if spans.is_empty:
                    del self._guests[event.run_id]

    def _guest(self, event: ev.Event) -> OpenSpans | None:
        """The spans of a run that is open in another process; `None` if this is not done in the trace of one."""
        spans = self._guests.get(event.run_id)
        if spans is None and isinstance(event, _Beginning) and get_current_span().get_span_context().is_remote:
            spans = self._guests[event.run_id] = OpenSpans(self._tracer)
            spans.tie_clock(event.at)
        return spans

    def _open_run(self, event: ev.RunStarted | ev.RunResumed) -> None:
        if isinstance(event, ev.RunResumed) and (spans := self._runs.get(event.run_id)):
            spans.add_event(RUN, event.kind, event.at, conventions.event_attributes(event))
            return
        if stale := self._runs.pop(event.run_id, None):
            stale.give_up(RUN, event.at)
        self._runs[event.run_id] = spans = OpenSpans(self._tracer)
        spans.open_run(_run_name(event), event.at, _run_attributes(event))

    def _end_run(self, event: ev.RunEnded) -> None:
        if spans := self._runs.pop(event.run_id, None):
            said = conventions.usage_attributes(event.usage) | {"flujo.status": event.status}
            said |= conventions.written({"flujo.output": event.output})
            spans.end(RUN, event.at, _status(event), said)

    def _measure(self, event: ev.Event) -> None:
        match event:
            case ev.RunTaken():
                self._metrics.taken(event)
            case ev.AgentUsage():
                self._metrics.usage(event)
            case ev.ModelEnded():
                self._measure_call(event)
            case ev.ArosRepairStarted() | ev.ArosRepairSuccess() | ev.ArosRepairFailed():
                self._metrics.repair(event)
            case ev.ArosFallbackStage():
                self._metrics.fallback_stage(event)

    def _measure_call(self, event: ev.ModelEnded) -> None:
        spans = self._runs.get(event.run_id) or self._guests.get(event.run_id)
        call = spans.get(("model", event.path, event.call_id)) if spans else None
        if call is not None:
            self._metrics.model_call(event, event.at - call.started_at)


def _refuse_without_sdk() -> None:
    """Global providers come from the SDK, and without it they drop everything they are told."""
    try:
        importlib.import_module("opentelemetry.sdk.trace")
    except ImportError as error:
        raise DeclarationError(
            "OtelSink() has nobody to give its spans to, since the OpenTelemetry SDK is not installed: "
            f"pip install flujo-actors[otel], or pass providers of your own ({error})"
        ) from error


def _run_name(event: ev.RunStarted | ev.RunResumed) -> str:
    return f"run {event.pipeline_name}".strip()


def _run_attributes(event: ev.RunStarted | ev.RunResumed) -> conventions.Attributes:
    run = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": event.pipeline_name}
    run["flujo.run_id"] = event.run_id
    if isinstance(event, ev.RunResumed):
        return conventions.written(run | {"flujo.resumed": True, "flujo.answer": event.answer})
    return conventions.written(run | {"flujo.input": event.input})


def _trace(spans: OpenSpans, event: ev.Event) -> None:
    """What an event inside a run does to its spans."""
    match event:
        case ev.StepStarted() | ev.AttemptStarted() | ev.ModelStarted() | ev.ToolStarted() | ev.RetrievalStarted():
            _open(spans, event)
        case ev.StepEnded() | ev.AttemptEnded() | ev.ModelEnded() | ev.ToolEnded() | ev.RetrievalEnded():
            _end(spans, event)
        case ev.AgentSystem() | ev.AgentInput() | ev.AgentResponse() | ev.AgentUsage():
            _annotate(spans, event)
        case (
            ev.RunTaken()
            | ev.RunPaused()
            | ev.StepRetry()
            | ev.StepFallback()
            | ev.StepRecovered()
            | ev.HandlerFailed()
            | ev.UndoStarted()
            | ev.UndoEnded()
            | ev.StepUnstoppable()
            | ev.ArosRepairStarted()
            | ev.ArosRepairSuccess()
            | ev.ArosRepairFailed()
            | ev.ArosFallbackStage()
            | ev.ContextAssembled()
            | ev.HookFailed()
            | ev.BudgetLevelChanged()
            | ev.SelectionChosen()
            | ev.ConfidenceLow()
            | ev.LoopFound()
        ):
            _note(spans, event)
        case ev.RunStarted() | ev.RunResumed() | ev.RunEnded():
            raise ValueError(f"{event.kind} opens or ends the spans of a run, it is not inside one")
        case _:
            assert_never(event)


_Beginning = ev.StepStarted | ev.AttemptStarted | ev.ModelStarted | ev.ToolStarted | ev.RetrievalStarted
_Ending = ev.StepEnded | ev.AttemptEnded | ev.ModelEnded | ev.ToolEnded | ev.RetrievalEnded


def _key(event: _Beginning | _Ending) -> Key:
    match event:
        case ev.StepStarted() | ev.StepEnded():
            return "step", event.path, ""
        case ev.AttemptStarted() | ev.AttemptEnded():
            return "attempt", event.path, ""
        case ev.ModelStarted() | ev.ModelEnded():
            return "model", event.path, event.call_id
        case ev.ToolStarted() | ev.ToolEnded():
            return "tool", event.path, event.tool_call_id or event.tool_name
        case ev.RetrievalStarted() | ev.RetrievalEnded():
            return "retrieval", event.path, event.source or event.collection


def _open(spans: OpenSpans, event: _Beginning) -> None:
    where: conventions.Attributes = {"flujo.path": event.path, "flujo.step": event.step_name}
    key = _key(event)
    match event:
        case ev.StepStarted():
            said = conventions.written({"flujo.input": event.input})
            spans.open(key, f"step {event.step_name}", event.at, where | said)
        case ev.AttemptStarted():
            spans.open(key, f"attempt {event.attempt}", event.at, where | {"flujo.attempt": event.attempt})
        case ev.ModelStarted():
            said = where | conventions.model_attributes(event)
            spans.open(key, f"chat {event.model}", event.at, said, SpanKind.CLIENT)
        case ev.ToolStarted():
            said = where | conventions.tool_attributes(event)
            spans.open(key, f"execute_tool {event.tool_name}", event.at, said)
        case ev.RetrievalStarted():
            said = where | conventions.retrieval_attributes(event)
            spans.open(key, f"retrieval {event.collection}", event.at, said, SpanKind.CLIENT)


def _end(spans: OpenSpans, event: _Ending) -> None:
    said: conventions.Attributes = {"flujo.status": event.status}
    match event:
        case ev.StepEnded():
            said |= conventions.usage_attributes(event.usage) | {"flujo.attempts": event.attempts}
            said |= conventions.written({"flujo.output": event.output})
        case ev.ModelEnded():
            said |= conventions.model_result_attributes(event)
        case ev.ToolEnded():
            said |= conventions.tool_result_attributes(event)
        case ev.RetrievalEnded():
            said |= conventions.retrieval_result_attributes(event)
    spans.end(_key(event), event.at, _status(event), said)


def _annotate(spans: OpenSpans, event: ev.AgentEvent) -> None:
    """Agents speak about the attempt that called them; its usage adds up over repairs."""
    attempt = spans.get(("attempt", event.path, "")) or spans.nearest(("attempt", event.path, ""))
    if attempt is None:
        return
    match event:
        case ev.AgentUsage():
            attempt.usage += _usage(event)
            said = conventions.agent_attributes(event) | conventions.usage_attributes(attempt.usage)
            attempt.span.set_attributes(said)
        case ev.AgentSystem():
            attempt.span.set_attributes(conventions.system_attributes(event.text))
    spans.add_event(attempt.key, event.kind, event.at, conventions.event_attributes(event))


def _usage(event: ev.AgentUsage) -> Usage:
    told = attrs.fields_dict(Usage).keys() & attrs.fields_dict(ev.AgentUsage).keys()
    return Usage(**{name: getattr(event, name) for name in told} | {"cost_usd": event.cost_usd or 0.0})


def _note(spans: OpenSpans, event: ev.Event) -> None:
    place: Key = ("attempt", event.path, "") if event.path else RUN
    spans.add_event(place, event.kind, event.at, conventions.event_attributes(event))


def _status(event: _Ending | ev.RunEnded) -> Status:
    code = _NO_ERROR.get(event.status, StatusCode.ERROR)
    return Status(code, None if code is StatusCode.OK else event.feedback or event.status)
