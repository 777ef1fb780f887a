"""What telemetry hears of a structured step's repairs and fallback stages."""

from __future__ import annotations

from typing import Any

import attrs

from ..core.event_kinds import EventKind
from ..structured.stages import Decision, Deterministic, GiveUp, LlmRepair, StageFailure, stage_of
from .run import Run
from .sequence import Work

_TAG = {
    "deterministic": "deterministic",
    "llm": "llm",
    "strict_retry": "retry",
    "simplified": "retry",
    "extractor": "extractor",
    "degrade": "degrade",
}


@attrs.define(kw_only=True, eq=False)
class RepairEvents:
    """Emits the `aros.*` events of one attempt."""

    run: Run
    work: Work
    schema_hash: str
    provider_error: str | None = None
    """The type of the error with which the provider refused the first answer."""

    def begins(self, decision: Decision, why: str) -> None:
        """A stage begins that asks a model, or falls back on something."""
        if isinstance(decision, LlmRepair):
            self._emit("aros.repair.started", "llm")
        elif not isinstance(decision, Deterministic | GiveUp):
            self._emit("aros.fallback.stage", _TAG[stage_of(decision)], feedback=why or None)

    def succeeded(self, decision: Decision, passes: tuple[str, ...], *, clean: bool) -> None:
        """A stage ended in a value; a text that was fine as it came needed no repair."""
        if isinstance(decision, Deterministic):
            if clean:
                return
            self._emit("aros.repair.started", "deterministic")
        self._emit("aros.repair.success", _TAG[stage_of(decision)], passes=passes)

    def failed(self, decision: Decision, failure: StageFailure) -> None:
        """A stage did not end in a value."""
        if isinstance(decision, Deterministic):
            self._emit("aros.repair.started", "deterministic")
        feedback = self.run.redact(failure.reason)
        self._emit("aros.repair.failed", _TAG[stage_of(decision)], feedback=feedback, raw_text=failure.text)

    def _emit(self, kind: EventKind, stage: str, **facts: Any) -> None:
        self.run.emit(
            kind,
            self.work.span,
            step_name=self.work.name,
            attempt=self.work.attempt,
            stage=stage,
            provider_error=self.provider_error,
            schema_hash=self.schema_hash,
            **facts,
        )
