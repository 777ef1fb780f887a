"""The slot that a run holds in a worker: given back while it waits for other workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar

import trio


class Seat:
    """One run's slot; see the module."""

    def __init__(self, places: trio.CapacityLimiter, left: Callable[[], None]) -> None:
        self._places, self._left = places, left
        self._away = 0
        self._seated = False

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold the slot, but for the time in which the run is away."""
        await self._sit()
        token = SEAT.set(self)
        try:
            yield
        finally:
            SEAT.reset(token)
            self._stand()

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Give the slot back; it is taken again when nothing of the run is away any more."""
        self._away += 1
        self._stand()
        self._left()
        try:
            yield
        finally:
            self._away -= 1
        if not self._away:
            await self._sit()

    async def _sit(self) -> None:
        await self._places.acquire_on_behalf_of(self)
        self._seated = True

    def _stand(self) -> None:
        if self._seated:
            self._seated = False
            self._places.release_on_behalf_of(self)


SEAT: ContextVar[Seat | None] = ContextVar("flujo seat", default=None)
"""The slot of the run that the current task belongs to, in a worker."""


@contextlib.asynccontextmanager
async def away_from_seat() -> AsyncIterator[None]:
    """What is done in the block needs no slot, if the run has one."""
    seat = SEAT.get()
    async with contextlib.nullcontext() if seat is None else seat.away():
        yield
