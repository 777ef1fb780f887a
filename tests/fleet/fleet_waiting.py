"""Waiting for what workers do, for as long as a slow machine may take and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from flujo_actors import RunClient, RunInfo

T = TypeVar("T")

PATIENCE_S = 30.0


def until(look: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """What `look` returns when it is true; looks again and again."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
    return found


def ended(client: RunClient, run_id: str, seconds: float = PATIENCE_S) -> RunInfo:
    """The run, when it has come to rest."""

    def look() -> RunInfo | None:
        info = client.get(run_id)
        return info if info.status not in ("running",) else None

    return until(look, seconds)
