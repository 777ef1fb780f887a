"""Other processes for the tests: forked after the imports, killed, stopped, or let run to their end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

KILLED = -signal.SIGKILL


def in_another_process(work: Callable[[], object]) -> int:
    """Do the work in a fork and wait for it: 0 if it went well, `KILLED` if it was killed."""
    return ended(forked(work))


def forked(work: Callable[[], object]) -> int:
    """Begin the work in a fork; its process id."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # stores are made for forks of processes with threads
        child = os.fork()
    if child == 0:
        _live(work)
    return child


def ended(child: int) -> int:
    """Wait for a child; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def all_at_once(count: int, work: Callable[[int], int]) -> list[int]:
    """`work(number)` in that many processes, which begin at the same moment; what each returned."""
    ready, go = os.pipe(), os.pipe()

    def when_told(number: int) -> None:
        os.write(ready[1], b"!")
        os.read(go[0], 1)
        os._exit(work(number))

    children = [forked(lambda number=number: when_told(number)) for number in range(count)]
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"!" * count)
    codes = [ended(child) for child in children]
    for end in (*ready, *go):
        os.close(end)
    return codes


def _live(work: Callable[[], object]) -> NoReturn:
    """The whole life of a child; whatever happens in it must not return into the parent's code."""
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


class Points:
    """Counts the points that a process passes, and kills it at one of them."""

    def __init__(self, kill_at: int | None = None, *, name: str | None = None) -> None:
        self._kill_at, self._name = kill_at, name
        self._lock = threading.Lock()
        self.passed: list[str] = []

    def __call__(self, name: str) -> None:
        with self._lock:
            self.passed.append(name)
            if len(self.passed) == self._kill_at or name == self._name:
                os.kill(os.getpid(), signal.SIGKILL)


class WorldChanges(Points):
    """Counts a point only if something outside of the process may differ from what it was at the point before.

    Before a store call, everything is as it was after the last one or after the last effect: to be killed there is to
    be killed at that point.
    """

    def __call__(self, name: str) -> None:
        if not name.startswith("before ") or not self.passed:
            super().__call__(name)


class PointedStore:
    """A store with a point before and after every call, and around the commit of a transaction."""

    def __init__(self, store: Any, points: Points) -> None:
        self._store, self._points = store, points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            self._points(f"before {name}")
            answer = method(*arguments, **options)
            self._points(f"after {name}")
            return answer

        return call

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self._points("before transaction")
        with self._store.transaction() as transaction:
            yield PointedTransaction(transaction, self._points)
            self._points("before commit")
        self._points("after commit")

    def close(self) -> None:
        self._store.close()


class PointedTransaction:
    """A transaction with a point before and after its append."""

    def __init__(self, transaction: Any, points: Points) -> None:
        self._transaction, self._points = transaction, points
        self.connection = transaction.connection

    def append(self, append: Any) -> None:
        self._points("before transaction.append")
        self._transaction.append(append)
        self._points("after transaction.append")
