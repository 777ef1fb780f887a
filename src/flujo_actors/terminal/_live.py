"""The live view: a few lines at the bottom of the terminal that are drawn again eight times a second.

Rules:

1. It is never taller than the terminal less two lines, and no line is wider than it: nothing scrolls by itself.
2. A step that failed is told above the view, as an ordinary line that stays; of the many of a map, the first few.
3. A thread draws, so that the clock goes on while the run's loop is busy. It shares the outline under a lock.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from .._core.light_records import LightRecord
from .._core.live_rows import Row, Tone, live_rows
from .._core.outline import Outline
from .._core.path_names import step_around
from .._core.paths import ROOT, StepPath, is_tried, whose
from .._core.safe_text import one_line
from ..errors import DeclarationError

if TYPE_CHECKING:
    from rich.text import Text

FRAMES_PER_S = 8
_TAIL_CHARS = 4096
_FAILURES_TOLD = 20
_STYLES: dict[Tone, str] = {"good": "green", "bad": "red", "running": "cyan", "waiting": "yellow", "dim": "dim"}


class LiveView:
    """Shows a run in a terminal; see the module's rules."""

    shows_text = True

    def __init__(self, file: TextIO, *, color: bool, title: str = "") -> None:
        console, live = _rich()
        self._outline, self._tails, self._title = Outline(), dict[StepPath, str](), title
        self._failures = 0
        self._lock = threading.RLock()
        self._console = console(file=file, force_terminal=True, no_color=not color, highlight=False, soft_wrap=False)
        self._live = live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=FRAMES_PER_S,
            redirect_stdout=sys.stdout.isatty(),  # what steps print stays above the view
            redirect_stderr=file is sys.stderr,
            vertical_overflow="crop",
        )
        self._live.start()

    def take(self, record: LightRecord) -> None:
        """Something happened."""
        with self._lock:
            self._outline.take(record)
            if record.kind == "settled":
                self._drop_text(record.path)
        if record.kind == "settled" and record.status == "failure" and not is_tried(record.path):
            self._tell_failure(record)

    def text(self, path: StepPath, piece: str) -> None:
        """A step said something."""
        with self._lock:
            self._tails[path] = (self._tails.get(path, "") + piece)[-_TAIL_CHARS:]

    def said(self, path: StepPath, tail: str) -> None:
        """What a step of another process has said last."""
        with self._lock:
            node = self._outline.nodes.get(path)
            if node is None or node.status == "running":
                self._tails[path] = tail[-_TAIL_CHARS:]

    def close(self) -> None:
        """Leave the last view where it is."""
        self._live.stop()

    def _drop_text(self, path: StepPath) -> None:
        self._tails.pop(whose(path), None)

    def _tell_failure(self, record: LightRecord) -> None:
        self._failures += 1
        if self._failures > _FAILURES_TOLD or self._outline.nodes[record.path].failed:
            return  # a step around one that failed says the same again
        text = f"✗ {self._names(record.path)}  {one_line(record.note)}"
        with self._live._lock:  # rich decides where the view is before it writes: nobody draws another in between
            self._console.print(self._line(text, "red"), overflow="ellipsis", no_wrap=True, crop=True)

    def _names(self, path: StepPath) -> str:
        names: list[str] = []
        while path != ROOT:
            names.append(one_line(self._outline.nodes[path].name))
            path = step_around(path)
        return " › ".join(reversed(names))

    def _render(self) -> Text:
        size = self._console.size
        with self._lock:
            rows = live_rows(
                self._outline, now=time.time(), height=max(1, size.height - 2), tails=self._tails, title=self._title
            )
        lines = [self._row(row, size.width) for row in rows]
        return _joined(lines)

    def _row(self, row: Row, width: int) -> Text:
        from rich.text import Text

        line = Text(no_wrap=True, overflow="ellipsis", end="")
        line.append(f"{'  ' * row.depth}{row.mark}", style=_STYLES[row.tone])
        line.append(f" {row.name}" if row.name else "")
        line.append(f"  {row.facts}" if row.facts else "")
        line.append(f"  {row.note}" if row.note else "", style="dim" if row.tone != "bad" else "")
        line.truncate(max(1, width - 1), overflow="ellipsis")
        return line

    def _line(self, text: str, style: str) -> Text:
        from rich.text import Text

        return Text(text, style=style)


def _joined(lines: list[Text]) -> Text:
    from rich.text import Text

    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _rich() -> tuple[type, type]:
    """What draws; `DeclarationError` in a program that has not installed it."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise DeclarationError(f"a live view needs an extra: pip install flujo-actors[cli] ({error})") from error
    return Console, Live
