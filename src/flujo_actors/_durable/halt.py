"""Telling a run from outside that it shall end: its steps are cancelled, and it ends as aborted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from .._core.attempts import Stopped
from .._core.outcomes import Aborted

T = TypeVar("T")


class Halt:
    """Ends the steps of one run when it is told to."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        """Around the steps."""
        self._reason: str | None = None
        self._undoes = True

    @property
    def told(self) -> str | None:
        """Why the run shall end and be undone, if it was told so."""
        return self._reason if self._undoes else None

    def now(self, reason: str, *, undoes: bool = True) -> None:
        """Cancel the steps; the first reason counts."""
        if self._reason is None:
            self._reason, self._undoes = reason, undoes
            self.scope.cancel()

    @property
    def stopped(self) -> Stopped | None:
        """How the steps end, if they were told to."""
        if self._reason is None:
            return None
        return Stopped(outcome=Aborted(reason=self._reason), undoes=self._undoes)

    async def unless_told(self, work: Callable[[], Awaitable[T]]) -> T | Stopped:
        """How the work ended, or why it did not; it is not begun if it was told before."""
        if self.stopped is None:
            with self.scope:
                return await work()
        assert self.stopped is not None
        return self.stopped
