"""What telemetry hears of a structured step's repairs and fallback stages.

1. Whatever is told as started is told as ended, once: as a success, or as failed with the reason.
2. The deterministic reading is a repair only if there was something to do; a clean answer is not told at all.
3. Plain text repairs nothing, and giving up tries nothing: the one is told as a fallback stage, the other not at all.
"""

from __future__ import annotations

import attrs

from .._core.event_kinds import EventKind
from .._run.messages import Work
from .._run.run import Run
from ..structured._stages import Decision, Degrade, Deterministic, GiveUp, LlmRepair, stage_of

_TAG = {
    "deterministic": "deterministic",
    "llm": "llm",
    "strict_retry": "retry",
    "simplified": "simplified",
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

    def begins(self, decision: Decision, why: str, text: str) -> None:
        """A stage begins on a text; what the deterministic reading has to do is known at its end."""
        if isinstance(decision, Deterministic | GiveUp):
            return
        if not isinstance(decision, LlmRepair):
            self._emit("aros.fallback.stage", _TAG[stage_of(decision)], text, feedback=why or None)
        if not isinstance(decision, Degrade):
            self._emit("aros.repair.started", _TAG[stage_of(decision)], text)

    def succeeded(self, decision: Decision, passes: tuple[str, ...], text: str, *, clean: bool) -> None:
        """A stage ended in the value of a text; one that was fine as it came needed no repair."""
        if isinstance(decision, Deterministic):
            if clean:
                return
            self._emit("aros.repair.started", "deterministic", text)
        self._emit("aros.repair.success", _TAG[stage_of(decision)], text, passes=passes)

    def failed(self, decision: Decision, reason: str, text: str = "") -> None:
        """A stage did not end in a value."""
        if isinstance(decision, Degrade | GiveUp):
            return
        if isinstance(decision, Deterministic):
            self._emit("aros.repair.started", "deterministic", text)
        self._emit("aros.repair.failed", _TAG[stage_of(decision)], text, feedback=self.run.redact(reason))

    def _emit(self, kind: EventKind, stage: str, text: str, **facts: object) -> None:
        self.run.emit(
            kind,
            self.work.span,
            step_name=self.work.name,
            attempt=self.work.attempt,
            stage=stage,
            provider_error=self.provider_error,
            schema_hash=self.schema_hash,
            raw_text=text or None,
            **facts,
        )
