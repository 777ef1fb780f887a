"""Why a guest run that has to wait in a thread does not fall asleep at once.

Waking an idle guest in its thread costs more than most calls between the two libraries take. So whoever crosses over
keeps the guest awake for a few rounds: one task spins for all of them, and everybody else can park, where cancellation
reaches them at once. A guest that is parked on the host's loop is woken instead, for next to nothing.
"""

from __future__ import annotations

from trio.lowlevel import Abort, Task, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

from .parked_guest import ParkedGuest

ROUNDS_AWAKE = 10
"""How many scheduling rounds a guest stays awake after the last crossing."""


class Vigil:
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
