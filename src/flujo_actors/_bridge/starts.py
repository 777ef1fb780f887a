"""Which of the long calls to an event loop begin in its next turn: those under way go on before further ones begin.

Ten thousand agents that begin in one turn of the loop are all half-way at once, each with tens of kilobytes of frames
and contexts, though only one of them can be at work. Rules:

1. Calls begin in the order in which they came: at least one in every turn of the loop, and no further one after
   `TURN_S` or after `MOST` of them. Then all that have begun go on, up to where they wait for something.
2. Nothing bounds how many are under way: a call that waits, for a provider or for another call, holds up nobody.
3. A call that comes to a loop where none begins begins at once.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from time import monotonic

from .guest_rounds import TURN_S

MOST = 2
"""How many calls begin in one turn at most. Those of another thread are but announced in it, which takes no time."""


class Starts:
    """The calls to one loop that have yet to begin; for the thread of that loop."""

    __slots__ = ("_begun", "_loop", "_until", "_waiting")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._begun = 0
        self._until = 0.0

    def add(self, begin: Callable[[], None]) -> None:
        """Begin a call in this turn of the loop if there is room, and else in one of the next."""
        self._waiting.append(begin)
        self._begin_some()

    def _begin_some(self) -> None:
        while self._waiting and self._has_room():
            if self._begun == 0:
                self._until = monotonic() + TURN_S
                self._loop.call_soon(self._turn_is_over)
            self._begun += 1
            self._waiting.popleft()()

    def _has_room(self) -> bool:
        return self._begun == 0 or (self._begun < MOST and monotonic() < self._until)

    def _turn_is_over(self) -> None:
        self._begun = 0
        self._begin_some()
