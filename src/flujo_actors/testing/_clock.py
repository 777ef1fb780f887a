"""A clock for tests: nobody waits, and everything happens in order.

Rules:

1. Time stands still while anything can be done, and jumps to the next deadline when nothing can.
2. Work outside the run's loop (model agents, stores, sync steps in threads) goes on in real time; the clock waits
   for it.
"""

from __future__ import annotations

import math

import trio
import trio.testing

from .._bridge.threads import threads_under_way
from .._bridge.to_asyncio import calls_under_way
from .._durable.group_commit import commits_under_way
from .._durable.store_wait import calls_under_way as store_calls_under_way

PATIENCE_S = 0.01
"""How long to wait in real time before looking again whether work outside the loop has ended."""


class JumpingClock(trio.abc.Clock):
    """A trio clock that jumps over waiting: `trio.run(main, clock=JumpingClock())`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._looked = False

    def start_clock(self) -> None:
        """Nothing to do: time goes on by jumps."""

    def current_time(self) -> float:
        """Seconds since the beginning, as the run experiences them."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called when no task can run: jump, unless something may still come from outside."""
        if outside_work():
            self._looked = False
            return PATIENCE_S
        if not self._looked:  # look for I/O once without waiting
            self._looked = True
            return 0.0
        self._looked = False
        if deadline == math.inf:
            return PATIENCE_S
        self._now = max(self._now, deadline)
        return 0.0


def outside_work() -> bool:
    """Whether something may still come from outside the loop that a mock clock drives."""
    if not trio.lowlevel.in_trio_run():  # not yet, or not any more, as when a loop of asyncio shuts down
        return calls_under_way() > 0
    in_threads = trio.testing.active_thread_count() > 0 or threads_under_way()
    return in_threads or commits_under_way() or store_calls_under_way() or calls_under_way() > 0
