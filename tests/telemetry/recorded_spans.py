"""OpenTelemetry with providers of its own: what runs leave there."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flujo_actors.telemetry.otel._sink import OtelSink


class Recording:
    """A sink with providers of its own, and what they exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("a user's own")
        self.reader = InMemoryMetricReader()
        self.sink = OtelSink(self.tracers, MeterProvider([self.reader]))

    def settings(self, **telemetry: Any) -> dict[str, Any]:
        """Settings of a Flujo that tells this sink."""
        return {"telemetry": {"sinks": [self.sink], **telemetry}}

    @property
    def ended(self) -> list[ReadableSpan]:
        """The ended spans, in the order of their ends."""
        return list(self.exporter.get_finished_spans())

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The ended spans by name."""
        return {span.name: span for span in self.ended}

    def parent_of(self, name: str) -> str | None:
        """The name of the span above the one of that name."""
        parent = self.spans[name].parent
        return self._names()[parent.span_id] if parent else None

    def tree(self) -> set[tuple[str, ...]]:
        """Each span as the names from the top down to it."""
        return {tuple(reversed(list(self._upwards(span)))) for span in self.ended}

    def _upwards(self, span: ReadableSpan) -> Any:
        by_id = {each.context.span_id: each for each in self.ended if each.context}
        above: ReadableSpan | None = span
        while above is not None:
            yield above.name
            above = by_id.get(above.parent.span_id) if above.parent else None

    def _names(self) -> dict[int, str]:
        return {span.context.span_id: span.name for span in self.ended if span.context}

    def metrics(self) -> dict[str, list[Any]]:
        """The data points by metric name."""
        data = self.reader.get_metrics_data()
        assert data is not None
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in found}
