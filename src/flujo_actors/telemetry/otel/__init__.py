"""Events as OpenTelemetry spans, span events and metrics. Needs `pip install 'flujo-actors[otel]'`."""

from ._sink import OtelSink as OtelSink
