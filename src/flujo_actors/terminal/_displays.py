"""What shows a run: takes light records and text as they come, and draws them in its own way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from .._core.light_records import LightRecord
from .._core.outline import Node, Outline
from .._core.path_names import step_around
from .._core.paths import ROOT, StepPath, is_tried, step_of, whose
from .._core.result_tree import in_color, shown_cost, shown_time
from .._core.safe_text import one_line

SUMMARY_EVERY_S = 10.0
"""How often a map of thousands says how far it is, where lines stay."""

_FAILURES_TOLD = 3


class Display(Protocol):
    """Somewhere to show a run."""

    @property
    def shows_text(self) -> bool:
        """Whether it shows what steps say; if not, nobody needs to stream."""

    def take(self, record: LightRecord) -> None:
        """Something happened."""

    def text(self, path: StepPath, piece: str) -> None:
        """A step said something."""

    def said(self, path: StepPath, tail: str) -> None:
        """What a step of another process has said last, whatever was said before."""

    def close(self) -> None:
        """Nothing more will happen."""


class Quiet:
    """Shows nothing."""

    shows_text = False

    def take(self, record: LightRecord) -> None:
        """Nothing to show."""

    def text(self, path: StepPath, piece: str) -> None:
        """Nothing to show."""

    def said(self, path: StepPath, tail: str) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Nothing to end."""


class JsonLines:
    """One light record per line, for programs; the text of streams only where it was asked for."""

    def __init__(self, file: TextIO, *, chunks: bool) -> None:
        self._file, self.shows_text = file, chunks

    def take(self, record: LightRecord) -> None:
        self._write(record_data(record))

    def text(self, path: StepPath, piece: str) -> None:
        if self.shows_text:
            self._write({"v": 1, "kind": "chunk", "path": path, "text": piece})

    def said(self, path: StepPath, tail: str) -> None:
        if self.shows_text:
            self._write({"v": 1, "kind": "text", "path": path, "tail": tail})

    def close(self) -> None:
        """Every line was complete when it was written."""

    def _write(self, data: dict[str, object]) -> None:
        self._file.write(json.dumps(data, separators=(",", ":")) + "\n")
        self._file.flush()


def record_data(record: LightRecord) -> dict[str, object]:
    """A light record as JSON data: its version under `v`, and what is not as by default."""
    usual = LightRecord._field_defaults
    told = {name: fact for name, fact in record._asdict().items() if name not in usual or fact != usual[name]}
    return {"v": 1, **told}


class PlainLines:
    """A line for every step that begins or ends; a map of many is told of now and then, by its counts."""

    shows_text = False

    def __init__(self, file: TextIO, *, color: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._color, self._clock = file, color, clock
        self._outline = Outline()
        self._told_at: dict[StepPath, float] = {}
        self._failures: dict[StepPath, int] = {}

    def take(self, record: LightRecord) -> None:
        self._outline.take(record)
        match record.kind:
            case "started":
                self._started(record)
            case "settled" if not is_tried(record.path):
                self._settled(record)
            case "settled":
                self._line("bad", "↻", self._path_name(whose(record.path)), record.note)
            case "paused":
                self._line("dim", "?", self._path_name(step_of(record.path)), record.note)
            case "ended" if record.path == ROOT:
                self._ended(record)
            case _:
                return

    def text(self, path: StepPath, piece: str) -> None:
        """What is being said is not told in lines that stay."""

    def said(self, path: StepPath, tail: str) -> None:
        """As above."""

    def close(self) -> None:
        """Every line was complete when it was written."""

    def _started(self, record: LightRecord) -> None:
        if self._crowd_around(record.path) is None:
            self._line("dim", "▸", self._path_name(record.path), "")

    def _settled(self, record: LightRecord) -> None:
        crowd = self._crowd_around(record.path)
        if crowd is not None:
            self._settled_in(crowd, record)
            return
        node = self._outline.nodes[record.path]
        good = record.status == "success"
        counts = [f"✓ {node.done:,}  ✗ {node.failed:,}"] if node.is_crowd else []
        facts = "  ".join([*counts, shown_time(record.latency_s), *_amounts(record)])
        self._line("good" if good else "bad", "✓" if good else "✗", self._path_name(record.path), record.note, facts)

    def _settled_in(self, crowd: Node, record: LightRecord) -> None:
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
        """The innermost crowd that a step is part of: it is shown by that one's counts."""
        while path != ROOT:
            path = step_around(path)
            node = self._outline.nodes[path]
            if path != ROOT and node.is_crowd:
                return node
        return None

    def _path_name(self, path: StepPath) -> str:
        names: list[str] = []
        while path != ROOT:
            names.append(one_line(self._outline.nodes[path].name))
            path = step_around(path)
        return " › ".join(reversed(names))

    def _ended(self, record: LightRecord) -> None:
        began, until = self._outline.began_at, record.at
        took = shown_time(until - began) if began is not None and until is not None else ""
        facts = "  ".join(part for part in (took, *_amounts(record)) if part)
        tone = "good" if record.status == "completed" else "dim" if record.status == "paused" else "bad"
        self._line(tone, "■", record.status or "ended", record.note, facts)

    def _line(self, tone: str, mark: str, name: str, note: str, facts: str = "") -> None:
        painted = in_color(tone, mark) if self._color else mark
        parts = (f"{painted} {name}", facts, one_line(note))
        self._file.write("  ".join(part for part in parts if part) + "\n")
        self._file.flush()


def _amounts(record: LightRecord) -> list[str]:
    tokens = [f"{record.tokens:,} tok"] if record.tokens else []
    return [*tokens, shown_cost(record.cost_usd)] if record.cost_usd else tokens
