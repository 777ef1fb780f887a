"""What steps are writing, seen from another process while they write it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_actors import Flujo, RunClient, RunNotFound, Step, make_agent_async
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.step_paths import StepPath
from flujo_actors._durable.claims import release_run
from flujo_actors._durable.live_text import live_key, live_texts
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
        while not live_texts.is_watched(live_key(store, RUN)):
            await trio.sleep(0.02)
        return x

    pipeline = Step("wait", until_watched) >> writer(go)
    child = forked(lambda: Flujo(pipeline, store=place.open()).run(1, run_id="r"))
    while not store.find(RunQuery()):
        time.sleep(0.01)
    assert "once upon " in trio.run(heard, RunClient(store), go)
    assert ended(child) == 0
    assert not live_texts.is_watched(live_key(store, RUN))


async def streamed(_: object, __: object) -> Any:
    yield "streamed"


def chosen_by_watchers(store: Any) -> Flujo[Any, Any]:
    """A pipeline whose model tells by its output whether it was asked to stream."""

    async def whole(_: object, __: object) -> ModelResponse:
        return ModelResponse(parts=[TextPart("whole")])

    model = make_agent_async(FunctionModel(whole, stream_function=streamed), "Write.")
    return Flujo(Step("write", model), store=store)


@pytest.mark.parametrize("how", ["submitted", "abandoned"])
def test_the_claim_of_a_run_knows_its_watchers(place: Place, how: str) -> None:
    """A model in the first step streams to a watcher that was there before the claim, in every run."""
    flujo, watcher = chosen_by_watchers(place.open()), place.open()

    async def outputs() -> list[object]:
        found = []
        for number in range(10):
            run_id = await flujo.submit("x", run_id=f"r{number}")
            watcher.watch_texts([RunId(run_id)], for_s=60)
            if how == "abandoned":
                store = place.open()
                release_run(store, store.claim(RunId(run_id), owner="gone", lease_s=60))
            found.append((await flujo.resume_async(run_id)).output)
        return found

    assert trio.run(outputs) == ["streamed"] * 10


def test_a_step_after_an_answer_streams_to_the_watchers_of_the_question(place: Place) -> None:
    """They were there before the run was claimed again."""
    ask = Step.human_in_the_loop("ask", "Sure?", input_schema=bool)
    flujo = Flujo(ask >> chosen_by_watchers(None).pipeline, store=place.open())
    paused = flujo.run("x", run_id="r")
    place.open().watch_texts([RUN], for_s=60)
    assert flujo.resume(paused.state_token, True).output == "streamed"


def test_a_run_of_another_store_with_the_same_id_is_not_heard(tmp_path: Path) -> None:
    """Text belongs to a run of a store, not to a run id."""
    first, second = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/second.db"
    go = tmp_path / "go"

    async def main() -> list[str]:
        other = Flujo(Step.human_in_the_loop("ask", "?"), store=second)
        await other.run_async("x", run_id="r")
        watch = RunClient(second).watch("r", texts=True)
        await watch.next_batch()
        go.touch()
        await Flujo(writer(go), store=first).run_async("x", run_id="r")
        heard = list(watch.new_texts().values())
        watch.close()
        return heard

    assert trio.run(main) == []


def test_a_watch_of_a_deleted_run_ends_though_its_id_is_used_again(tmp_path: Path) -> None:
    """It does not continue with the records of another run."""
    place = f"sqlite:///{tmp_path}/runs.db"
    flujo = Flujo(Step.human_in_the_loop("ask", "?"), store=place)

    async def main() -> None:
        await flujo.run_async("x", run_id="r")
        watch = RunClient(place).watch("r")
        await watch.next_batch()
        assert flujo._store is not None
        flujo._store.delete([RUN])
        await flujo.run_async("x", run_id="r")
        with pytest.raises(RunNotFound):
            [record async for record in watch]

    trio.run(main)


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
        while not live_texts.is_watched(live_key(store, RUN)):
            await trio.sleep(0.02)
        return x

    Flujo(Step("wait", until_watched), store=store).run(1, run_id="r")
    assert not live_texts.is_watched(live_key(store, RUN))
