"""Telemetry of a run that nobody listens to."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .._core.event_kinds import EventKind
    from ._redaction.live_redaction import LiveRedactor


_LATEST = 20
"""How many deps are kept for the first error."""


class Silence:
    """Tells nobody anything; what errors say is freed of the environment's secrets all the same.

    The redactor is made for the first error: building its expressions takes longer than many a run. It knows what the
    environment held in the beginning, as it does for telemetry that is heard, and what it holds then.
    """

    enabled: ClassVar[bool] = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._began = environ, dict(environ)
        self._made: list[object] = []

    def learn(self, deps: object) -> None:
        """Take note of deps that were made for an attempt: they may hold secrets."""
        self._made = [*self._made[-_LATEST:], deps]

    def tell(self, kind: EventKind, **facts: object) -> None:
        """Nobody listens."""

    def redact(self, text: str) -> str:
        """The text of an error without secrets."""
        for each in self._made:
            self._redactor.learn(each)
        self._made = []
        return self._redactor.text(text)

    @functools.cached_property
    def _redactor(self) -> LiveRedactor:
        from ._redaction.live_redaction import LiveRedactor  # loads what only runs with errors need

        return LiveRedactor(self._environ, began=self._began)


SILENT = Silence({})
"""Telemetry nobody listens to, of a program without secrets."""
