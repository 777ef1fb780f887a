"""Runs seen from outside while they run: by the same process, by another one, by many at once."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, LightRecord, MemoryStore, Pipeline, Projector, RunClient, RunNotFound, SqliteStore, Step
from flujo_actors._durable import watch_poller
from flujo_actors.errors import DeclarationError
from flujo_actors.stores import RunQuery
from kit.durable_places import Place, SqlitePlace
from kit.other_processes import KILLED, ended, forked


async def double(x: int) -> int:
    return x * 2


async def plus_one(x: int) -> int:
    return x + 1


CHAIN = Step("double", double) >> Step("plus one", plus_one)


def held_by(path: Path) -> Step:
    """A step that ends when a file is there."""

    async def hold(x: Any) -> Any:
        while not path.exists():
            await trio.sleep(0.01)
        return x

    return Step("hold", hold)


async def watched(client: RunClient, run_id: str, after: int = 0) -> list[LightRecord]:
    return [record async for record in client.watch(run_id, after=after)]


def test_a_run_that_has_ended_is_watched_to_its_end(place: Place) -> None:
    """Every record once and in order, as a scan shows them, and the loop ends by itself; on trio and asyncio."""
    store = place.open()
    Flujo(CHAIN, store=store).run(1, run_id="r")
    client = RunClient(store)
    rows = trio.run(watched, client, "r")
    assert [row.kind for row in rows] == ["admitted", "settled", "settled", "ended"]
    assert [row.name for row in rows][1:3] == ["double", "plus one"]
    assert rows == store.scan("r")
    assert asyncio.run(watched(client, "r", 2)) == rows[2:]


def test_who_watches_a_run_that_is_not_there_is_told(place: Place) -> None:
    """Instead of waiting for ever; also if it goes away."""
    store = place.open()
    with pytest.raises(RunNotFound):
        trio.run(watched, RunClient(store), "nobody")
    with pytest.raises(RunNotFound):
        RunClient(store).wait("nobody")


@pytest.mark.slow
def test_a_step_at_work_is_seen_from_another_process(place: Place, tmp_path: Path) -> None:
    """Its start is there while it runs, not only when it is over, and its end within half a second of the commit."""
    go = tmp_path / "go"
    store, pipeline = place.open(), Step("first", double) >> held_by(go)
    child = forked(lambda: Flujo(pipeline, store=place.open()).run(1, run_id="r"))
    seen: list[tuple[str, str, float]] = []

    async def look() -> None:
        async for row in RunClient(store).watch("r"):
            seen.append((row.kind, row.path, time.time() - (row.at or 0.0)))
            if (row.kind, row.path) == ("started", "hold"):
                go.touch()

    _wait_until(lambda: bool(store.find(RunQuery())))
    trio.run(look)
    assert ended(child) == 0
    assert [(kind, path) for kind, path, _ in seen] == [
        ("admitted", ""),
        ("settled", "first"),
        ("started", "hold"),
        ("settled", "hold"),
        ("ended", ""),
    ]
    assert min(late for _, _, late in seen[3:]) < 0.5


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_seen_to_be_abandoned_and_taken_up(place: Place, tmp_path: Path) -> None:
    """The watch goes on over the death of the owner and the takeover, to the run's end, nothing twice."""
    go, store = tmp_path / "go", place.open()
    pipeline = held_by(go)
    child = forked(lambda: Flujo(pipeline, store=place.open()).run(1, run_id="r"))
    rows: list[LightRecord] = []

    async def look() -> None:
        watch = RunClient(store).watch("r")
        async with trio.open_nursery() as nursery:
            async for row in watch:
                rows.append(row)
                if row.kind == "started" and len(rows) == 2:
                    os.kill(child, signal.SIGKILL)
                    assert ended(child) == KILLED
                    go.touch()
                    nursery.start_soon(_resume)

    async def _resume() -> None:
        await Flujo(pipeline, store=store).resume_async("r")

    _wait_until(lambda: bool(store.find(RunQuery())))
    trio.run(look)
    assert [row.kind for row in rows if row.kind in ("resumed", "ended")] == ["resumed", "ended"]
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))


def test_the_store_is_asked_once_however_many_watch(sqlite_place: SqlitePlace) -> None:
    """A hundred who watch a run cost as many questions as one does, and each is given everything."""
    store = sqlite_place.open()
    counting = _Counting(store)
    gate = trio.Event()

    async def wait(x: int) -> int:
        await gate.wait()
        return x

    async def main() -> list[list[LightRecord]]:
        seen: list[list[LightRecord]] = []
        async with trio.open_nursery() as nursery:
            run = Flujo(Step("wait", wait) >> CHAIN, store=store)
            nursery.start_soon(functools.partial(_awaited, run, "r"))
            await _until_admitted(store, "r")
            for _ in range(100):
                nursery.start_soon(_gather, RunClient(counting), "r", seen)
            while counting.scans < 100:
                await trio.sleep(0.01)
            gate.set()
        return seen

    seen = trio.run(main)
    assert len(seen) == 100
    assert all(rows == store.scan("r") for rows in seen)
    assert counting.scans <= 100 + counting.looks
    assert counting.threads == 1


def test_a_watcher_is_told_of_a_commit_of_its_own_process_at_once() -> None:
    """Without waiting for the next question to the store."""
    store = MemoryStore()

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(_awaited, Flujo(CHAIN, store=store), "r"))
            await _until_admitted(store, "r")
            last = [row async for row in RunClient(store).watch("r")][-1]
        assert last.at is not None
        return time.time() - last.at

    before, watch_poller.POLL_S = watch_poller.POLL_S, 60.0
    try:
        assert trio.run(main) < 30
    finally:
        watch_poller.POLL_S = before


def test_who_leaves_a_watch_leaves_the_run_alone(place: Place) -> None:
    """Breaking out of the loop ends the watching, and its thread with the last who watches."""
    store = place.open()
    Flujo(CHAIN, store=store).run(1, run_id="r")

    async def main() -> LightRecord:
        async for row in RunClient(store).watch("r"):
            return row
        raise AssertionError

    assert trio.run(main).kind == "admitted"
    _wait_until(lambda: not any("watcher" in thread.name for thread in threading.enumerate()))


def test_a_result_is_waited_for(place: Place) -> None:
    """What another thread's run came to, as `run` returns it there."""
    store = place.open()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(Flujo(CHAIN, store=store).run(4, run_id="r")))
    thread.start()
    _wait_until(lambda: bool(store.find(RunQuery())))
    waited = RunClient(store).wait("r", timeout=120)
    thread.join()
    assert (waited.status, waited.output) == ("completed", 9)
    assert [step.output for step in waited.step_history] == [step.output for step in results[0].step_history]


def test_waiting_has_an_end(place: Place) -> None:
    """A pause is an end, too: the token says where to answer; and a run that nobody works on is waited for in vain."""
    store = place.open()
    flujo = Flujo(Step.human_in_the_loop("ask", "Well?"), store=store)
    token = flujo.run(run_id="asks").state_token
    waited = RunClient(store).wait("asks", timeout=120)
    assert (waited.status, waited.state_token) == ("paused", token)
    RunClient(store).answer(str(token), "yes")
    with pytest.raises(TimeoutError, match="asks"):
        RunClient(store).wait("asks", timeout=0.05)


def test_a_store_without_the_new_parts_says_so() -> None:
    """A store of somebody else's that has no `scan` and `look` runs as before, and is named where they are needed."""
    old = _Without(MemoryStore(), "scan", "look", "admit_fork", "record")
    assert Flujo(CHAIN, store=old).run(1, run_id="r").output == 3
    client = RunClient(old)
    assert client.get("r").status == "completed"
    for ask in (
        lambda: client.watch("r"),
        lambda: client.wait("r"),
        lambda: client.fork("r", 1),
        lambda: client.list(search="r"),
        lambda: client.records("r"),
    ):
        with pytest.raises(DeclarationError, match="_Without has none"):
            ask()


# --- starts ---


def test_quick_steps_write_no_starts_of_their_own() -> None:
    """A chain of fifty quick steps is as many commits as it was before anybody could watch."""
    store = _CountingAppends(MemoryStore())
    flujo = Flujo(Pipeline(steps=[Step(f"s{number}", plus_one) for number in range(50)]), store=store)
    flujo.run(0)
    assert store.appends == 50  # one for each step, the last of which is written with the end


@pytest.mark.slow
def test_a_slow_step_is_one_more_commit() -> None:
    """Its start, once, however long it takes; with its true time."""
    store = _CountingAppends(MemoryStore())

    async def slow(x: int) -> int:
        await trio.sleep(1.0)
        return x

    Flujo(Step("slow", slow), store=store).run(0, run_id="r")
    assert store.appends == 2
    _, start, end, _ = store.scan("r")
    assert start.kind == "started"
    began = (start.at or 0) - start.latency_s
    assert abs((end.at or 0) - end.latency_s - began) < 0.9  # the step took a second


# --- the fold ---


def test_a_projector_is_fed_record_by_record(place: Place) -> None:
    """It says at every record what `state_at` says."""
    store = place.open()
    Flujo(CHAIN, store=store).run(1, run_id="r")
    projector, client = Projector("r"), RunClient(store)
    for record in store.read("r"):
        projector.apply(record)
        assert projector.state() == client.state_at("r", record.seq)


def _wait_until(done: Any) -> None:
    for _ in range(3000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 30 s")


async def _awaited(flujo: Flujo, run_id: str) -> None:
    await flujo.run_async(1, run_id=run_id)


async def _gather(client: RunClient, run_id: str, seen: list[list[LightRecord]]) -> None:
    seen.append([row async for row in client.watch(run_id)])


async def _until_admitted(store: Any, run_id: str) -> None:
    while not await trio.to_thread.run_sync(lambda: store.look([run_id])):
        await trio.sleep(0.005)


class _Counting:
    """A store that counts who asks it what, and in how many threads."""

    def __init__(self, inner: SqliteStore) -> None:
        self._inner, self.place = inner, inner.place
        self.looks = self.scans = 0
        self._threads: set[int] = set()

    @property
    def threads(self) -> int:
        return len(self._threads)

    def look(self, run_ids: Any) -> Any:
        self.looks += 1
        self._threads.add(threading.get_ident())
        return self._inner.look(run_ids)

    def scan(self, *args: Any, **options: Any) -> Any:
        self.scans += 1
        return self._inner.scan(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CountingAppends:
    """A store that counts its commits."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner, self.appends = inner, 0

    def append(self, batch: Any) -> Any:
        self.appends += 1
        return self._inner.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Without:
    """A store that lacks some methods."""

    def __init__(self, inner: MemoryStore, *lacking: str) -> None:
        self._inner, self._lacking = inner, lacking

    def __getattr__(self, name: str) -> Any:
        if name in self._lacking:
            raise AttributeError(name)
        return getattr(self._inner, name)
