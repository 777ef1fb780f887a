"""Where steps go, and which items of a map go there together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from .._core.paths import StepPath
from .._dsl.kinds import MapOver
from .._run.messages import Batch, Request

ITEMS_AT_ONCE = 500
"""How many items of a map are under way at once, unless it says otherwise: their memory, and the length of queues."""

BATCHES_AT_ONCE = 4
"""How many batches are, if they are so large that these are more items: for several workers to have some."""


def spread(step: MapOver, requests: Iterator[Request]) -> tuple[Iterator[Request], int | None, int]:
    """The items of a map, as they go elsewhere if they do; how many are under way at once, and begin together."""
    queue = step.runs_on or getattr(step.body, "runs_on", None)
    if queue is None:
        return requests, step.max_concurrency, 1
    most = max(ITEMS_AT_ONCE, BATCHES_AT_ONCE * step.batch) if step.max_concurrency is None else step.max_concurrency
    together = min(step.batch, most)
    return _batched(requests, queue, together), max(together, most // together * together), together


def place_of(request: Request) -> StepPath:
    """Where the remote run stands that performs a step: its own place, or that of its batch."""
    return request.path if request.batch is None else request.batch.path


def queue_of(request: Request) -> str | None:
    """Where a step is performed; `None` if that is here."""
    if isinstance(request.step, MapOver):
        return request.runs_on
    return request.runs_on or getattr(request.step, "runs_on", None)


def _batched(requests: Iterator[Request], queue: str, together: int) -> Iterator[Request]:
    """The requests, each knowing where it goes, and with which others."""
    for number in itertools.count():
        group = list(itertools.islice(requests, together))
        if not group:
            return
        if together == 1:
            yield attrs.evolve(group[0], runs_on=queue)
            continue
        above = group[0].path.rpartition("/")[0]
        batch = Batch(path=StepPath(f"{above}/~b{number}"), size=len(group))
        yield from (attrs.evolve(request, runs_on=queue, batch=batch) for request in group)
