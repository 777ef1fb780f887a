"""Redaction of the package's own log, whose messages quote errors."""

from __future__ import annotations

import logging

LOGGER = "flujo_actors"
"""Logger of the package's messages; events use `flujo_actors.events`."""

_tracebacks = logging.Formatter()


class WithoutSecrets(logging.Filter):
    """Log filter that redacts message and traceback of a record with secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, redacted."""
        from ._redaction.redactor import redacted

        said = record.getMessage()
        if (clean := redacted(said)) is not said:
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
