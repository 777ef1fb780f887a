"""Over the wire: what a real collector receives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from event_scripts import Script, agent_run
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otlp_collector import OtlpCollector

from flujo_actors.core import events as ev
from flujo_actors.telemetry import Telemetry
from flujo_actors.telemetry.otel import OtelSink


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    """A collector that listens."""
    with OtlpCollector() as listening:
        yield listening


def _tell(collector: OtlpCollector, events: list[ev.Event], *, content: bool = False) -> dict[str, Span]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    telemetry = Telemetry([OtelSink(provider)], content=content)
    for event in events:
        telemetry.emit(event)
    provider.shutdown()
    return collector.spans()


def test_a_collector_receives_the_whole_tree(collector: OtlpCollector) -> None:
    """Names, parents, kinds and statuses arrive as they were meant."""
    spans = _tell(collector, agent_run())
    assert set(spans) == {"run report", "step write", "attempt 1", "attempt 2", "chat gpt-4o", "execute_tool search"}
    assert spans["run report"].parent_span_id == b""
    assert spans["step write"].parent_span_id == spans["run report"].span_id
    assert spans["attempt 2"].parent_span_id == spans["step write"].span_id
    assert spans["chat gpt-4o"].parent_span_id == spans["attempt 2"].span_id
    assert spans["chat gpt-4o"].kind == Span.SPAN_KIND_CLIENT
    assert spans["attempt 1"].status.code == Status.STATUS_CODE_ERROR
    assert spans["attempt 1"].status.message == "too slow"
    assert spans["run report"].status.code == Status.STATUS_CODE_OK
    assert len({span.trace_id for span in spans.values()}) == 1


def test_a_collector_receives_the_genai_attributes(collector: OtlpCollector) -> None:
    """Token counts are numbers on the wire, too."""
    said = {item.key: item.value for item in _tell(collector, agent_run())["chat gpt-4o"].attributes}
    assert said["gen_ai.request.model"].string_value == "gpt-4o"
    assert said["gen_ai.usage.input_tokens"].int_value == 10


@pytest.mark.parametrize("content", [False, True])
def test_a_collector_receives_content_only_if_it_is_on_and_secrets_never(
    collector: OtlpCollector, content: bool
) -> None:
    """Looked for in the bytes themselves."""
    make, key = Script(), "sk-ant-api03-canarycanarycanary1"
    _tell(
        collector,
        [
            make(ev.RunStarted),
            make(ev.StepStarted, "a", input={"question": "what is six by nine", "api_key": key}),
            make(ev.StepEnded, "a", status="failure", feedback=f"401: {key} is not valid"),
            make(ev.RunEnded, status="failed"),
        ],
        content=content,
    )
    assert key.encode() not in collector.raw
    assert b"401: [redacted] is not valid" in collector.raw
    assert (b"six by nine" in collector.raw) is content


def test_spans_left_open_by_a_crash_are_received_as_errors(collector: OtlpCollector) -> None:
    """Nothing a run began is missing in the backend."""
    make = Script()
    spans = _tell(
        collector,
        [make(ev.RunStarted), make(ev.StepStarted, "a"), make(ev.RunEnded, status="failed", feedback="crashed")],
    )
    assert spans["step a"].status.code == Status.STATUS_CODE_ERROR
    assert spans["step a"].status.message == "still open when its run ended"


def test_a_collector_that_is_gone_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry that cannot be delivered is the exporter's trouble, not the run's."""
    with OtlpCollector() as closing:
        endpoint = closing.endpoint
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=1)))
    sink = OtelSink(provider)
    for event in agent_run():
        sink.emit(event)
    provider.shutdown()
    assert sink.open_runs == 0
