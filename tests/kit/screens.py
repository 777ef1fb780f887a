"""A terminal for tests: a real pty, a program in it, and what a screen of some size would show."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyte

PATIENCE_S = 120.0
NOT_INHERITED = {"NO_COLOR", "CI", "FORCE_COLOR", "COLUMNS", "LINES"}
"""What would say how to draw; workers of the tests are told a size that is not this terminal's."""


class Screen:
    """A program in a pty of so many columns and lines."""

    def __init__(
        self, arguments: list[str], *, columns: int = 80, lines: int = 24, cwd: Path | None = None, **environment: str
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self.program = pexpect.spawn(
            arguments[0],
            arguments[1:],
            dimensions=(lines, columns),
            env={**kept, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1", **environment},  # type: ignore[arg-type]
            cwd=None if cwd is None else str(cwd),
            timeout=PATIENCE_S,
        )
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.tallest = 0
        """How many lines the screen has shown at most."""

    def resize(self, *, columns: int, lines: int) -> None:
        """As if somebody pulled at the window."""
        self.program.setwinsize(lines, columns)
        self._screen.resize(lines, columns)

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without those that are empty at its end."""
        lines = [line.rstrip() for line in self._screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def scrolled(self) -> list[str]:
        """What has left the screen at its top."""
        return ["".join(line[column].data for column in range(self._screen.columns)).rstrip() for line in self._top]

    @property
    def _top(self) -> Any:
        return self._screen.history.top

    def read(self, seconds: float = 0.05) -> bool:
        """Take in what the program has written; false once it has ended."""
        try:
            data = self.program.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        self.tallest = max(self.tallest, len(self.shown))
        return True

    def until(self, seen: Callable[[Screen], bool]) -> None:
        """Read until the screen shows what is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while not seen(self):
            going = self.read()
            if not going and not seen(self):
                raise AssertionError(f"the program ended; the screen shows {self.shown!r}")
            assert time.monotonic() < deadline, f"the screen shows {self.shown!r}"

    def until_text(self, text: str) -> None:
        """Read until a text is on the screen, or has been."""
        self.until(lambda screen: any(text in line for line in [*screen.scrolled, *screen.shown]))

    def end(self) -> int:
        """Read to the program's end: its exit code, 128 and more if a signal ended it."""
        deadline = time.monotonic() + PATIENCE_S
        while self.read(0.2):
            assert time.monotonic() < deadline, f"it does not end; the screen shows {self.shown!r}"
        self.program.close()
        if self.program.exitstatus is not None:
            return int(self.program.exitstatus)
        return 128 + int(self.program.signalstatus)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.program.sendintr()


def python(script: str) -> list[str]:
    """A program of Python."""
    return [sys.executable, "-c", script]
