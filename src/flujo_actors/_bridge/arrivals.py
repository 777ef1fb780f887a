"""What comes back from a thread to a trio run: called in the run's own thread, by the shortest way there is.

Rules:

1. It is called once, in the order of coming, also in a run whose loop was closed, by whoever brings that to its end;
   not at all if the run is over.
2. A run by itself is told through its token. That wakes a task of trio's own, which then asks to be woken again: three
   system calls and a scheduling round.
3. A run that is a guest on an asyncio loop is told by the loop, which hears it between two rounds.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import trio
from outcome import Error, capture

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop  # which trio programs do without

Arrival: TypeAlias = Callable[[], object]

Post: TypeAlias = Callable[[Arrival], object]
"""From any thread: have something called in the run's."""

_post: trio.lowlevel.RunVar[Post | None] = trio.lowlevel.RunVar("flujo_actors arrivals", None)


def way_in() -> Post:
    """How the current trio run is reached from other threads."""
    return _post.get() or _through(trio.lowlevel.current_trio_token())


def _through(token: trio.lowlevel.TrioToken) -> Post:
    def post(arrival: Arrival) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(arrival)

    return post


class Arrivals:
    """What comes to a guest run whose rounds are driven by an asyncio loop; made in a task of the run."""

    __slots__ = ("_come", "_hear", "_loop", "_over", "_token")

    def __init__(self, loop: AbstractEventLoop, hear: Callable[[], object]) -> None:
        self._loop, self._hear = loop, hear
        """What the loop calls, which then takes what has come."""
        self._come: deque[Arrival] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._over = False
        _post.set(self.post)

    def end(self) -> None:
        """The run is over: nothing is called any more."""
        self._over = True
        self._come.clear()

    def post(self, arrival: Arrival) -> None:
        """From any thread: see `Post`."""
        self._come.append(arrival)
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:  # the loop was closed
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._hear)

    def take(self) -> None:
        """Call what has come."""
        while self._come and not self._over:
            got = capture(self._come.popleft())
            if isinstance(got, Error):
                self._token.run_sync_soon(got.unwrap)  # which ends the run, as it does in a trio program
