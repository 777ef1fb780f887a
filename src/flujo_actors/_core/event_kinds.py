"""Event kinds for emitters; `events` defines their fields.

Sections:

- Location and time fields shared by all events, and markers of private fields.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

EventKind: TypeAlias = Literal[
    "run.taken",
    "run.started",
    "run.ended",
    "run.paused",
    "run.resumed",
    "run.retried",
    "run.waiting",
    "run.woken",
    "event.sent",
    "event.delivered",
    "event.refused",
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
    "loop.compacted",
    "undo.started",
    "undo.ended",
    "retention.deleted",
    "schedule.fired",
    "schedule.skipped",
    "schedule.failed",
    "rate.waited",
    "rate.blocked",
    "budget.warned",
    "step.cached",
    "agent.steered",
]
"""Name of an event, usable without importing its class."""


# --- Location and time fields shared by all events ----------------------------------------------------------------


CONTENT = "flujo.content"
DETAIL = "flujo.detail"


def content() -> Any:
    """Return a field for user or model content, hidden by default."""
    return attrs.field(default=None, metadata={CONTENT: True})


def detail() -> Any:
    """Return a field only verbose telemetry shows: `None` in every sink otherwise."""
    return attrs.field(default=None, metadata={DETAIL: True})


@attrs.frozen(kw_only=True)
class InRun:
    """Location and time shared by all events; never an event by itself."""

    run_id: str
    """Id of the run."""
    path: str = ""
    """Path of the step; empty for the run itself."""
    at: float
    """Time in seconds on the clock of the run."""


@attrs.frozen(kw_only=True)
class InStep(InRun):
    """The same, inside a step."""

    path: str
    """Path of the step."""
    step_name: str
    """Name of the step."""


@attrs.frozen(kw_only=True)
class InAttempt(InStep):
    """Event inside one attempt of a step (from 1; 0 if unknown)."""

    attempt: int = 0
    """Number of the attempt, from 1."""
