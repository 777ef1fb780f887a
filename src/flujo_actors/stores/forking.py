"""Connections and forks: a child must never use what its parent opened.

Rules:

1. Before a fork, every living store finishes what it is doing, and a store on a file closes its connections: SQLite
   keeps its locks in the process's memory, and a child that inherits them would believe that it holds them.
2. After it, parent and child each open anew when they next need to.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forkable(Protocol):
    """What wants to be told about forks."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_living: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(store: Forkable) -> None:
    """Tell the store of every fork from now on, for as long as it lives."""
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
