"""Steps that have begun: what a journal knows of them, and the records that say so to others."""

from __future__ import annotations

from typing import NamedTuple

from .._core import record_bodies
from .._core.paths import StepPath
from .._core.records import Record


class Start(NamedTuple):
    """A step that has begun."""

    name: str
    of: int
    at: float
    """When, on the monotonic clock."""


def started_record(path: StepPath, start: Start, now: float) -> Record:
    """What is written of a step that has begun and not settled."""
    of = {"of": start.of} if start.of else {}
    body = record_bodies.make_body(name=start.name, latency_s=round(now - start.at, 6), **of)
    return Record(kind="started", path=path, body=body)
