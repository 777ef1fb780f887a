"""Showing a run while it runs: one of this process by its handle, one of any process by its store."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from .._client import RunClient, RunInfo
from .._core.light_outcomes import LightOutcomes
from .._core.outcomes import Chunk, PipelineResult
from .._core.paths import StepPath
from .._core.records import StoredRun
from .._dsl.shown_chunks import NO_CHUNKS
from .._handle import RunHandle
from ..stores._port import Store
from ._displays import Display, JsonLines, PlainLines, Quiet
from ._modes import Color, Mode, Progress, mode_for


async def watch(
    run: RunHandle,
    *,
    progress: Progress = "auto",
    file: TextIO | None = None,
    color: Color = "auto",
    chunks: bool = False,
    title: str = "",
) -> PipelineResult:
    """Run what `run_async` or `resume_async` gave, show it while it runs, and return its result.

    It is shown on standard error, or on `file`. `progress` is `"live"` (lines that change), `"plain"` (lines that
    stay), `"json"` (a record per line; with `chunks` also what streams say), `"quiet"`, or `"auto"`, which is live in a
    terminal.
    """
    run.tell_also(started=True, tools=True)
    with showing(file or sys.stderr, progress, color=color, chunks=chunks, title=title) as display:
        if not display.shows_text:
            run.show_chunks(NO_CHUNKS)
        return await shown(run, display)


async def shown(run: RunHandle, display: Display) -> PipelineResult:
    """Run it to its result, telling a display what happens."""
    rows = LightOutcomes(at=time.time())
    display.take(rows.first)
    async for outcome in run:
        if isinstance(outcome, Chunk):
            display.text(StepPath(outcome.path), text_of(outcome.data))
        elif (record := rows.record(outcome, at=time.time())) is not None:
            display.take(record)
    result = await run
    display.take(rows.end(result, at=time.time()))
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
    """Show a run of any process, from its first record (or from after one) until it has ended, or asks somebody.

    What comes back is how it stands then. Leaving early, by a cancellation for instance, leaves the run alone.
    """
    client = RunClient(store)
    with showing(file or sys.stderr, progress, color=color, chunks=chunks, title=run_id) as display:
        await show_stored(client, run_id, display, after=after)
    return client.get(run_id)


async def show_stored(client: RunClient, run_id: str, display: Display, *, after: int = 0) -> None:
    """Tell a display what a stored run does, until it has ended or waits for somebody."""
    watched, seen = client.watch(run_id, after=after, texts=True), after
    while (batch := await watched.next_batch()) is not None:
        for record in batch:
            display.take(record)
            seen = record.seq
        for path, text in watched.new_texts().items():
            display.said(path, text)
        if _asks(watched.run, seen):
            watched.close()
            return


def _asks(run: StoredRun | None, seen: int) -> bool:
    """Whether nothing more will happen before somebody answers."""
    return run is not None and run.status == "paused" and bool(run.pauses) and not run.leased and seen >= run.records


@contextlib.contextmanager
def showing(
    file: TextIO, progress: Progress, *, color: Color = "auto", chunks: bool = False, title: str = ""
) -> Iterator[Display]:
    """What shows a run on a file, until the end of the block."""
    display = _made(mode_for(progress, file, os.environ, color=color), file, chunks=chunks, title=title)
    with _without_last_resort():
        try:
            yield display
        finally:
            display.close()


@contextlib.contextmanager
def _without_last_resort() -> Iterator[None]:
    """Failures are shown: where nobody has set up logging, they are not told a second time between the lines."""
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
            from ._live import LiveView  # what draws is loaded for terminals alone

            return LiveView(file, color=mode.color, title=title)
        case "plain":
            return PlainLines(file, color=mode.color)
        case "json":
            return JsonLines(file, chunks=chunks)
        case "quiet":
            return Quiet()


def text_of(data: object) -> str:
    """A piece of a stream as text."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if isinstance(data, str) else repr(data)
