"""Alarms: calls at a time of the machine's monotonic clock, made by a thread of its own, whatever event loops do.

There is one such thread per process. It starts when the first alarm is set and ends when it has had none for a while.
What it calls must be brief and must not raise.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ..errors import StoreError
from ..stores._forking import watch_forks

Ring: TypeAlias = Callable[[], object]

_IDLE_S = 30.0
"""How long the thread waits for another alarm before it ends."""


class Alarms:
    """The alarms of one process."""

    def __init__(self) -> None:
        self._reset()
        watch_forks(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[tuple[float, int, Ring]] = []
        self._numbers = itertools.count()
        self._watched = False

    def set(self, after_s: float, ring: Ring) -> None:
        """Call `ring` in so many seconds; `StoreError` if there is no thread to do it."""
        alarm = (time.monotonic() + after_s, next(self._numbers), ring)
        with self._changed:
            if not self._watched:
                self._start()
            heapq.heappush(self._pending, alarm)
            if self._pending[0] is alarm:
                self._changed.notify()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._watch, name="flujo_actors alarms", daemon=True).start()
        except RuntimeError as error:
            raise no_thread(error) from error
        self._watched = True

    def _watch(self) -> None:
        while (ring := self._next()) is not None:
            ring()
            del ring  # nothing is kept alive by having been called

    def _next(self) -> Ring | None:
        """Wait for the next alarm; `None` if there was none for a while, and the thread is to end."""
        with self._changed:
            self._watched = self._changed.wait_for(lambda: bool(self._pending), _IDLE_S)
            while self._pending:
                wait_s = self._pending[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._pending)[2]
                self._changed.wait(wait_s)
            return None

    def before_fork(self) -> None:
        """Nothing to do: the child sets its own alarms."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do: the thread lives on."""

    def after_fork_in_child(self) -> None:
        self._reset()


def no_thread(error: RuntimeError) -> StoreError:
    """What a caller is told who needs a thread for the store when the system has none to give."""
    return StoreError(
        f"no thread could be started to reach the store ({error}): the process has as many as it may have; nothing was "
        "written, try again when there are fewer"
    )


alarms = Alarms()
"""The alarms of this process."""
