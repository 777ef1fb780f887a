"""Seams of a process: clocks, chance, identity, timers and threads.

Rules:

1. Each name is the real thing by default. Code of a run reads it when it is needed: `seams.clock.monotonic()`.
2. `flujo_actors.testing.simulate` replaces them for a simulated process, and restores them; nothing else does.
3. A seam costs one attribute, or one comparison with None: no call, no context variable and no object per run.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias


class Clock(Protocol):
    """Clocks of a process; the module `time` is one."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""

    def time(self) -> float:
        """Return epoch seconds."""


class CallObserver(Protocol):
    """Observer of calls of user code."""

    def __call__(self, run_id: str, path: str, key: str | None = None) -> None:
        """Note a step's or unit's next call with its key."""


StartThread: TypeAlias = Callable[[Callable[[], Any], Callable[[Any], object]], None]
"""Run a function and pass its outcome on, as trio's `start_thread_soon`."""

clock: Clock = time
"""Monotonic and wall clock."""

boot_clock: Callable[[], float] | None = None
"""Clock that runs during suspends; None for that of the system."""

turn_clock: Callable[[], float] = time.monotonic
"""Clock that limits a guest's turn of its host's loop."""

generator: random.Random = random.Random()
"""Source of jitter, and of selections without a seed."""

random_bytes: Callable[[int], bytes] = os.urandom
"""Source of ids of runs, forks and events."""

new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
"""Source of names of claims."""

process: Any = None
"""Identity of this process; None for that of the system."""

start_thread: StartThread | None = None
"""Executor of synchronous user code; None for threads."""

start_store_call: StartThread | None = None
"""Executor of store calls; None for threads."""

set_alarm: Callable[[float, Callable[[], object]], None] | None = None
"""Timers independent of event loops; None for the timer thread."""

on_call: CallObserver | None = None
"""Observer of calls of user code."""


def jitter() -> float:
    """Return a random number from 0 to 1."""
    return generator.random()
