"""Telemetry from settings: who listens, and what must be hidden from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._core.settings import Settings
from ._redaction.live_redaction import LiveRedactor
from ._sinks import LogSink, Telemetry


def open_telemetry(settings: Settings, environ: Mapping[str, str], deps: Iterable[object]) -> Telemetry:
    """Telemetry that hides what the environment and `deps` hold under secret-like names."""
    logging_sink = (LogSink(),) if settings.telemetry.log else ()
    return Telemetry(
        sinks=(*settings.telemetry.sinks, *logging_sink),
        redactor=LiveRedactor(environ, list(deps)),
        content=settings.telemetry.content,
        verbose=settings.aros.telemetry.verbose,
    )
