"""Watch view of a run, by handle or by store.

Sections:

- Finished run as text.
- Live view at the bottom of the terminal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from .._api.client import RunClient, RunInfo
from .._api.handle import RunHandle
from .._core.outcomes import Chunk, PipelineResult
from .._core.records.records import StoredRun
from .._core.step_paths import ROOT, StepPath, is_tried, step_around, whose
from .._core.views.live_view import Row, Tone, live_rows
from .._core.views.record_summaries import LightOutcomes, RecordSummary
from .._core.views.result_tree import drawn, in_color
from .._core.views.run_tree import RunTree, one_line
from .._dsl.chunk_filter import NO_CHUNKS
from ..errors import DeclarationError
from ..stores._store_port import Store
from ._renderers import Color, Display, JsonLines, Mode, PlainLines, Progress, Quiet, mode_for

if TYPE_CHECKING:
    from rich.text import Text


async def watch(
    run: RunHandle,
    *,
    progress: Progress = "auto",
    file: TextIO | None = None,
    color: Color = "auto",
    chunks: bool = False,
    title: str = "",
) -> PipelineResult:
    """Show a run while it runs; return its result.

    It is shown on standard error, or on `file`. `progress` is `"live"` (lines that change), `"plain"` (lines that
    stay), `"json"` (a record per line; with `chunks` also stream text), `"quiet"`, or `"auto"`, which is live in a
    terminal.

    Args:
        run: handle of the run.
        progress: form of the output.
        file: output; by default standard error.
        color: whether to use colors; `"auto"` in a terminal.
        chunks: whether to show the live text of steps.
        title: text above the tree.
    """
    run.request_events(started=True, tools=True)
    with display_on(file or sys.stderr, progress, color=color, chunks=chunks, title=title) as display:
        if not display.shows_text:
            run.show_chunks(NO_CHUNKS)
        return await display_run(run, display)


async def display_run(run: RunHandle, display: Display) -> PipelineResult:
    """Run to the result, passing every event to a display."""
    rows = LightOutcomes(at=time.time())
    display.show(rows.first)
    async for outcome in run:
        if isinstance(outcome, Chunk):
            display.text(StepPath(outcome.path), text_of(outcome.data))
        elif (record := rows.record(outcome, at=time.time())) is not None:
            display.show(record)
    result = await run
    display.show(rows.end(result, at=time.time()))
    return result


async def tail(
    store: Store | str,
    run_id: str,
    *,
    after: int = 0,
    progress: Progress = "auto",
    file: TextIO | None = None,
    color: Color = "auto",
    chunks: bool = False,
) -> RunInfo:
    """Show any process's run, from a record to its end or pause.

    Return its state then. Leaving early, by a cancellation for instance, does not affect the run.

    Args:
        store: a store or its URL.
        run_id: id of the run.
        after: number of the record before the first one.
        progress: form of the output.
        file: output; by default standard error.
        color: whether to use colors; `"auto"` in a terminal.
        chunks: whether to show the live text of steps.
    """
    client = RunClient(store)
    with display_on(file or sys.stderr, progress, color=color, chunks=chunks, title=run_id) as display:
        await show_stored(client, run_id, display, after=after)
    return client.get(run_id)


async def show_stored(client: RunClient, run_id: str, display: Display, *, after: int = 0) -> None:
    """Pass a stored run's records to a display until its end."""
    watched, seen = client.watch(run_id, after=after, texts=True), after
    while (batch := await watched.next_batch()) is not None:
        for record in batch:
            display.show(record)
            seen = record.seq
        for path, text in watched.new_texts().items():
            display.show_text(path, text)
        if _asks(watched.run, seen):
            watched.close()
            return


def _asks(run: StoredRun | None, seen: int) -> bool:
    """Return whether the run waits for an answer."""
    return run is not None and run.status == "paused" and bool(run.pauses) and not run.leased and seen >= run.records


@contextlib.contextmanager
def display_on(
    file: TextIO, progress: Progress, *, color: Color = "auto", chunks: bool = False, title: str = ""
) -> Iterator[Display]:
    """Yield the display of a run on a file."""
    display = _made(mode_for(progress, file, os.environ, color=color), file, chunks=chunks, title=title)
    with _without_last_resort():
        try:
            yield display
        finally:
            display.close()


@contextlib.contextmanager
def _without_last_resort() -> Iterator[None]:
    """Suppress logging's last-resort handler: failures are shown already."""
    logger, handler = logging.getLogger("flujo_actors"), logging.NullHandler()
    if not logger.hasHandlers():
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _made(mode: Mode, file: TextIO, *, chunks: bool, title: str) -> Display:
    match mode.progress:
        case "live":
            return LiveView(file, color=mode.color, title=title)
        case "plain":
            return PlainLines(file, color=mode.color)
        case "json":
            return JsonLines(file, chunks=chunks)
        case "quiet":
            return Quiet()


def text_of(data: object) -> str:
    """Return a stream chunk as text."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if isinstance(data, str) else repr(data)


# --- Finished run as text -----------------------------------------------------------------------------------------


def draw(result: PipelineResult, *, color: bool = False) -> str:
    """Return the run as a tree: outcome, latency and notes per step.

    More than eight equal siblings are one line with counts, and the first failures below it.

    Args:
        result: result of a run.
        color: whether to use colors.
    """
    return drawn(result, paint=in_color) if color else drawn(result)


# --- Live view at the bottom of the terminal ----------------------------------------------------------------------
# Rules:
#
# 1. It is never taller than the terminal less two lines, and no line is wider than it: nothing scrolls by itself.
# 2. A failed step is printed above the view, as an ordinary line that stays; of the many of a map, the first few.
# 3. A thread draws, so that the clock advances while the run's loop is busy. It shares the run tree under a lock.


FRAMES_PER_S = 8
_TAIL_CHARS = 4096
_FAILURES_TOLD = 20
_STYLES: dict[Tone, str] = {"good": "green", "bad": "red", "running": "cyan", "waiting": "yellow", "dim": "dim"}


class LiveView:
    """Live view of a run in a terminal; see the module's rules."""

    shows_text = True

    def __init__(self, file: TextIO, *, color: bool, title: str = "") -> None:
        console, live = _rich()
        self._outline, self._tails, self._title = RunTree(), dict[StepPath, str](), title
        self._failures = 0
        self._lock = threading.RLock()
        self._console = console(file=file, force_terminal=True, no_color=not color, highlight=False, soft_wrap=False)
        self._live = live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=FRAMES_PER_S,
            redirect_stdout=sys.stdout.isatty(),  # output of steps stays above the view
            redirect_stderr=file is sys.stderr,
            vertical_overflow="crop",
        )
        self._live.start()

    def show(self, record: RecordSummary) -> None:
        """Show a record."""
        with self._lock:
            self._outline.apply(record)
            if record.kind == "settled":
                self._drop_text(record.path)
        if record.kind == "settled" and record.status == "failure" and not is_tried(record.path):
            self._show_failure(record)

    def text(self, path: StepPath, piece: str) -> None:
        """Show a text chunk of a step."""
        with self._lock:
            self._tails[path] = (self._tails.get(path, "") + piece)[-_TAIL_CHARS:]

    def show_text(self, path: StepPath, tail: str) -> None:
        """Show the latest text of a step of another process."""
        with self._lock:
            node = self._outline.nodes.get(path)
            if node is None or node.status == "running":
                self._tails[path] = tail[-_TAIL_CHARS:]

    def close(self) -> None:
        """Leave the last view in place."""
        self._live.stop()

    def _drop_text(self, path: StepPath) -> None:
        self._tails.pop(whose(path), None)

    def _show_failure(self, record: RecordSummary) -> None:
        self._failures += 1
        if self._failures > _FAILURES_TOLD or self._outline.nodes[record.path].failed:
            return  # a parent of a failed step repeats its failure
        text = f"✗ {self._names(record.path)}  {one_line(record.note)}"
        with self._live._lock:  # rich computes the view's position before it writes: no other thread draws in between
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
    """Return rich's classes, or raise `DeclarationError` if it is not installed."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise DeclarationError(f"a live view needs an extra: pip install 'flujo-actors[cli]' ({error})") from error
    return Console, Live
