"""Why a guest run does not fall asleep at once.

An idle guest waits for I/O in a thread, and waking it from there costs more than most calls between the two
libraries take. So whoever crosses over keeps the guest awake for a few rounds: one task spins for all of them,
and everybody else can park, where cancellation reaches them at once.
"""

from __future__ import annotations

from trio.lowlevel import Abort, Task, cancel_shielded_checkpoint, current_task, reschedule, wait_task_rescheduled

ROUNDS_AWAKE = 10
"""How many scheduling rounds a guest stays awake after the last crossing."""


class Vigil:
    """Keeps one guest run awake while it is being called."""

    __slots__ = ("_rounds", "_sleeper")

    def __init__(self) -> None:
        self._rounds = 0
        self._sleeper: Task | None = None

    @property
    def awake(self) -> bool:
        """Whether somebody crossed over not long ago."""
        return self._rounds > 0

    def keep(self) -> None:
        """Somebody crossed over: stay awake for a few rounds from now."""
        self._rounds = ROUNDS_AWAKE
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            reschedule(sleeper)

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
