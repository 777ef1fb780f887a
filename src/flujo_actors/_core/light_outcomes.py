"""The outcomes of a run in this process as light records: a live view reads them like those of a store."""

from __future__ import annotations

import itertools
from typing import assert_never

from . import paths
from .light_records import NOTE_CHARS, LightRecord, called, success_note
from .outcomes import (
    Aborted,
    Chunk,
    Failure,
    Paused,
    PipelineResult,
    Started,
    StepResult,
    Success,
    ToldOutcome,
    ToolCalled,
)
from .paths import ROOT, StepPath


class LightOutcomes:
    """Numbers outcomes as they come, and says in light records what they say."""

    def __init__(self, *, at: float) -> None:
        self._numbers = itertools.count(2)
        self.first = LightRecord(seq=1, kind="admitted", path=ROOT, at=at)
        """The run's first record."""

    def record(self, outcome: ToldOutcome, *, at: float) -> LightRecord | None:
        """The record of an outcome; `None` for a chunk, which is text and no event."""
        match outcome:
            case Chunk():
                return None
            case Started():
                return self._started(outcome, at)
            case ToolCalled():
                return self._tool_call(outcome, at)
            case Success(step_result=result):
                return self._settled(
                    outcome.path, result, "success", success_note(result.metadata, result.attempts), at
                )
            case Failure(step_result=result, feedback=feedback):
                return self._settled(outcome.path, result, "failure", feedback or "", at)
            case Paused(message=message):
                return self._new(kind="paused", path=StepPath(outcome.path), at=at, note=message[:NOTE_CHARS])
            case Aborted(reason=reason):
                return self._settled(outcome.path, None, "aborted", reason, at)
            case _:
                assert_never(outcome)

    def end(self, result: PipelineResult, *, at: float) -> LightRecord:
        """The run's last record."""
        return self._new(
            kind="ended",
            path=ROOT,
            at=at,
            status=result.status,
            tokens=result.total_tokens,
            cost_usd=result.total_cost_usd,
            note=(result.feedback or "")[:NOTE_CHARS],
        )

    def _new(self, **facts: object) -> LightRecord:
        return LightRecord(seq=next(self._numbers), **facts)  # type: ignore[arg-type]

    def _started(self, started: Started, at: float) -> LightRecord:
        return self._new(kind="started", path=StepPath(started.path), at=at, name=started.step_name, of=started.of)

    def _tool_call(self, call: ToolCalled, at: float) -> LightRecord:
        kind = "intent" if call.status == "started" else "unit"
        place = paths.unit(StepPath(call.path), call.tool_call_id)
        note = called(call.tool_name, call.arguments)[:NOTE_CHARS]
        return self._new(kind=kind, path=place, at=at, name=call.tool_call_id, note=note)

    def _settled(self, path: str, result: StepResult | None, status: str, note: str, at: float) -> LightRecord:
        told = StepResult(name="") if result is None else result
        return self._new(
            kind="settled",
            path=StepPath(path),
            at=at,
            name=told.name,
            status=status,
            latency_s=told.latency_s,
            tokens=told.token_counts,
            cost_usd=told.cost_usd,
            attempts=told.attempts,
            note=note[:NOTE_CHARS],
        )
