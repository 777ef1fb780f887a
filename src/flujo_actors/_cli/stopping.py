"""Signals: the first asks the run to stop and lets it clean up, the second stops at once.

Rules:

1. A first Ctrl-C or SIGTERM cancels the run; the command ends with 130 or 143 when its cleanup is over.
2. A second one ends the process, and says what was under way.
3. Between two parts of a run, while somebody is asked, Ctrl-C is Python's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import anyio

from .._durable.watches import ringer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """What a process was told by signals."""

    def __init__(self, left: Callable[[], str]) -> None:
        self._left = left
        """Says what is under way."""
        self.told: int | None = None
        """The signal that came first."""
        self._cancel: Callable[[], object] | None = None

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """A time in which signals are for the run."""
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def cancelling(self, scope: anyio.CancelScope) -> Iterator[None]:
        """A first signal cancels this scope, also if it came before; called in the loop."""
        ring = ringer()
        self._cancel = lambda: ring(scope.cancel)
        if self.told is not None:
            scope.cancel()
        try:
            yield
        finally:
            self._cancel = None

    @property
    def code(self) -> int | None:
        """How the process ends, if it was told to."""
        return None if self.told is None else 128 + self.told

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.told is not None:
            self._end(number)
        self.told = number
        if self._cancel is not None:
            self._cancel()

    def _end(self, number: int) -> None:
        """Now: nothing is cleaned up, and the cursor is shown again where it was hidden."""
        shown = "\x1b[?25h\n" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else ""
        os.write(2, f"{shown}stopped at once; {self._left()}\n".encode("utf-8", "replace"))
        os._exit(128 + number)
