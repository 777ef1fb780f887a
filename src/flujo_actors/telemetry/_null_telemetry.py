"""Telemetry of a run without sinks."""

from __future__ import annotations

import functools
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
