"""Redaction without sinks: errors of a run, and the package's own log.

The redactor is loaded with the first text that needs it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .._core.event_kinds import EventKind
    from ._redaction.redactor import LiveRedactor


_LATEST = 20
"""Number of deps kept for the first error."""


class NullTelemetry:
    """Emit nothing; redact the environment's secrets in errors all the same.

    The redactor is made for the first error: building its expressions takes longer than many a run. It knows the
    environment at the start, as telemetry with sinks does, and at that time.
    """

    enabled: ClassVar[bool] = False
    measures: ClassVar[bool] = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._began = environ, dict(environ)
        self._made: list[object] = []

    def learn(self, deps: object) -> None:
        """Keep deps made for an attempt: they may hold secrets."""
        self._made = [*self._made[-_LATEST:], deps]

    def measure(self, gauges: object) -> None:
        """Do nothing: there is no sink."""

    def span_of(self, run_id: str) -> None:
        """Return nothing: there is no sink."""

    def report(self, kind: EventKind, **facts: object) -> None:
        """Do nothing: there is no sink."""

    def redact(self, text: str) -> str:
        """Return the text of an error without secrets."""
        for each in self._made:
            self._redactor.learn(each)
        self._made = []
        return self._redactor.text(text)

    @functools.cached_property
    def _redactor(self) -> LiveRedactor:
        from ._redaction.redactor import LiveRedactor

        return LiveRedactor(self._environ, began=self._began)


SILENT = NullTelemetry({})
"""Telemetry without sinks, of a program without secrets."""

# --- Redaction of the package's own log, whose messages quote errors ------------------------------------------------

LOGGER = "flujo_actors"
"""Logger of the package's messages; events use `flujo_actors.events`."""

_tracebacks = logging.Formatter()


class WithoutSecrets(logging.Filter):
    """Log filter that redacts message and traceback of a record with secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, redacted."""
        from ._redaction.redactor import redacted

        message = record.getMessage()
        if (clean := redacted(message)) is not message:
            record.msg, record.args = clean, ()
        if record.exc_info:
            traceback = _tracebacks.formatException(record.exc_info)
            if (clean := redacted(traceback)) is not traceback:
                record.exc_text, record.exc_info = clean, None
        return True


def hide_secrets_in_log() -> None:
    """Install the filter before every handler of the package's log."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, WithoutSecrets) for each in logger.filters):
        logger.addFilter(WithoutSecrets())
