"""Timer thread: callbacks by the monotonic clock, independent of event loops.

There is one such thread per process. It starts with the first timer and ends after an idle period. Callbacks must be
brief and must not raise.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from .._core import seams
from ..errors import StoreError
from ..stores._fork_safety import watch_forks

Ring: TypeAlias = Callable[[], object]

_IDLE_S = 30.0
"""Idle time after which the thread ends."""


class TimerThread:
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
        """Call `ring` after `after_s` seconds; raise `StoreError` without a thread."""
        if seams.set_alarm is not None:
            seams.set_alarm(after_s, ring)
            return
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
            del ring  # a called timer keeps nothing alive

    def _next(self) -> Ring | None:
        """Wait for the next timer; `None` after the idle time."""
        with self._changed:
            self._watched = self._changed.wait_for(lambda: bool(self._pending), _IDLE_S)
            while self._pending:
                wait_s = self._pending[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._pending)[2]
                self._changed.wait(wait_s)
            return None

    def before_fork(self) -> None:
        """Do nothing: the child sets its own alarms."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the thread lives on."""

    def after_fork_in_child(self) -> None:
        self._reset()


def no_thread(error: RuntimeError) -> StoreError:
    """Return the error of a store operation without a thread."""
    return StoreError(
        f"no thread could be started to reach the store ({error}): the process has as many as it may have; nothing was "
        "written, try again when there are fewer"
    )


alarms = TimerThread()
"""The alarms of this process."""
