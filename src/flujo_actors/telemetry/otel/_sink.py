"""Events as OpenTelemetry spans and metrics (extra `otel`).

Rules:
1. run > step > attempt > model or tool call; nested steps nest by path. The run's span is a child of the span
   that is current where `run.started` (or `run.resumed`) is emitted.
2. Every span ends with a status: success and pause are `OK`, failure and abort are `ERROR`.
3. `run.ended` ends every open span, with an error that states this, and forgets the run.
4. Events of a run that is not open are dropped: it has ended, and its spans with it. But work for a run of
   another process, in its trace, becomes a child of the span open there.

Sections:

- Counts and durations for OpenTelemetry meters.
- Open spans of one run.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol, TypeAlias, assert_never

import attrs
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
)
from sniffio import AsyncLibraryNotFoundError, current_async_library

from ..._core import telemetry_events as ev
from ..._core.labels import NO_LABELS, TRACED_LABELS
from ..._core.step_paths import StepPath, parent_of
from ..._core.telemetry_events import (
    AgentUsage,
    ArosFallbackStage,
    ArosRepairFailed,
    ArosRepairStarted,
    ArosRepairSuccess,
    ModelEnded,
    RateWaited,
    RetentionDeleted,
    RunTaken,
    RunWoken,
    ScheduleFired,
)
from ..._core.usage import NO_USAGE, Usage
from ...errors import DeclarationError
from . import _semantic_conventions as conventions
from ._semantic_conventions import Attributes, provider_attributes, written


class GaugeValues(Protocol):
    """Numbers of a store by queue and state."""

    @property
    def depth(self) -> Mapping[str, int]: ...
    @property
    def oldest_s(self) -> Mapping[str, float]: ...
    @property
    def runs(self) -> Mapping[str, int]: ...
    @property
    def workers(self) -> Mapping[str, int]: ...


# --- Counts and durations for OpenTelemetry meters ----------------------------------------------------------------


_Repair = ArosRepairStarted | ArosRepairSuccess | ArosRepairFailed

# Bounds of the GenAI conventions; with those of the SDK, each call below 5 s is in one bucket.
_TOKENS = [float(4**power) for power in range(14)]
_SECONDS = [0.01 * 2**power for power in range(14)]


_GAUGES = {
    "queue.depth": ("{run}", "Runs that wait for a worker."),
    "queue.oldest": ("s", "Waiting time of the oldest of them."),
    "runs": ("{run}", "Runs by state."),
    "workers": ("{worker}", "Live workers."),
}


class Metrics:
    """Instruments: the two of the GenAI conventions, and those of structured output."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = (provider or get_meter_provider()).get_meter("flujo_actors")
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Length of a call.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._cost = meter.create_counter("flujo.cost", "{USD}", "Dollars spent.")
        self._waits = meter.create_histogram(
            "flujo.queue.wait",
            "s",
            "Time that runs waited for a worker.",
            explicit_bucket_boundaries_advisory=[*_SECONDS, 163.84, 327.68, 655.36, 3600.0],
        )
        self._ended = meter.create_counter("flujo.runs.ended", "{run}", "Runs that ended.")
        self._rate_waits = meter.create_histogram(
            "flujo.rate.wait",
            "s",
            "Time that requests waited for a rate.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._lateness = meter.create_histogram(
            "flujo.schedule.late", "s", "Delay of a schedule's run.", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._late = meter.create_histogram(
            "flujo.wake.late",
            "s",
            "Time from the end of a wait to the resumption of its run.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._gauges = {name: meter.create_gauge(f"flujo.{name}", unit, text) for name, (unit, text) in _GAUGES.items()}
        self._measured: dict[str, set[str]] = {name: set() for name in _GAUGES}
        self._repairs = meter.create_counter("flujo.aros.repair", "{repair}", "Repairs of structured output.")
        self._deleted = meter.create_counter("flujo.retention.deleted", "{run}", "Runs deleted by retention.")
        self._stages = meter.create_counter("flujo.aros.fallback.stage", "{stage}", "Fallback stages entered.")

    def gauges(self, numbers: GaugeValues) -> None:
        """Write the store's metrics; a removed queue is 0."""
        series = {"queue.depth": numbers.depth, "queue.oldest": numbers.oldest_s}
        series |= {"runs": numbers.runs, "workers": numbers.workers}
        for name, values in series.items():
            tag = "state" if name == "runs" else "queue"
            for each in self._measured[name] - values.keys():
                self._gauges[name].set(0, {tag: each})
            for each, value in values.items():
                self._gauges[name].set(value, {tag: each})
            self._measured[name] |= values.keys()

    def record_wait(self, event: RunTaken, labels: Attributes) -> None:
        """Note how long a run waited for a worker."""
        self._waits.record(event.waited_s, written({"flujo.queue": event.queue}) | labels)

    def deleted(self, event: RetentionDeleted) -> None:
        """Count runs that retention deleted."""
        self._deleted.add(event.runs)

    def ended(self, event: ev.RunEndedEvent, pipeline: str, labels: Attributes) -> None:
        """Count a run that ended, neither paused nor asleep."""
        if event.status not in ("paused", "sleeping"):
            self._ended.add(1, written({"pipeline": pipeline, "status": event.status}) | labels)

    def rate_waited(self, event: RateWaited) -> None:
        """Note how long a request waited for its rate limit."""
        self._rate_waits.record(event.wait_s, written({"flujo.rate": event.name}))

    def fired(self, event: ScheduleFired) -> None:
        """Note how late the run of an instant was created."""
        self._lateness.record(max(0.0, event.late_s), written({"flujo.schedule": event.schedule}))

    def woken(self, event: RunWoken) -> None:
        """Note how late a run resumed after its wait."""
        self._late.record(event.late_s, written({"flujo.wait": event.wait_kind}))

    def usage(self, event: AgentUsage, labels: Attributes) -> None:
        """Count tokens and dollars."""
        asked = _request_attributes(event, "invoke_agent") | labels
        if event.requests:  # after its last request an agent may only call tools
            self._tokens.record(event.input_tokens, asked | {"gen_ai.token.type": "input"})
            self._tokens.record(event.output_tokens, asked | {"gen_ai.token.type": "output"})
        if event.cost_usd:
            self._cost.add(event.cost_usd, asked)

    def model_call(self, event: ModelEnded, duration_s: float, labels: Attributes) -> None:
        """Note how long a model call took."""
        self._duration.record(
            duration_s, _request_attributes(event, "chat") | written({"error.type": event.error_type}) | labels
        )

    def repair(self, event: _Repair, labels: Attributes) -> None:
        """Count a repair that began, succeeded or failed."""
        ending = event.kind.rpartition(".")[2]
        self._repairs.add(1, _tags(event) | {"flujo.event": ending} | labels)

    def fallback_stage(self, event: ArosFallbackStage, labels: Attributes) -> None:
        """Count a fallback stage."""
        self._stages.add(1, _tags(event) | labels)


def _request_attributes(event: AgentUsage | ModelEnded, operation: str) -> Attributes:
    model = written({"gen_ai.operation.name": operation, "gen_ai.request.model": event.model})
    return model | provider_attributes(event.provider)


def _tags(event: _Repair | ArosFallbackStage) -> Attributes:
    return written(
        {
            "flujo.stage": event.stage,
            "flujo.provider_error": event.provider_error,
            "flujo.schema_hash": event.schema_hash,
        }
    )


# --- Open spans of one run ----------------------------------------------------------------------------------------
# Rules:
# 1. The parent of a span is the nearest open one: a call belongs to its attempt, an attempt to its step, a step to
#    the attempt (or step) of the longest path that contains its own, and otherwise to the run.
# 2. Ending a span first ends its open descendants, with an error that states this.
# 3. Ending a span that is not open does nothing: it ended with its parent.
# 4. A run's clock may start anywhere; it is tied to the time of day when the run span opens.
# 5. A span opened inside a run is the current span of its task until it ends, so that the spans of user code,
#    and of its clients, are its children. Every step is a task; its threads and coroutines have its contextvars.
# 6. A span may be ended by another task than its own, as when a step is cancelled: then the other's context is
#    unchanged.
# 7. The run of a remote step is open in another process: a span without a local parent is a child of the current
#    span.


Level: TypeAlias = Literal["run", "step", "attempt", "model", "tool", "retrieval"]
Key: TypeAlias = tuple[Level, str, str]
"""Level, path, and the call's id where there can be several."""

RUN: Key = ("run", "", "")


@attrs.define(eq=False)
class OpenSpan:
    """Span with its children in order of opening."""

    key: Key
    span: Span
    started_at: float
    outside: Context
    """Previously current context."""
    above: OpenSpan | None = None
    below: dict[Key, OpenSpan] = attrs.field(factory=dict)
    usage: Usage = NO_USAGE


@attrs.define(eq=False)
class OpenSpans:
    """All that is open in one run."""

    _tracer: Tracer
    pipeline: str = ""
    labels: Mapping[str, str] = NO_LABELS
    _clock_offset_ns: int = attrs.field(init=False, default=0)
    _open: dict[Key, OpenSpan] = attrs.field(init=False, factory=dict)
    _current: str = attrs.field(init=False, factory=lambda: context.create_key("flujo_actors"))
    """Context key of a task's open span."""

    def tie_clock(self, at: float) -> None:
        """Tie the run's clock to the present time."""
        self._clock_offset_ns = time.time_ns() - round(at * 1e9)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is open."""
        return not self._open

    def open_run(self, name: str, at: float, attributes: Attributes) -> None:
        """Open the run's span below the current span at its start."""
        self.tie_clock(at)
        outside = context.get_current()
        span = self._tracer.start_span(name, outside, attributes=attributes, start_time=self._time(at))
        self._open[RUN] = OpenSpan(RUN, span, at, outside)

    def open(self, key: Key, name: str, at: float, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """Open a span, replacing an open one of the same key."""
        self.give_up(key, at)
        above, outside = self.nearest(key), context.get_current()
        place = outside if above is None else trace.set_span_in_context(above.span, outside)
        span = self._tracer.start_span(name, place, kind, attributes, start_time=self._time(at))
        self._open[key] = opened = OpenSpan(key, span, at, outside, above)
        if above is not None:
            above.below[key] = opened
        self._make_current(opened)

    def get(self, key: Key) -> OpenSpan | None:
        """Return the open span of that key."""
        return self._open.get(key)

    def nearest(self, key: Key) -> OpenSpan | None:
        """Return the local open parent span of a key, or None."""
        return next((self._open[place] for place in _places_above(key) if place in self._open), None)

    def end(self, key: Key, at: float, status: Status, attributes: Attributes) -> None:
        """End the span after its open descendants."""
        ending = self._open.get(key)
        if ending is None:
            return
        for left in reversed(list(_descendants(ending))):
            self._end(left, at, Status(StatusCode.ERROR, f"still open when its {key[0]} ended"), {})
        self._end(ending, at, status, attributes)

    def give_up(self, key: Key, at: float) -> None:
        """End an abandoned span."""
        self.end(key, at, Status(StatusCode.ERROR, "never ended, and begun again"), {})

    def add_event(self, key: Key, name: str, at: float, attributes: Attributes) -> None:
        """Note an event on the nearest open span."""
        span = self._open.get(key) or self.nearest(key)
        if span is not None:
            span.span.add_event(name, attributes, timestamp=self._time(at))

    def _end(self, ending: OpenSpan, at: float, status: Status, attributes: Attributes) -> None:
        del self._open[ending.key]
        if ending.above is not None:
            del ending.above.below[ending.key]
        ending.span.set_attributes(attributes)
        ending.span.set_status(status)
        ending.span.end(self._time(at))
        if _is_within(context.get_value(self._current), ending):
            context.attach(ending.outside)

    def _make_current(self, opened: OpenSpan) -> None:
        # Nothing is detached later: the previous context is attached again, in the span's own task only.
        if not _in_a_task():
            return  # a thread's context outlives everything, and an abandoned span would stay current in it
        place = trace.set_span_in_context(opened.span, opened.outside)
        context.attach(context.set_value(self._current, opened, place))

    def _time(self, at: float) -> int:
        return self._clock_offset_ns + round(at * 1e9)


def _in_a_task() -> bool:
    try:
        return bool(current_async_library())
    except AsyncLibraryNotFoundError:
        return False


def _is_within(current: object, ending: OpenSpan) -> bool:
    """Return whether the current span is that span or its descendant."""
    while isinstance(current, OpenSpan) and current is not ending:
        current = current.above
    return current is ending


def _places_above(key: Key) -> Iterator[Key]:
    level, path, _ = key
    if level in ("model", "tool", "retrieval"):
        yield "attempt", path, ""
    if level in ("model", "tool", "retrieval", "attempt"):
        yield "step", path, ""
    while path:
        path = parent_of(StepPath(path))
        yield "attempt", path, ""
        yield "step", path, ""
    yield RUN


def _descendants(root: OpenSpan) -> Iterator[OpenSpan]:
    waiting = list(root.below.values())
    while waiting:
        found = waiting.pop()
        yield found
        waiting += found.below.values()


# --- Events as OpenTelemetry spans and metrics (extra `otel`) -----------------------------------------------------


_NO_ERROR = {"success": StatusCode.OK, "completed": StatusCode.OK, "paused": StatusCode.OK, "sleeping": StatusCode.OK}


class OtelSink:
    """Convert events to spans and metrics; the global providers are the default.

    Emitting never waits as long as the provider's span processor does not: use a `BatchSpanProcessor`.

    Args:
        tracer_provider: provider of spans.
        meter_provider: provider of metrics.

    Example:
        ```python
        from opentelemetry.sdk.trace import TracerProvider

        sink = OtelSink(TracerProvider())
        flujo = Flujo(Step("greet", str.upper), settings={"telemetry": {"sinks": [sink]}})
        assert flujo.run("ada").output == "ADA"
        ```
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
        self._metric_labels: frozenset[str] = frozenset()

    def label_metrics(self, names: Iterable[str]) -> None:
        """Add these labels of runs to metrics, from the setting `telemetry.metric_labels`."""
        self._metric_labels |= frozenset(names)

    @property
    def open_runs(self) -> int:
        """Return the number of runs have open spans."""
        return len(self._runs)

    def measure(self, gauges: GaugeValues) -> None:
        """Write the store's metrics, reported by one worker at a time."""
        self._metrics.gauges(gauges)

    def span_of(self, run_id: str) -> str | None:
        """Return the open span of a run as W3C `traceparent`, or None."""
        run = self._runs[run_id].get(RUN) if run_id in self._runs else None
        return None if run is None else conventions.traceparent(run.span.get_span_context())

    def emit(self, event: ev.Event) -> None:
        """Open, end or annotate the span the event is about."""
        self._measure(event)
        match event:
            case ev.RunStarted() | ev.RunResumed():
                self._open_run(event)
            case ev.RunEndedEvent():
                self._end_run(event)
            case _ if spans := self._runs.get(event.run_id) or self._guest(event):
                if isinstance(event, ev.RunWoken) and (run := spans.get(RUN)):
                    conventions.link(run.span, event.span)
                _trace(spans, event)
                if spans.is_empty:
                    del self._guests[event.run_id]

    def _guest(self, event: ev.Event) -> OpenSpans | None:
        """Return a remote run's spans, or None outside its trace."""
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
        self._runs[event.run_id] = spans = OpenSpans(self._tracer, event.pipeline_name, event.labels)
        spans.open_run(_run_name(event), event.at, _run_attributes(event))

    def _end_run(self, event: ev.RunEndedEvent) -> None:
        if spans := self._runs.pop(event.run_id, None):
            self._metrics.ended(event, spans.pipeline, self._labels(event.labels))
            attributes = conventions.usage_attributes(event.usage) | {"flujo.status": event.status, **_error(event)}
            attributes |= conventions.written({"flujo.output": event.output})
            spans.end(RUN, event.at, _status(event), attributes)

    def _labels(self, labels: Mapping[str, str]) -> conventions.Attributes:
        """Return the labels that metrics carry."""
        return conventions.label_attributes({name: labels[name] for name in self._metric_labels & labels.keys()})

    def _labels_of_run(self, run_id: str) -> conventions.Attributes:
        """Return a run's metric labels; a remote step has its caller's."""
        spans = self._runs.get(run_id)
        carried = context.get_value(TRACED_LABELS) if spans is None else spans.labels
        return self._labels(carried) if self._metric_labels and isinstance(carried, Mapping) else {}

    def _measure(self, event: ev.Event) -> None:
        match event:
            case ev.RunTaken():
                self._metrics.record_wait(event, self._labels(event.labels))
            case ev.RunWoken():
                self._metrics.woken(event)
            case ev.RetentionDeleted():
                self._metrics.deleted(event)
            case ev.RateWaited():
                self._metrics.rate_waited(event)
            case ev.ScheduleFired():
                self._metrics.fired(event)
            case ev.AgentUsage():
                self._metrics.usage(event, self._labels_of_run(event.run_id))
            case ev.ModelEnded():
                self._measure_call(event)
            case ev.ArosRepairStarted() | ev.ArosRepairSuccess() | ev.ArosRepairFailed():
                self._metrics.repair(event, self._labels_of_run(event.run_id))
            case ev.ArosFallbackStage():
                self._metrics.fallback_stage(event, self._labels_of_run(event.run_id))

    def _measure_call(self, event: ev.ModelEnded) -> None:
        spans = self._runs.get(event.run_id) or self._guests.get(event.run_id)
        call = spans.get(("model", event.path, event.call_id)) if spans else None
        if call is not None:
            self._metrics.model_call(event, event.at - call.started_at, self._labels_of_run(event.run_id))


def _refuse_without_sdk() -> None:
    """Refuse global providers without the SDK: they drop every event."""
    try:
        importlib.import_module("opentelemetry.sdk.trace")
    except ImportError as error:
        raise DeclarationError(
            "OtelSink() has no span exporter: the OpenTelemetry SDK is not installed: "
            f"pip install 'flujo-actors[otel]', or pass providers of your own ({error})"
        ) from error


def _run_name(event: ev.RunStarted | ev.RunResumed) -> str:
    return f"run {event.pipeline_name}".strip()


def _run_attributes(event: ev.RunStarted | ev.RunResumed) -> conventions.Attributes:
    run: dict[str, object] = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": event.pipeline_name,
    }
    run |= {"flujo.run_id": event.run_id, **conventions.label_attributes(event.labels)}
    if isinstance(event, ev.RunResumed):
        return conventions.written(run | {"flujo.resumed": True, "flujo.answer": event.answer})
    return conventions.written(run | {"flujo.input": event.input})


def _trace(spans: OpenSpans, event: ev.Event) -> None:
    """Apply an event inside a run to its spans."""
    match event:
        case ev.StepStarted() | ev.AttemptStarted() | ev.ModelStarted() | ev.ToolStarted() | ev.RetrievalStarted():
            _open(spans, event)
        case ev.StepEnded() | ev.AttemptEnded() | ev.ModelEnded() | ev.ToolEnded() | ev.RetrievalEnded():
            _end(spans, event)
        case ev.AgentSystem() | ev.AgentInput() | ev.AgentResponse() | ev.AgentUsage():
            _annotate(spans, event)
        case (
            ev.RunTaken()
            | ev.RunPausedEvent()
            | ev.RunRetried()
            | ev.RunWaiting()
            | ev.RunWoken()
            | ev.EventSent()
            | ev.EventDelivered()
            | ev.EventRefused()
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
            | ev.RetentionDeleted()
            | ev.BudgetLevelChanged()
            | ev.SelectionChosen()
            | ev.ConfidenceLow()
            | ev.LoopFound()
            | ev.LoopCompacted()
            | ev.RateWaited()
            | ev.RateBlocked()
            | ev.BudgetWarned()
            | ev.StepCached()
            | ev.AgentSteered()
        ):
            _note(spans, event)
        case ev.ScheduleFired() | ev.ScheduleSkipped() | ev.ScheduleFailed():
            pass  # events of a worker, outside of every run
        case ev.RunStarted() | ev.RunResumed() | ev.RunEndedEvent():
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
            attributes = conventions.written({"flujo.input": event.input})
            spans.open(key, f"step {event.step_name}", event.at, where | attributes)
        case ev.AttemptStarted():
            spans.open(key, f"attempt {event.attempt}", event.at, where | {"flujo.attempt": event.attempt})
        case ev.ModelStarted():
            attributes = where | conventions.model_attributes(event)
            spans.open(key, f"chat {event.model}", event.at, attributes, SpanKind.CLIENT)
        case ev.ToolStarted():
            attributes = where | conventions.tool_attributes(event)
            spans.open(key, f"execute_tool {event.tool_name}", event.at, attributes)
        case ev.RetrievalStarted():
            attributes = where | conventions.retrieval_attributes(event)
            spans.open(key, f"retrieval {event.collection}", event.at, attributes, SpanKind.CLIENT)


def _end(spans: OpenSpans, event: _Ending) -> None:
    attributes: conventions.Attributes = {"flujo.status": event.status, **_error(event)}
    match event:
        case ev.StepEnded():
            attributes |= conventions.usage_attributes(event.usage) | {"flujo.attempts": event.attempts}
            attributes |= conventions.written({"flujo.output": event.output})
        case ev.ModelEnded():
            attributes |= conventions.model_result_attributes(event)
        case ev.ToolEnded():
            attributes |= conventions.tool_result_attributes(event)
        case ev.RetrievalEnded():
            attributes |= conventions.retrieval_result_attributes(event)
    spans.end(_key(event), event.at, _status(event), attributes)


def _annotate(spans: OpenSpans, event: ev.AgentEvent) -> None:
    """Add agent events to the calling attempt, summing its usage."""
    attempt = spans.get(("attempt", event.path, "")) or spans.nearest(("attempt", event.path, ""))
    if attempt is None:
        return
    match event:
        case ev.AgentUsage():
            attempt.usage += _usage(event)
            attributes = conventions.agent_attributes(event) | conventions.usage_attributes(attempt.usage)
            attempt.span.set_attributes(attributes)
        case ev.AgentSystem():
            attempt.span.set_attributes(conventions.system_attributes(event.text))
    spans.add_event(attempt.key, event.kind, event.at, conventions.event_attributes(event))


def _usage(event: ev.AgentUsage) -> Usage:
    shared = attrs.fields_dict(Usage).keys() & attrs.fields_dict(ev.AgentUsage).keys()
    return Usage(**{name: getattr(event, name) for name in shared} | {"cost_usd": event.cost_usd or 0.0})


def _note(spans: OpenSpans, event: ev.Event) -> None:
    place: Key = ("attempt", event.path, "") if event.path else RUN
    spans.add_event(place, event.kind, event.at, conventions.event_attributes(event))


def _error(event: _Ending | ev.RunEndedEvent) -> conventions.Attributes:
    failed = event.status in ("failure", "failed")
    return conventions.error_attributes(event.error_type, failed=failed)


def _status(event: _Ending | ev.RunEndedEvent) -> Status:
    code = _NO_ERROR.get(event.status, StatusCode.ERROR)
    return Status(code, None if code is StatusCode.OK else event.feedback or event.status)
