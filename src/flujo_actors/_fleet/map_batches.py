"""Queues of remote steps, and batches of map items.

Sections:

- Worker slot of a run, released while it waits for other workers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar

import attrs
import trio

from .._core.step_paths import StepPath
from .._dsl.kinds import MapOver
from .._runtime.run.messages import StepRequest, StepState

ITEMS_AT_ONCE = 500
"""Default number of map items in flight, bounding memory and queue length."""

BATCHES_AT_ONCE = 4
"""Minimum number of batches in flight, so that several workers get some."""


@attrs.define(kw_only=True, eq=False)
class Batch:
    """Items of a map that one worker performs together."""

    path: StepPath
    """Its id, which the requests of its items carry."""
    size: int
    """The number of items that may arrive."""
    states: list[StepState] = attrs.field(factory=list)
    """The items that have arrived."""
    sent: bool = False


Batches = dict[StepPath, Batch]
"""The batches of one run, by id."""


def spread(
    step: MapOver, requests: Iterator[StepRequest], batches: Batches
) -> tuple[Iterator[StepRequest], int | None, int]:
    """Return a map's items with queue and batch, concurrency and batch size."""
    queue = step.runs_on or getattr(step.body, "runs_on", None)
    if queue is None:
        return requests, step.max_concurrency, 1
    most = max(ITEMS_AT_ONCE, BATCHES_AT_ONCE * step.batch) if step.max_concurrency is None else step.max_concurrency
    together = min(step.batch, most)
    return _batched(requests, queue, together, batches), max(together, most // together * together), together


def place_of(request: StepRequest) -> StepPath:
    """Return a step's remote path: its own, or its batch's."""
    return request.path if request.batch_id is None else request.batch_id


def queue_of(request: StepRequest) -> str | None:
    """Return the queue of a remote step; `None` for a local one."""
    if isinstance(request.step, MapOver):
        return request.runs_on
    return request.runs_on or getattr(request.step, "runs_on", None)


def _batched(requests: Iterator[StepRequest], queue: str, together: int, batches: Batches) -> Iterator[StepRequest]:
    """Yield the requests with their queue and batch."""
    for number in itertools.count():
        group = list(itertools.islice(requests, together))
        if not group:
            return
        if together == 1:
            yield attrs.evolve(group[0], runs_on=queue)
            continue
        above = group[0].path.rpartition("/")[0]
        batch = Batch(path=StepPath(f"{above}/~b{number}"), size=len(group))
        batches[batch.path] = batch
        yield from (attrs.evolve(request, runs_on=queue, batch_id=batch.path) for request in group)


# --- Worker slot of a run -----------------------------------------------------------------------------------------


class WorkerSlot:
    """One run's slot; see the module."""

    def __init__(self, places: trio.CapacityLimiter, left: Callable[[], None] = lambda: None) -> None:
        self._places, self._left = places, left
        self._away = 0
        self._acquired = False

    def reserve(self) -> bool:
        """Take the slot if it is free; return whether it is held."""
        with contextlib.suppress(trio.WouldBlock):
            if self._acquired:
                return True
            self._places.acquire_on_behalf_of_nowait(self)
            self._acquired = True
        return self._acquired

    async def wait(self) -> None:
        """Take the slot as soon as it is free."""
        await self._acquire()

    def close(self) -> None:
        """Release the slot for good; call `left` once."""
        self._release()
        left, self._left = self._left, lambda: None
        left()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the slot, except while the run waits for remote steps."""
        if not self._acquired:
            await self._acquire()
        token = SLOT.set(self)
        try:
            yield
        finally:
            SLOT.reset(token)
            self._release()

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Release the slot while the whole run waits for remote steps."""
        self._away += 1
        self.close()
        try:
            yield
        finally:
            self._away -= 1
        if not self._away:
            await self._acquire()

    async def _acquire(self) -> None:
        await self._places.acquire_on_behalf_of(self)
        self._acquired = True

    def _release(self) -> None:
        if self._acquired:
            self._acquired = False
            self._places.release_on_behalf_of(self)


SLOT: ContextVar[WorkerSlot | None] = ContextVar("flujo seat", default=None)
"""Slot of the current task's run, in a worker."""


@contextlib.asynccontextmanager
async def without_slot() -> AsyncIterator[None]:
    """Run the block without the run's slot, if it has one."""
    slot = SLOT.get()
    async with contextlib.nullcontext() if slot is None else slot.released():
        yield
