"""What steps are writing, seen from another process while they write it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, RunClient, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.paths import StepPath
from flujo_actors._durable.live_texts import live_texts
from flujo_actors.stores import RunQuery
from kit.durable_places import Place, SqlitePlace
from kit.other_processes import ended, forked

RUN, STEP = RunId("r"), StepPath("write")


def writer(go: Path) -> Step[Any, Any]:
    """A step that says something, and more when a file is there."""

    async def write(_: object) -> Any:
        yield "once upon "
        while not go.exists():
            await trio.sleep(0.01)
        yield "a time"

    return Step("write", write)


async def heard(client: RunClient, go: Path) -> list[str]:
    """What was heard of the step until the run ended; the story goes on when its beginning was heard."""
    watch = client.watch("r", texts=True)
    texts: list[str] = []
    while await watch.next_batch() is not None:
        texts += watch.new_texts().values()
        if "once upon " in texts:
            go.touch()
    return texts


@pytest.mark.slow
def test_what_a_step_writes_is_seen_in_another_process(place: Place, tmp_path: Path) -> None:
    """The owner is told that somebody watches, streams, and leaves the end of the text where it is found."""
    store, go = place.open(), tmp_path / "go"

    async def until_watched(x: int) -> int:
        while not live_texts.is_watched(RUN):
            await trio.sleep(0.02)
        return x

    pipeline = Step("wait", until_watched) >> writer(go)
    child = forked(lambda: Flujo(pipeline, store=place.open()).run(1, run_id="r"))
    while not store.find(RunQuery()):
        time.sleep(0.01)
    assert "once upon " in trio.run(heard, RunClient(store), go)
    assert ended(child) == 0
    assert not live_texts.is_watched(RUN)


def test_texts_are_left_only_for_those_who_watch(place: Place) -> None:
    """Nobody watches: nothing is kept. Somebody does: the last that was said, of those runs alone, until they leave."""
    owner, watcher = place.open(), place.open()
    said = {RUN: {STEP: "once \0 \ud800"}, RunId("other"): {STEP: "hush"}}
    assert owner.swap_texts(said) == set()
    assert watcher.watch_texts([RUN], for_s=60) == {RUN: {}}
    assert owner.swap_texts(said) == {RUN}
    assert watcher.watch_texts([RUN, RunId("other")], for_s=0.0) == {RUN: {STEP: "once \0 \ud800"}, RunId("other"): {}}
    assert owner.swap_texts({RUN: {}}) == set()


def test_a_file_that_nobody_watches_has_none_beside_it(sqlite_place: SqlitePlace) -> None:
    """Until the first who watches from another process."""
    store = sqlite_place.open()
    Flujo(Step("write", lambda x: x), store=store).run(1)
    store.swap_texts({RUN: {STEP: "x"}})
    assert not Path(f"{sqlite_place.path}-live").exists()


def test_nothing_is_kept_of_a_run_that_is_over(sqlite_place: SqlitePlace) -> None:
    """Whoever watched it elsewhere: its owner forgets what it wrote when it lets the run go."""
    store = sqlite_place.open()
    sqlite_place.open().watch_texts([RUN], for_s=60)

    async def until_watched(x: int) -> int:
        while not live_texts.is_watched(RUN):
            await trio.sleep(0.02)
        return x

    Flujo(Step("wait", until_watched), store=store).run(1, run_id="r")
    assert not live_texts.is_watched(RUN)
