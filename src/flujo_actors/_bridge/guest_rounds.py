"""The scheduling rounds of a trio run in guest mode, and when they take place on the host's event loop.

Rules:

1. Rounds follow one another within one turn of the loop while trio has work of its own: a turn costs as much as a
   round, and a run that needs nothing from the loop need not pay for it.
2. After `TURN_S` the loop has its turn, whatever trio has left to do; and at once after a round that cancelled
   something on the loop, which is to hear of it within a round.
3. While the guest is kept awake, somebody waits for asyncio: then every round has a turn of its own.
4. What was left for the end of a round happens outside of trio's tasks, where only asyncio runs.
5. A closed loop has no turns; whoever ends the guest takes the rounds as they come.
6. Between rounds an idle guest is parked on the loop, if the loop can do that, and otherwise waits in a thread.
"""

from __future__ import annotations

import queue
from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import monotonic

from trio.lowlevel import Abort, Task, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from .arrivals import Arrivals
from .parked_guest import ParkedGuest, Round, watched_by_loop

TURN_S = 0.001
"""How long a guest may keep the loop from its other work before it begins no further round."""


class Rounds:
    """The rounds of one guest run."""

    __slots__ = ("_arrivals", "_at_the_end", "_delivered", "_gives_way", "_in_turn", "_loop", "_next", "keep_awake")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.keep_awake = KeepAwake()
        self._loop = loop
        self._next: Round | None = None
        self._delivered: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self._at_the_end: list[Callable[[], None]] = []
        self._gives_way = self._in_turn = False
        self._arrivals: Arrivals | None = None

    def take_over(self) -> bool:
        """Drive the rounds from now on without a thread, if the loop can do that; after trio asked for its first."""
        assert self._next is not None
        self.keep_awake.parked = watched_by_loop(self._next, self._loop, self.soon)
        if self.keep_awake.parked is not None:
            self._next = self.keep_awake.parked.round
        return self.keep_awake.parked is not None

    def begin(self) -> None:
        """In a task of the run: what comes from threads takes the way over the loop, if the loop drives the rounds."""
        if self.keep_awake.parked is not None:
            self._arrivals = Arrivals(self._loop, self._hear)

    def end(self) -> None:
        """The run is over."""
        if self._arrivals is not None:
            self._arrivals.end()

    # --- what trio asks for ---

    def soon(self, round_: Round) -> None:
        """Trio has work left and wants another round."""
        self._next = round_
        if not self._in_turn:
            self._ask_for_turn()

    def soon_threadsafe(self, round_: Round) -> None:
        """The thread in which trio waited for I/O has news for it."""
        self._delivered.put(round_)
        try:
            self._loop.call_soon_threadsafe(self._turn_with_news)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def at_the_end(self, do: Callable[[], None]) -> None:
        """From a trio task: do this when the round is over."""
        self._at_the_end.append(do)

    def give_way(self) -> None:
        """The loop has got something to do that cannot wait for more than a round."""
        self._gives_way = True

    # --- turns of the loop ---

    def _ask_for_turn(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._turn)

    def _turn_with_news(self) -> None:
        self._next = self._delivered.get_nowait()
        self._turn()

    def _hear(self) -> None:
        """A thread has news for a task: a guest that was parked has a turn at once, which is this one."""
        assert self._arrivals is not None
        if self._next is not None or self._in_turn:
            self._arrivals.take()
            return
        self._in_turn = True
        try:
            self.keep_awake.wake()
            self._arrivals.take()
        finally:
            self._in_turn = False
            if self._next is not None:
                self._turn()

    def _turn(self) -> None:
        until = monotonic() + TURN_S
        if self.keep_awake.parked is not None:
            self.keep_awake.parked.look_first()
        self._in_turn = True
        try:
            self._take_round()
            while self._next is not None and not self._gives_way and not self.keep_awake.awake and monotonic() < until:
                self._take_round()
        finally:
            self._in_turn = self._gives_way = False
            if self._next is not None:
                self._ask_for_turn()

    def _take_round(self) -> None:
        round_, self._next = self._next, None
        assert round_ is not None
        round_()
        if self._at_the_end:
            left, self._at_the_end = self._at_the_end[::-1], []
            while left:
                left.pop()()

    def take_without_loop(self, patience_s: float) -> None:
        """Take the next round in the place of a closed loop; `queue.Empty` if there is none for so long."""
        parked = self.keep_awake.parked
        if self._arrivals is not None:
            self._arrivals.take()
        if self._next is None and parked is not None and not parked.wait_without_loop(patience_s):
            raise queue.Empty
        if self._next is None:
            self._next = self._delivered.get(timeout=patience_s)
        if parked is not None:
            parked.look()
        self._take_round()


# --- staying awake ----------------------------------------------------------------------------------------------
#
# Waking an idle guest in its thread costs more than most calls between the two libraries take. So whoever crosses over
# keeps the guest awake for a few rounds: one task spins for all of them, and everybody else can park, where
# cancellation reaches them at once. A guest that is parked on the host's loop is woken instead, for next to nothing.

ROUNDS_AWAKE = 10
"""How many scheduling rounds a guest stays awake after the last crossing."""


class KeepAwake:
    """Keeps one guest run awake while it is being called."""

    __slots__ = ("_rounds", "_sleeper", "parked")

    def __init__(self) -> None:
        self.parked: ParkedGuest | None = None
        """The guest, if it needs no thread to wait in."""
        self._rounds = 0
        self._sleeper: Task | None = None

    @property
    def awake(self) -> bool:
        """Whether somebody crossed over not long ago."""
        return self._rounds > 0

    def keep(self) -> None:
        """Somebody crossed over: stay awake for a few rounds from now."""
        if self.parked is not None:
            self.parked.wake()
            return
        self._rounds = ROUNDS_AWAKE
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            reschedule(sleeper)

    def wake(self) -> None:
        """Somebody in the host's thread is about to give the guest something to do."""
        if self.parked is not None:
            self.parked.wake()

    async def watch(self) -> None:
        """Spin while there are rounds left, sleep while there are none; for ever."""
        while True:
            while self._rounds:
                self._rounds -= 1
                await cancel_shielded_checkpoint()
            self._sleeper = current_task()
            await wait_task_rescheduled(self._give_up)

    def _give_up(self, _: object) -> Abort:
        self._sleeper = None
        return Abort.SUCCEEDED
