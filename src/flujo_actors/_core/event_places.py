"""Where and when something happened, as all events say it, and which of their fields are private."""

from __future__ import annotations

from typing import Any

import attrs

CONTENT = "flujo.content"
DETAIL = "flujo.detail"


def content() -> Any:
    """A field that holds what users or models wrote: `None` in every sink unless content is on."""
    return attrs.field(default=None, metadata={CONTENT: True})


def detail() -> Any:
    """A field only verbose telemetry shows: `None` in every sink otherwise."""
    return attrs.field(default=None, metadata={DETAIL: True})


@attrs.frozen(kw_only=True)
class InRun:
    """Where and when; shared by all events, never an event by itself."""

    run_id: str
    path: str = ""
    at: float


@attrs.frozen(kw_only=True)
class InStep(InRun):
    """The same, inside a step."""

    path: str
    step_name: str


@attrs.frozen(kw_only=True)
class InAttempt(InStep):
    """The same, inside one attempt of a step (from 1; 0 where the attempt is not known)."""

    attempt: int = 0
