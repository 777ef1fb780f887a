"""Displays of a run: consumers of record summaries and text.

Sections:

- Display mode for a terminal, a pipe, a build server or a program.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TextIO, TypeAlias, get_args

import attrs

from .._core.step_paths import ROOT, StepPath, is_tried, step_around, step_of, whose
from .._core.views.live_view import NAP
from .._core.views.record_summaries import RecordSummary
from .._core.views.result_tree import in_color, shown_cost, shown_time
from .._core.views.run_tree import Node, RunTree, one_line
from ..errors import DeclarationError

SUMMARY_EVERY_S = 10.0
"""Interval of progress lines for large maps, where lines stay."""

_FAILURES_TOLD = 3

_TONES = {"completed": "good", "paused": "ask", "sleeping": "dim"}
"""Tones of end states; others are failures."""


class Display(Protocol):
    """Display of a run."""

    @property
    def shows_text(self) -> bool:
        """Return whether it shows streamed text, so streaming is needed."""

    def show(self, record: RecordSummary) -> None:
        """Show a record."""

    def text(self, path: StepPath, piece: str) -> None:
        """Show a text chunk of a step."""

    def show_text(self, path: StepPath, tail: str) -> None:
        """Show the latest text of a step of another process."""

    def close(self) -> None:
        """End the display."""


class Quiet:
    """Display that shows nothing."""

    shows_text = False

    def show(self, record: RecordSummary) -> None:
        """Ignore the record."""

    def text(self, path: StepPath, piece: str) -> None:
        """Ignore the chunk."""

    def show_text(self, path: StepPath, tail: str) -> None:
        """Ignore the text."""

    def close(self) -> None:
        """Do nothing."""


class JsonLines:
    """One record summary per line, for programs; stream text only on request."""

    def __init__(self, file: TextIO, *, chunks: bool) -> None:
        self._file, self.shows_text = file, chunks

    def show(self, record: RecordSummary) -> None:
        self._write(record_data(record))

    def text(self, path: StepPath, piece: str) -> None:
        if self.shows_text:
            self._write({"v": 1, "kind": "chunk", "path": path, "text": piece})

    def show_text(self, path: StepPath, tail: str) -> None:
        if self.shows_text:
            self._write({"v": 1, "kind": "text", "path": path, "tail": tail})

    def close(self) -> None:
        """Do nothing: every line was complete when it was written."""

    def _write(self, data: dict[str, object]) -> None:
        self._file.write(json.dumps(data, separators=(",", ":")) + "\n")
        self._file.flush()


def record_data(record: RecordSummary) -> dict[str, object]:
    """Return a record summary as JSON data, with version `v`."""
    usual = RecordSummary._field_defaults
    unusual = {name: fact for name, fact in record._asdict().items() if name not in usual or fact != usual[name]}
    return {"v": 1, **unusual}


class PlainLines:
    """One line per started or ended step; large maps as counts."""

    shows_text = False

    def __init__(self, file: TextIO, *, color: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._color, self._clock = file, color, clock
        self._outline = RunTree()
        self._told_at: dict[StepPath, float] = {}
        self._failures: dict[StepPath, int] = {}

    def show(self, record: RecordSummary) -> None:
        self._outline.apply(record)
        match record.kind:
            case "started":
                self._started(record)
            case "settled" if not is_tried(record.path):
                self._settled(record)
            case "settled":
                self._line("bad", "↻", self._path_name(whose(record.path)), record.note)
            case "paused":
                tone, mark = ("dim", NAP) if record.status == "sleeping" else ("ask", "?")
                self._line(tone, mark, self._path_name(step_of(record.path)), record.note)
            case "ended" if record.path == ROOT:
                self._ended(record)
            case _:
                return

    def text(self, path: StepPath, piece: str) -> None:
        """Ignore the chunk: lines that stay show no live text."""

    def show_text(self, path: StepPath, tail: str) -> None:
        """Ignore the text."""

    def close(self) -> None:
        """Do nothing: every line was complete when it was written."""

    def _started(self, record: RecordSummary) -> None:
        if self._crowd_around(record.path) is None:
            self._line("dim", "▸", self._path_name(record.path), "")

    def _settled(self, record: RecordSummary) -> None:
        crowd = self._crowd_around(record.path)
        if crowd is not None:
            self._settled_in(crowd, record)
            return
        node = self._outline.nodes[record.path]
        good = record.status == "success"
        counts = [f"✓ {node.done:,}  ✗ {node.failed:,}"] if node.is_collapsed else []
        facts = "  ".join([*counts, shown_time(record.latency_s), *_amounts(record)])
        self._line("good" if good else "bad", "✓" if good else "✗", self._path_name(record.path), record.note, facts)

    def _settled_in(self, crowd: Node, record: RecordSummary) -> None:
        if record.status == "failure" and self._failures.get(crowd.path, 0) < _FAILURES_TOLD:
            self._failures[crowd.path] = self._failures.get(crowd.path, 0) + 1
            self._line("bad", "✗", self._path_name(record.path), record.note)
        now = self._clock()
        if now - self._told_at.setdefault(crowd.path, now) >= SUMMARY_EVERY_S:
            self._told_at[crowd.path] = now
            self._summary(crowd)

    def _summary(self, crowd: Node) -> None:
        to_go = f"  {crowd.to_go:,} to go" if crowd.to_go else ""
        counts = f"✓ {crowd.done:,}  ✗ {crowd.failed:,}  … {len(crowd.running):,} running{to_go}"
        self._line("dim", "▸", self._path_name(crowd.path), "", counts)

    def _crowd_around(self, path: StepPath) -> Node | None:
        """Return a step's innermost crowd, which is shown by counts."""
        while path != ROOT:
            path = step_around(path)
            node = self._outline.nodes[path]
            if path != ROOT and node.is_collapsed:
                return node
        return None

    def _path_name(self, path: StepPath) -> str:
        names: list[str] = []
        while path != ROOT:
            names.append(one_line(self._outline.nodes[path].name))
            path = step_around(path)
        return " › ".join(reversed(names))

    def _ended(self, record: RecordSummary) -> None:
        began, until = self._outline.began_at, record.at
        took = shown_time(until - began) if began is not None and until is not None else ""
        facts = "  ".join(part for part in (took, *_amounts(record)) if part)
        tone = _TONES.get(record.status or "", "bad")
        state = "waiting" if record.status == "paused" else record.status or "ended"
        self._line(tone, "■", state, record.note, facts)

    def _line(self, tone: str, mark: str, name: str, note: str, facts: str = "") -> None:
        painted = in_color(tone, mark) if self._color else mark
        parts = (f"{painted} {name}", facts, one_line(note))
        self._file.write("  ".join(part for part in parts if part) + "\n")
        self._file.flush()


def _amounts(record: RecordSummary) -> list[str]:
    tokens = [f"{record.tokens:,} tok"] if record.tokens else []
    return [*tokens, shown_cost(record.cost_usd)] if record.cost_usd else tokens


# --- Display mode for a terminal ----------------------------------------------------------------------------------


Progress: TypeAlias = Literal["auto", "live", "plain", "json", "quiet"]
"""Display mode: changing lines, fixed lines, JSON lines, or nothing."""

Color: TypeAlias = Literal["auto", "always", "never"]


@attrs.frozen(kw_only=True)
class Mode:
    """Resolved display mode."""

    progress: Literal["live", "plain", "json", "quiet"]
    color: bool


def mode_for(progress: Progress, file: TextIO, environment: Mapping[str, str], *, color: Color = "auto") -> Mode:
    """Return the mode: `auto` is live in an interactive terminal, otherwise plain.

    `NO_COLOR` and `TERM=dumb` disable all escapes; `FORCE_COLOR` colors output that is not a terminal.
    """
    if progress not in get_args(Progress):
        raise DeclarationError(f"progress must be one of {', '.join(get_args(Progress))}, not {progress!r}")
    painted = _is_painted(file, environment, color)
    if progress != "auto":
        return Mode(progress=progress, color=painted)
    moves = is_terminal(file, environment) and not environment.get("CI") and not environment.get("NO_COLOR")
    return Mode(progress="live" if moves else "plain", color=painted)


def is_terminal(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a file is a terminal with cursor movement."""
    isatty = getattr(file, "isatty", None)
    return bool(isatty and isatty()) and environment.get("TERM") != "dumb"


def _is_painted(file: TextIO, environment: Mapping[str, str], color: Color) -> bool:
    if color != "auto":
        return color == "always"
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or is_terminal(file, environment)
