"""The kinds of events there are, for those who emit them; what each one holds is in `events`."""

from __future__ import annotations

from typing import Literal, TypeAlias

EventKind: TypeAlias = Literal[
    "run.taken",
    "run.started",
    "run.ended",
    "run.paused",
    "run.resumed",
    "step.started",
    "step.ended",
    "step.retry",
    "step.fallback",
    "step.recovered",
    "step.unstoppable",
    "attempt.started",
    "attempt.ended",
    "agent.system",
    "agent.input",
    "agent.response",
    "agent.usage",
    "model.started",
    "model.ended",
    "tool.started",
    "tool.ended",
    "retrieval.started",
    "retrieval.ended",
    "context.assembled",
    "aros.repair.started",
    "aros.repair.success",
    "aros.repair.failed",
    "aros.fallback.stage",
    "handler.failed",
    "hook.failed",
    "budget.level",
    "selection.chosen",
    "confidence.low",
    "loop.detected",
    "undo.started",
    "undo.ended",
]
"""Names an event without its class, which only runs that somebody listens to have to load."""
