"""Telemetry from settings: who listens, and what must be hidden from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.settings import Settings
from .redaction import Redactor
from .sinks import LogSink, Telemetry


def open_telemetry(settings: Settings, environ: Mapping[str, str], deps: Iterable[object]) -> Telemetry:
    """Telemetry that hides what the environment and `deps` hold under secret-like names."""
    redactor = Redactor.from_environment(environ)
    for each in deps:
        redactor = redactor.knowing(each)
    logging_sink = (LogSink(),) if settings.telemetry.log else ()
    return Telemetry(
        sinks=(*settings.telemetry.sinks, *logging_sink),
        redactor=redactor,
        content=settings.telemetry.content,
        verbose=settings.aros.telemetry.verbose,
    )
