"""Connections and forks: a child process never uses its parent's connections.

Rules:

1. Before a fork, every live store completes its operations, and a file store closes its connections.
2. After it, parent and child each reconnect on demand.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Forkable(Protocol):
    """Object notified of forks."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class ForkGate:
    """Gate that counts its users; shutting waits until all have left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A time in which no fork should happen."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self, *, timeout_s: float) -> bool:
        """Return whether all users left before the timeout; otherwise the gate reopens."""
        with self._changed:
            self._shut = True
            self._shut = self._changed.wait_for(lambda: not self._inside, timeout_s)
            self._changed.notify_all()
            return self._shut

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()


_living: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(store: Forkable) -> None:
    """Notify the store of every fork during its lifetime."""
    _living.add(store)


def _tell(what: Callable[[Forkable], None]) -> Callable[[], None]:
    def tell_all() -> None:
        for store in list(_living):
            what(store)

    return tell_all


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(
        before=_tell(lambda store: store.before_fork()),
        after_in_parent=_tell(lambda store: store.after_fork_in_parent()),
        after_in_child=_tell(lambda store: store.after_fork_in_child()),
    )
