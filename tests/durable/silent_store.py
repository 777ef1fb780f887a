"""A store that falls silent when it is told to: the calls that were named block until it speaks again."""

from __future__ import annotations

import threading
from typing import Any

from flujo_actors._core.records.records import RunQuery
from flujo_actors.stores._memory_store import MemoryStore


class SilentStore:
    """Passes every call on to a store; what is named in `silent` waits for `speak`."""

    def __init__(self, *silent: str) -> None:
        self.inner = MemoryStore()
        self.silent = set(silent)
        self.asked, self.speaks = threading.Event(), threading.Event()

    def is_free(self, run_id: str, *, epoch: int) -> bool:
        """Whether the run exists, was claimed that often, and has no owner."""
        runs = self.inner.find(RunQuery())
        return [(run.epoch, run.leased) for run in runs if run.run_id == run_id] == [(epoch, False)]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in self.silent:
            return method

        def wait(*args: Any, **named: Any) -> Any:
            self.asked.set()
            assert self.speaks.wait(120)
            return method(*args, **named)

        return wait
