"""Where a run shows its outcomes to whoever reads it, and what that reader wants to be told besides."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from .._core.outcomes import ToldOutcome
from .._core.paths import StepPath
from ..actors._mailbox import Mailbox

if TYPE_CHECKING:  # what only readers have who choose
    from .._dsl.shown_chunks import ShownChunks


class Outlet(Mailbox[ToldOutcome]):
    """The box between a run and its reader: bounded, so that a slow reader slows the run."""

    __slots__ = ("chunks", "started", "tools")

    def __init__(
        self, capacity: int, *, started: bool = False, tools: bool = False, chunks: ShownChunks | None = None
    ) -> None:
        super().__init__(capacity)
        self.chunks = chunks
        """Whose chunks the reader wants to see; `None` for all."""
        self.started = started
        """Whether the reader wants to know when a step begins."""
        self.tools = tools
        """Whether the reader wants to know of tool calls."""

    def shows(self, path: StepPath) -> bool:
        """Whether the reader sees the chunks of the step at a path."""
        return self.chunks is None or self.chunks.shows(path)

    def squeeze_in(self, outcome: ToldOutcome) -> None:
        """Add an outcome, whether there is room or not: for tellers that cannot wait, and have little to say."""
        with contextlib.suppress(trio.ClosedResourceError, trio.BrokenResourceError):  # nobody reads any more
            if not self.offer(outcome):
                self._items.append(outcome)
                self._accepted += 1
