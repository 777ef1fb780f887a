"""Which of the long calls to an event loop begin in its next turn: beyond some, those under way go on first.

Ten thousand agents that begin in one turn of the loop are all half-way at once, each with tens of kilobytes of frames
and contexts, though only one of them can be at work. Rules:

1. While fewer than `FREELY` calls are under way, a call begins at once: a loop does the same for many in one turn with
   less effort than in many turns.
2. Further ones begin in the order in which they came, at least one and at most `MOST` in every turn of the loop. In
   between all that have begun go on, up to where they wait for something.
3. Nothing bounds how many are under way: a call that waits, for a provider or for another call, holds up nobody.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

FREELY = 128
MOST = 2


class Starts:
    """The long calls to one loop; for the thread of that loop."""

    __slots__ = ("_loop", "_waiting", "under_way")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self.under_way = 0
        """How many have begun and not ended; who begins and ends them counts them."""

    def add(self, begin: Callable[[], None]) -> None:
        """Begin a call now or, if there are many, in one of the next turns of the loop."""
        if not self._waiting:
            if self.under_way < FREELY:
                begin()
                return
            self._loop.call_soon(self._begin_some)
        self._waiting.append(begin)

    def _begin_some(self) -> None:
        begun = 0
        while self._waiting and (begun < MOST or self.under_way < FREELY):
            begun += 1
            self._waiting.popleft()()
        if self._waiting:
            self._loop.call_soon(self._begin_some)
