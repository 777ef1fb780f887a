"""Other processes for the suite: forked, watched and, where a clause asks for it, killed."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

ANSWERED, REFUSED = 0, 3
"""How a child that did, or did not, get what all of them wanted ends."""


def all_at_once(count: int, work: Callable[[int], int]) -> list[int]:
    """Run `work(number)` in that many processes, which all begin at the same moment; their exit codes."""
    ready, go = os.pipe(), os.pipe()
    children = [_forked(functools.partial(_when_told, ready, go, work, number)) for number in range(count)]
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"!" * count)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for end in (*ready, *go):
        os.close(end)
    return codes


def kill_after(work: Callable[[Callable[[], None]], None], reports: int) -> None:
    """Run `work(report)` in a process and kill it with `SIGKILL` as soon as it has reported that often."""
    reading, writing = os.pipe()
    child = _forked(lambda: _reporting(work, writing))
    os.close(writing)
    for _ in range(reports):
        assert os.read(reading, 1), "the process ended before it was killed"
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _reporting(work: Callable[[Callable[[], None]], None], writing: int) -> int:
    work(lambda: _tell(writing))
    signal.pause()
    return 0


def _tell(writing: int) -> None:
    os.write(writing, b"!")


def _when_told(ready: tuple[int, int], go: tuple[int, int], work: Callable[[int], int], number: int) -> int:
    os.write(ready[1], b"!")
    os.read(go[0], 1)
    return work(number)


def _forked(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # stores are made for forks of processes with threads
        child = os.fork()
    if child == 0:
        _live(work)
    return child


def _live(work: Callable[[], int]) -> NoReturn:
    """The whole life of a child; whatever happens in it must not return into the parent's code."""
    code = 1
    try:
        code = work()
    finally:
        if code == 1:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
