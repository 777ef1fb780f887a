"""OpenTelemetry: spans nest, carry the GenAI attributes, and always end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from event_scripts import Script, agent_run
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from flujo_actors.core import events as ev
from flujo_actors.telemetry import Redactor, Telemetry
from flujo_actors.telemetry.otel import OtelSink


class Recording:
    """A sink with providers of its own, and what they exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.sink = OtelSink(self.tracers, self.meters)

    def tell(self, events: Sequence[ev.Event]) -> Recording:
        for event in events:
            self.sink.emit(event)
        return self

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The ended spans by name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def parent_of(self, name: str) -> str | None:
        parent = self.spans[name].parent
        ids = {span.context.span_id: other for other, span in self.spans.items() if span.context}
        return ids[parent.span_id] if parent else None

    def metrics(self) -> dict[str, list[Any]]:
        """The data points by metric name."""
        data = self.reader.get_metrics_data()
        assert data is not None
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture
def otel() -> Recording:
    """A fresh recording."""
    return Recording()


def test_spans_nest_run_step_attempt_call(otel: Recording) -> None:
    """The tree of spans is the tree of the work."""
    otel.tell(agent_run())
    assert otel.parent_of("run report") is None
    assert otel.parent_of("step write") == "run report"
    assert otel.parent_of("attempt 1") == otel.parent_of("attempt 2") == "step write"
    assert otel.parent_of("chat gpt-4o") == "attempt 2"
    assert otel.parent_of("execute_tool search") == "attempt 2"


def test_a_model_call_carries_the_genai_attributes(otel: Recording) -> None:
    """What backends for language models read."""
    span = otel.tell(agent_run()).spans["chat gpt-4o"]
    assert span.kind is SpanKind.CLIENT
    assert dict(span.attributes or {}) == {
        "flujo.path": "write",
        "flujo.step": "write",
        "flujo.status": "success",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.system": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024-08-06",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }


def test_an_attempt_of_an_agent_is_an_agent_invocation(otel: Recording) -> None:
    """Usage and prompt belong to the attempt that asked."""
    said = otel.tell(agent_run()).spans["attempt 2"].attributes or {}
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert said["gen_ai.agent.name"] == "write"
    assert said["gen_ai.usage.input_tokens"] == 10
    assert said["gen_ai.usage.cache_read.input_tokens"] == 2
    assert said["flujo.cost_usd"] == 0.25
    assert said["gen_ai.system_instructions"] == '[{"type": "text", "content": "You write reports."}]'


def test_usage_of_repairs_adds_up_on_the_attempt(otel: Recording) -> None:
    """Two model answers, one attempt, one sum."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a"),
            make(ev.AttemptStarted, "a", attempt=1),
            make(ev.AgentUsage, "a", input_tokens=3, output_tokens=1, cost_usd=None),
            make(ev.AgentUsage, "a", input_tokens=4, output_tokens=1, cost_usd=0.5),
            make(ev.RunEnded, status="completed"),
        ]
    )
    said = otel.spans["attempt 1"].attributes or {}
    assert (said["gen_ai.usage.input_tokens"], said["flujo.cost_usd"]) == (7, 0.5)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("success", StatusCode.OK),
        ("paused", StatusCode.OK),
        ("failure", StatusCode.ERROR),
        ("aborted", StatusCode.ERROR),
    ],
)
def test_a_step_span_ends_with_the_status_of_the_step(otel: Recording, status: Any, code: StatusCode) -> None:
    """Success, failure, pause and cancellation each end the span and say what happened."""
    make = Script()
    otel.tell([make(ev.RunStarted), make(ev.StepStarted, "a"), make(ev.StepEnded, "a", status=status, feedback="why")])
    span = otel.spans["step a"]
    assert span.status.status_code is code
    assert span.status.description == ("why" if code is StatusCode.ERROR else None)
    assert (span.attributes or {})["flujo.status"] == status


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("completed", StatusCode.OK),
        ("paused", StatusCode.OK),
        ("failed", StatusCode.ERROR),
        ("aborted", StatusCode.ERROR),
    ],
)
def test_a_run_span_ends_with_the_status_of_the_run(otel: Recording, status: Any, code: StatusCode) -> None:
    """The run's span tells how the run went."""
    make = Script()
    otel.tell([make(ev.RunStarted), make(ev.RunEnded, status=status)])
    assert otel.spans["run"].status.status_code is code


def test_the_end_of_a_run_ends_what_is_still_open(otel: Recording) -> None:
    """A crash leaves no span behind, and does not call it a success."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a"),
            make(ev.AttemptStarted, "a", attempt=1),
            make(ev.ModelStarted, "a", model="m"),
            make(ev.RunEnded, status="failed", feedback="crashed"),
        ]
    )
    for name in ("step a", "attempt 1", "chat m"):
        assert otel.spans[name].status.status_code is StatusCode.ERROR
        assert otel.spans[name].status.description == "still open when its run ended"
    names = [span.name for span in otel.exporter.get_finished_spans()]
    assert names == ["chat m", "attempt 1", "step a", "run"]


def test_a_canceled_step_takes_its_open_attempt_along(otel: Recording) -> None:
    """Cancellation gives an attempt no chance to end; its step ends it."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a"),
            make(ev.AttemptStarted, "a", attempt=1),
            make(ev.StepEnded, "a", status="aborted"),
            make(ev.AttemptEnded, "a", attempt=1, status="aborted"),
        ]
    )
    assert otel.spans["attempt 1"].status.description == "still open when its step ended"


def test_nested_steps_nest_by_path(otel: Recording) -> None:
    """Items, attempts and fallbacks in a path belong to the step they extend."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "map", step_name="map"),
            make(ev.AttemptStarted, "map", attempt=2),
            make(ev.StepStarted, "map/~a2/~i3/body", step_name="body"),
            make(ev.StepStarted, "map/~a2/~i3/body/inner", step_name="inner"),
            make(ev.StepStarted, "map/~a2/~i3/body/~f", step_name="stand-in"),
            make(ev.StepStarted, "map2", step_name="sibling"),
            make(ev.RunEnded, status="completed"),
        ]
    )
    assert otel.parent_of("step body") == "attempt 2"
    assert otel.parent_of("step inner") == otel.parent_of("step stand-in") == "step body"
    assert otel.parent_of("step sibling") == "run"


def test_the_run_span_is_a_child_of_the_callers_span(otel: Recording) -> None:
    """A run inside a traced request is part of its trace, and its steps hang below the run alone."""
    with otel.tracers.get_tracer("app").start_as_current_span("request"):
        otel.tell(agent_run())
    assert otel.parent_of("run report") == "request"
    assert otel.parent_of("step write") == "run report"
    assert len({span.context.trace_id for span in otel.spans.values() if span.context}) == 1


def test_concurrent_runs_do_not_mix(otel: Recording) -> None:
    """The same paths in two runs are two trees."""
    one, two = agent_run("one"), agent_run("two")
    otel.tell([event for pair in zip(one, two, strict=True) for event in pair])
    by_trace: dict[int, int] = {}
    for span in otel.exporter.get_finished_spans():
        assert span.context is not None
        by_trace[span.context.trace_id] = by_trace.get(span.context.trace_id, 0) + 1
    assert sorted(by_trace.values()) == [7, 7]


def test_a_run_that_ended_is_forgotten(otel: Recording) -> None:
    """Memory is freed with the run, and what comes too late opens nothing."""
    otel.tell(agent_run())
    assert otel.sink.open_runs == 0
    otel.tell([Script()(ev.StepUnstoppable, "write", what="thread"), Script()(ev.StepStarted, "late")])
    assert otel.sink.open_runs == 0
    assert "step late" not in otel.spans


def test_a_resumed_run_opens_a_span_of_its_own(otel: Recording) -> None:
    """The stretch before the pause has ended; the next one begins with the answer."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "ask"),
            make(ev.RunPaused, "ask", message="go on?"),
            make(ev.StepEnded, "ask", status="paused"),
            make(ev.RunEnded, status="paused"),
            make(ev.RunResumed, answer="yes"),
            make(ev.RunEnded, status="completed"),
        ]
    )
    first, second = (span for span in otel.exporter.get_finished_spans() if span.name == "run")
    assert (first.attributes or {})["flujo.status"] == "paused"
    assert (second.attributes or {})["flujo.resumed"] is True
    assert [event.name for event in otel.spans["step ask"].events] == ["run.paused"]


def test_starting_a_run_again_gives_up_the_open_one(otel: Recording) -> None:
    """A run that never told its end does not stay open for ever."""
    make = Script()
    otel.tell([make(ev.RunStarted), make(ev.RunResumed), make(ev.RunStarted)])
    assert otel.sink.open_runs == 1
    assert otel.spans["run"].status.description == "never ended, and begun again"


def test_spans_have_the_time_of_day_and_the_length_of_the_runs_clock(otel: Recording) -> None:
    """A clock that starts anywhere still gives the right dates and durations."""
    before = time.time_ns()
    span = otel.tell(agent_run()).spans["run report"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert before <= span.start_time <= time.time_ns()
    assert span.end_time - span.start_time == (len(agent_run()) - 1) * 1_000_000_000


def test_what_happens_between_shows_as_events_of_the_nearest_span(otel: Recording) -> None:
    """Retries, fallbacks, repairs and hooks are noted where they happened."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a"),
            make(ev.AttemptStarted, "a", attempt=1),
            make(ev.ArosRepairStarted, "a", stage="deterministic", schema_hash="abc"),
            make(ev.AttemptEnded, "a", attempt=1, status="failure"),
            make(ev.StepFallback, "a", fallback_name="b", feedback="no luck"),
            make(ev.HookFailed, hook="audit", hook_kind="post_step"),
            make(ev.RunEnded, status="failed"),
        ]
    )
    noted = {name: [event.name for event in span.events] for name, span in otel.spans.items()}
    assert noted == {"attempt 1": ["aros.repair.started"], "step a": ["step.fallback"], "run": ["hook.failed"]}
    fallback = otel.spans["step a"].events[0]
    assert (fallback.attributes or {})["flujo.feedback"] == "no luck"


def test_overlapping_calls_of_one_step_are_told_apart_by_their_ids(otel: Recording) -> None:
    """Parallel model calls each end their own span."""
    make = Script()
    otel.tell(
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a"),
            make(ev.ModelStarted, "a", model="m1", call_id="1"),
            make(ev.ModelStarted, "a", model="m2", call_id="2"),
            make(ev.ModelEnded, "a", model="m1", call_id="1"),
            make(ev.ModelEnded, "a", model="m2", call_id="2", status="failure"),
        ]
    )
    assert otel.spans["chat m1"].status.status_code is StatusCode.OK
    assert otel.spans["chat m2"].status.status_code is StatusCode.ERROR
    assert (otel.spans["chat m2"].attributes or {})["error.type"] == "_OTHER"


def test_metrics_count_tokens_dollars_time_and_repairs(otel: Recording) -> None:
    """The figures dashboards are made of."""
    make = Script("other")
    otel.tell(agent_run())
    otel.tell(
        [
            make(ev.ArosRepairStarted, "a", stage="llm", provider_error="UnexpectedModelBehavior", schema_hash="abc"),
            make(ev.ArosRepairFailed, "a", stage="llm"),
            make(ev.ArosFallbackStage, "a", stage="extractor"),
        ]
    )
    points = otel.metrics()
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": 10, "output": 5}
    assert sorted(point.sum for point in points["gen_ai.client.operation.duration"]) == [1.0, 1.0]
    assert [point.value for point in points["flujo.cost"]] == [0.25]
    assert {point.attributes["flujo.event"] for point in points["flujo.aros.repair"]} == {"started", "failed"}
    assert [point.attributes["flujo.stage"] for point in points["flujo.aros.fallback.stage"]] == ["extractor"]


def test_without_providers_the_global_ones_are_used() -> None:
    """An application that configures nothing gets no spans and no errors."""
    sink = OtelSink()
    for event in agent_run():
        sink.emit(event)
    assert sink.open_runs == 0


@pytest.mark.parametrize("content", [False, True])
def test_no_span_carries_a_secret(otel: Recording, content: bool) -> None:
    """The canary test of the spans: feedback, prompt, arguments and results."""
    telemetry = Telemetry([otel.sink], Redactor(secrets=["canary-9000"]), content=content)
    make = Script()
    for event in (
        make(ev.RunStarted, input={"api_key": "canary-9000"}),
        make(ev.StepStarted, "a", input="canary-9000"),
        make(ev.AttemptStarted, "a", attempt=1),
        make(ev.AgentSystem, "a", text="You know canary-9000."),
        make(ev.ModelStarted, "a", model="m"),
        make(ev.ModelEnded, "a", model="m", status="failure", feedback="401 for canary-9000"),
        make(ev.ToolStarted, "a", tool_name="t", arguments={"q": "canary-9000"}),
        make(ev.ToolEnded, "a", tool_name="t", status="failure", feedback="no canary-9000", result=["canary-9000"]),
        make(ev.AttemptEnded, "a", attempt=1, status="failure", feedback="canary-9000"),
        make(ev.StepRetry, "a", attempt=1, feedback="canary-9000"),
        make(ev.StepEnded, "a", status="failure", feedback="canary-9000", output="canary-9000"),
        make(ev.RunEnded, status="failed", feedback="canary-9000"),
    ):
        telemetry.emit(event)
    written = "".join(span.to_json() for span in otel.exporter.get_finished_spans())
    assert "canary-9000" not in written
    assert ("You know" in written) is content


def test_a_deep_tree_that_is_given_up_ends_from_the_leaves(otel: Recording) -> None:
    """A thousand levels deep is no reason to fail."""
    make = Script()
    paths = ["/".join(["s"] * depth) for depth in range(1, 1001)]
    otel.tell([make(ev.RunStarted), *(make(ev.StepStarted, path) for path in paths)])
    otel.tell([make(ev.RunEnded, status="aborted")])
    ended = [span for span in otel.exporter.get_finished_spans() if span.name == "step s"]
    assert [(span.attributes or {})["flujo.path"] for span in ended] == paths[::-1]
