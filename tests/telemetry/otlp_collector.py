"""A small OTLP/HTTP collector: takes spans as an exporter sends them and keeps them decoded."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append(body)
        self._answer(ExportTraceServiceResponse().SerializeToString())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


class _Server(ThreadingHTTPServer):
    bodies: list[bytes]


class OtlpCollector:
    """Listens on the loopback interface while its block is open."""

    def __enter__(self) -> OtlpCollector:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.bodies = []
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """Where to send traces."""
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @property
    def raw(self) -> bytes:
        """All that came over the wire."""
        return b"".join(self._server.bodies)

    def spans(self) -> dict[str, Span]:
        """The spans received, by name."""
        requests = map(ExportTraceServiceRequest.FromString, self._server.bodies)
        return {
            span.name: span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }
