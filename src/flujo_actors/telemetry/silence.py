"""Telemetry of a run that nobody listens to."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ..core.event_kinds import EventKind
    from .redaction import Redactor


class Silence:
    """Tells nobody anything; what errors say is freed of the environment's secrets all the same.

    The redactor is made for the first error: building its expressions takes longer than many a run. The environment it
    goes by is that of the beginning, as it is for telemetry that is heard.
    """

    enabled: ClassVar[bool] = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def tell(self, kind: EventKind, **facts: Any) -> None:
        """Nobody listens."""

    @functools.cached_property
    def redactor(self) -> Redactor:
        """What hides secrets in the texts of errors."""
        from .redaction import Redactor  # loads what only runs with errors need

        return Redactor.from_environment(self._environ)


SILENT = Silence({})
"""Telemetry nobody listens to, of a program without secrets."""
