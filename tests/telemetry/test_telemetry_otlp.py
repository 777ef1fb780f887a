"""Over the wire: what a real collector receives of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otlp_collector import OtlpCollector
from told_runs import left_in_a_thread, report

from flujo_actors import Flujo, Step
from flujo_actors.telemetry.otel._sink import OtelSink


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    """A collector that listens."""
    with OtlpCollector() as listening:
        yield listening


def _received(
    collector: OtlpCollector, drive: Callable[[dict[str, Any]], object], *, content: bool = False
) -> dict[str, Span]:
    """The spans that the collector has got after a run."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    drive({"telemetry": {"sinks": [OtelSink(provider)], "content": content}})
    provider.shutdown()
    return collector.spans()


def test_a_collector_receives_the_whole_tree(collector: OtlpCollector) -> None:
    """Names, parents, kinds and statuses arrive as they were meant."""
    spans = _received(collector, report)
    assert set(spans) == {"run report", "step write", "attempt 1", "attempt 2", "chat scripted", "execute_tool search"}
    assert spans["run report"].parent_span_id == b""
    assert spans["step write"].parent_span_id == spans["run report"].span_id
    assert spans["attempt 2"].parent_span_id == spans["step write"].span_id
    assert spans["chat scripted"].parent_span_id == spans["attempt 2"].span_id
    assert spans["chat scripted"].kind == Span.SPAN_KIND_CLIENT
    assert spans["attempt 1"].status.code == Status.STATUS_CODE_ERROR
    assert "too slow" in spans["attempt 1"].status.message
    assert spans["run report"].status.code == Status.STATUS_CODE_OK
    assert len({span.trace_id for span in spans.values()}) == 1


def test_a_collector_receives_the_genai_attributes(collector: OtlpCollector) -> None:
    """Token counts are numbers on the wire, too."""
    spans = _received(collector, report)
    said = {item.key: item.value for item in spans["chat scripted"].attributes}
    assert said["gen_ai.request.model"].string_value == "scripted"
    assert said["gen_ai.usage.input_tokens"].int_value == 10
    named = {item.key: item.value for item in spans["run report"].attributes}
    assert named["gen_ai.workflow.name"].string_value == "report"


@pytest.mark.parametrize("content", [False, True])
def test_a_collector_receives_content_only_if_it_is_on_and_secrets_never(
    collector: OtlpCollector, content: bool
) -> None:
    """Looked for in the bytes themselves."""
    key = "sk-ant-api03-canarycanarycanary1"

    async def refuse(data: Any) -> Any:
        raise PermissionError(f"401: {key} is not valid")

    def drive(settings: dict[str, Any]) -> None:
        Flujo(Step("a", refuse), settings=settings).run({"question": "what is six by nine", "api_key": key})

    _received(collector, drive, content=content)
    assert key.encode() not in collector.raw
    assert b"401: [redacted] is not valid" in collector.raw
    assert (b"six by nine" in collector.raw) is content


def test_a_step_that_was_cut_short_is_received_as_an_error(collector: OtlpCollector) -> None:
    """Nothing a run began is missing in the backend."""
    spans = _received(collector, left_in_a_thread)
    assert spans["step slow"].status.code == Status.STATUS_CODE_ERROR
    assert "took longer than timeout_s" in spans["step slow"].status.message


@pytest.mark.slow
def test_a_collector_that_is_gone_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry that cannot be delivered is the exporter's trouble, not the run's."""
    with OtlpCollector() as closing:
        endpoint = closing.endpoint
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=1)))
    sink = OtelSink(provider)
    report({"telemetry": {"sinks": [sink]}})
    provider.shutdown()
    assert sink.open_runs == 0
