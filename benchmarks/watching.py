"""Watching: how long a big run takes to read and fold, what a live view costs, and how far behind a watcher is.

`python -m benchmarks --watching`. Times are CPU seconds of this process but for the lag, which is wall time.
"""

import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from flujo_actors import Flujo, LightRecord, Outline, Pipeline, RunClient, SqliteStore, Step
from flujo_actors._core.views.live_view import live_rows
from flujo_actors.terminal._watch_view import FRAMES_PER_S, LiveView

BRANCHES, FRAMES, STEPS = 10_000, 100, 40


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


async def same(x: int) -> int:
    return x


async def slowly(x: int) -> int:
    await trio.sleep(0.02)
    return x


def report(*, share: float = 1.0) -> Iterator[str]:
    """The lines of the report, as they are measured."""
    branches = max(10, round(BRANCHES * share))
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "runs.db", synchronous="OFF")
        body = Pipeline.from_step(Step("a", same) >> Step("b", same))
        Flujo(Step.map_over("each", body), store=store).run(list(range(branches)), run_id="big")
        begun = time.process_time()
        records = store.scan("big")  # type: ignore[arg-type]
        read = time.process_time()
        outline = Outline(records)
        folded = time.process_time()
        yield f"records of a run of {branches:,} branches: {len(records):,}"
        yield f"read without bodies: {read - begun:.3f} s, folded: {folded - read:.3f} s"
        yield f"share of a core for its live view: {view_share(outline):.2%}"
        yield f"lag of a watcher in the same process: {lag(store):.1f} ms (largest of {STEPS})"
        store.close()


def view_share(outline: Outline) -> float:
    """The share of a core that drawing a run again and again takes."""
    view = LiveView(Terminal(), color=True)
    view.close()
    view._outline = outline
    begun = time.process_time()
    for _ in range(FRAMES):
        view._console.print(view._render())
        live_rows(outline, now=time.time(), height=22)
    return (time.process_time() - begun) / FRAMES * FRAMES_PER_S


def lag(store: SqliteStore) -> float:
    """How late the latest record came, in milliseconds."""
    steps = Pipeline(tuple(Step(f"s{number}", slowly) for number in range(STEPS)))
    late: list[float] = []

    async def watch() -> None:
        client = RunClient(store, allow_blocking=True)
        while not client.list(search="lag"):
            await trio.sleep(0.001)
        async for record in client.watch("lag"):
            late.append(_late(record))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await Flujo(steps, store=store).run_async(0, run_id="lag")

    trio.run(main)
    return max(late[2:]) * 1000


def _late(record: LightRecord) -> float:
    return time.time() - (record.at or 0.0)
