"""The package's own log, without secrets: what it says quotes errors, and errors quote anything."""

from __future__ import annotations

import logging

LOGGER = "flujo_actors"
"""The logger of everything the package says by itself; events have `flujo_actors.events`."""

_tracebacks = logging.Formatter()


class WithoutSecrets(logging.Filter):
    """Changes a record that tells a secret, in its text or its traceback, and no other."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, redacted."""
        from ._redaction.live_redaction import redacted  # loads what only programs with something to log need

        said = record.getMessage()
        if (clean := redacted(said)) is not said:
            record.msg, record.args = clean, ()
        if record.exc_info:
            traceback = _tracebacks.formatException(record.exc_info)
            if (told := redacted(traceback)) is not traceback:
                record.exc_text, record.exc_info = told, None
        return True


def hide_secrets_in_log() -> None:
    """Stand before every handler of the package's log."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, WithoutSecrets) for each in logger.filters):
        logger.addFilter(WithoutSecrets())
