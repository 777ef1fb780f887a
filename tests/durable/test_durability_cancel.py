"""Runs are cancelled from anywhere: also those that a living process works on."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from flujo_actors import (
    Aborted,
    Failure,
    Flujo,
    MemoryStore,
    NotPaused,
    Pipeline,
    RunClient,
    RunLeased,
    RunNotFound,
    Step,
    Success,
    Undo,
)
from flujo_actors._core.outcomes import RunId
from flujo_actors.stores._store_port import Store
from kit.durable_places import Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, ended, forked, in_another_process

RUN = RunId("run")
ABORTED = 5


def long(effects: Effects, begun: Any = lambda: None) -> Pipeline:
    """A step that goes on until it is cancelled, and one that must never begin."""

    async def wait(data: int) -> int:
        begun()
        try:
            await anyio.sleep(600)
        finally:
            effects.add("cleaned up")
        return data

    async def after(data: int) -> int:
        effects.add("after")
        return data

    return Step("wait", wait) >> Step("after", after)


def test_a_run_of_another_process_is_cancelled_within_a_second(place: Place, effects: Effects) -> None:
    """Its step is cancelled and cleans up, nothing after it begins, and its process learns why."""
    begun, tell = os.pipe()

    def work() -> None:
        pipeline = long(effects, lambda: os.write(tell, b"!"))
        result = Flujo(pipeline, store=place.open()).run(1, run_id="run")
        assert (result.status, result.feedback) == ("aborted", "too expensive")
        os._exit(ABORTED)

    child = forked(work)
    os.read(begun, 1)
    client = RunClient(place.open(), allow_blocking=True)
    client.cancel("run", "too expensive")
    asked = time.monotonic()
    while client.get("run").status == "running" and time.monotonic() < asked + 30:
        time.sleep(0.01)
    assert ended(child) == ABORTED
    assert (client.get("run").status, client.state("run").feedback) == ("aborted", "too expensive")
    assert effects.counted() == {"cleaned up": 1}
    with pytest.raises(NotPaused, match="has ended as aborted"):
        client.cancel("run")
    os.close(begun), os.close(tell)


async def cancelled_from_a_thread(flujo: Flujo, client: RunClient, begun: Any) -> Any:
    """The result of a run that somebody cancels as soon as its first step has begun."""
    results = []

    async def run() -> None:
        results.append(await flujo.run_async(1, run_id="run"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await begun.wait()
        await anyio.to_thread.run_sync(client.cancel, "run", "enough")
    return results[0]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_run_of_this_process_is_cancelled_on_every_host(backend: str, effects: Effects) -> None:
    """Whoever awaits it gets a result that says so; it is not an exception."""

    async def main() -> Any:
        store, begun = MemoryStore(), anyio.Event()
        flujo = Flujo(long(effects, begun.set), store=store)
        return await cancelled_from_a_thread(flujo, RunClient(store), begun), RunClient(store).get("run").status

    result, stored = anyio.run(main, backend=backend)
    assert (result.status, result.success, result.feedback, stored) == ("aborted", False, "enough", "aborted")
    assert effects.counted() == {"cleaned up": 1}


def test_the_owner_reads_a_request_with_its_next_write(place: Place, effects: Effects) -> None:
    """The step that is done stays done; the one after it is not begun, not even for a moment."""
    store = place.open()

    def first(data: int) -> int:
        RunClient(place.open(), allow_blocking=True).cancel("run", "enough")
        return data

    def second(data: int) -> int:
        effects.add("second")
        return data

    result = Flujo(Step("first", first) >> Step("second", second), store=store).run(1, run_id="run")
    assert (result.status, result.feedback) == ("aborted", "enough")
    assert effects.counted() == {}
    assert list(RunClient(store, allow_blocking=True).outcomes("run")) == ["first"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("undo", [None, False, True])
def test_a_run_that_is_cancelled_before_its_end_is_written_does_not_complete(
    place: Place, effects: Effects, *, undo: bool | None, fails: bool
) -> None:
    """Its last step stays as it settled. Compensations are executed, unless the request declines them."""

    def last(data: int) -> int:
        RunClient(place.open(), allow_blocking=True).cancel("run", "enough", undo=undo is not False)
        if fails:
            raise ValueError("no")
        return data

    def take_back(undone: Undo) -> None:
        effects.add("undone")

    first = Step("first", lambda data: data, **({} if undo is None else {"compensate": take_back}))
    result = Flujo(first >> Step("last", last), store=place.open()).run(1, run_id="run")
    assert (result.status, result.feedback, result.output) == ("aborted", "enough", None)
    assert [step.name for step in result.step_history][:2] == ["first", "last"]
    assert effects.counted() == ({"undone": 1} if undo else {})
    client = RunClient(place.open(), allow_blocking=True)
    assert (client.get("run").status, client.state("run").feedback) == ("aborted", "enough")
    assert isinstance(client.outcomes("run")["last"], Failure if fails else Success)


@pytest.mark.trio
async def test_all_open_steps_of_a_cancelled_run_settle_as_aborted() -> None:
    """Branches, the items of a map and what they are in, for whoever watches and for hooks."""
    store, begun, told, seen = MemoryStore(), trio.Event(), [], []
    at_work = []

    async def wait(data: int) -> int:
        at_work.append(data)
        if len(at_work) == 3:
            begun.set()
        await trio.sleep_forever()
        return data

    def hook(payload: Any) -> None:
        if payload.kind == "post_step":
            told.append(payload.path)

    each = Step.map_over("each", Step("item", wait))
    pipeline = Step.parallel("both", {"a": Step("a", wait), "b": each}, max_retries=3)
    flujo = Flujo(Step("two", lambda data: [1, 2]) >> pipeline, store=store, hooks=hook)

    async def watch() -> None:
        async for outcome in flujo.run_async(1, run_id="run"):
            seen.append(outcome)

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await begun.wait()
            await trio.to_thread.run_sync(RunClient(store, allow_blocking=True).cancel, "run", "enough")
    assert [outcome for outcome in seen[1:] if not isinstance(outcome, Aborted)] == []
    assert len(seen) == 6
    assert told[0] == "two"
    assert set(told[1:]) == {"both", "both/a", "both/b", "both/b/~i0", "both/b/~i1"}
    assert told[-1] == "both"
    assert store.get(RUN).status == "aborted"


def test_a_request_that_its_owner_did_not_live_to_read_ends_the_run_when_it_is_taken_over(
    place: Place, effects: Effects
) -> None:
    """By whoever resumes or recovers it, before a step begins."""

    def dies(data: int) -> int:
        effects.add("begun")
        RunClient(place.open(), allow_blocking=True).cancel("run", "enough")
        Points(name="here")("here")
        return data

    flujo = Flujo(Step("dies", dies), store=place.open())
    assert in_another_process(lambda: flujo.run(1, run_id="run")) == KILLED
    [result] = flujo.recover()
    assert (result.status, result.feedback) == ("aborted", "enough")
    assert effects.counted() == {"begun": 1}
    assert RunClient(place.open(), allow_blocking=True).get("run").status == "aborted"


def test_a_run_of_a_dead_process_is_cancelled_at_once(place: Place, effects: Effects) -> None:
    """Nobody has to read a request first."""
    dying = Flujo(Step("die", lambda data: Points(name="here")("here")), store=place.open())
    assert in_another_process(lambda: dying.run(1, run_id="run")) == KILLED
    client = RunClient(place.open(), allow_blocking=True)
    client.cancel("run", "enough")
    assert client.get("run").status == "aborted"
    assert dying.recover() == []


def test_a_run_that_pauses_when_its_end_was_asked_for_does_not_wait(place: Place) -> None:
    """Its question is not there to be answered."""
    store = place.open()

    def question(data: int, context: Any) -> str:
        RunClient(place.open(), allow_blocking=True).cancel("run", "enough")
        return "Go on?"

    Flujo(Step.human_in_the_loop("ask", question), store=store).run(1, run_id="run")
    client = RunClient(store, allow_blocking=True)
    assert (client.get("run").status, client.prompts()) == ("aborted", [])
    assert client.state("run").feedback == "enough"


@pytest.mark.trio
async def test_a_run_that_its_caller_leaves_when_its_end_was_asked_for_has_ended(effects: Effects) -> None:
    """It is not left behind for others to finish."""
    store = MemoryStore()

    async def leave(data: int) -> int:
        RunClient(store, allow_blocking=True).cancel("run", "enough")
        scope.cancel()
        await trio.sleep_forever()
        return data

    with trio.CancelScope() as scope:
        await Flujo(Step("leave", leave), store=store).run_async(1, run_id="run")
    assert store.get(RUN).status == "aborted"


def test_a_run_that_ends_first_stays_what_it_came_to() -> None:
    """Whoever cancels it then is told so."""
    store = MemoryStore()
    Flujo(Step("one", lambda data: data), store=store).run(0, run_id="run")
    with pytest.raises(NotPaused, match="has ended as completed"):
        RunClient(store, allow_blocking=True).cancel("run")
    with pytest.raises(RunNotFound):
        RunClient(store, allow_blocking=True).cancel("nobody")
    assert store.cancel_requests([RUN]) == {}


def test_what_is_given_up_while_a_request_is_left_is_ended_all_the_same() -> None:
    """An owner that stopped between a client's look and its request reads nothing any more."""
    store = MemoryStore()

    class Late:
        """A store whose owner gives the run up just before the request arrives."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def request_cancel(self, run_id: RunId, *, reason: str) -> None:
            give_up.set()
            given_up.wait(120)
            store.request_cancel(run_id, reason=reason)

    give_up, given_up, begun = threading.Event(), threading.Event(), threading.Event()

    async def work(data: int) -> int:
        begun.set()
        await trio.to_thread.run_sync(give_up.wait)
        scope.cancel()
        await trio.sleep_forever()
        return data

    scope = trio.CancelScope()

    async def main() -> None:
        with scope:
            await Flujo(Step("work", work), store=store).run_async(1, run_id="run")
        given_up.set()

    owner = threading.Thread(target=trio.run, args=(main,))
    owner.start()
    assert begun.wait(120)
    RunClient(Late(), allow_blocking=True).cancel("run", "enough")  # type: ignore[arg-type]
    owner.join()
    assert store.get(RUN).status == "aborted"


class OfOthers:
    """Somebody's own store, which knows no requests."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        if name in ("take_over", "request_cancel", "cancel_requests"):
            raise AttributeError(name)
        return getattr(self._store, name)


def test_a_store_that_cannot_pass_a_request_on_says_so() -> None:
    """The run goes on; what it can do without, such as cancelling what nobody works on, it does."""
    store: Any = OfOthers()

    def work(data: int) -> int:
        with pytest.raises(RunLeased, match=r"OfOthers has no `request_cancel`.* cancel it where it runs"):
            RunClient(store, allow_blocking=True).cancel("run")
        return data

    asking = Step("work", work) >> Step.human_in_the_loop("ask", "?")
    assert Flujo(asking, store=store).run(1, run_id="run").status == "paused"
    RunClient(store, allow_blocking=True).cancel("run", "enough")
    assert store.get(RUN).status == "aborted"


def test_a_reason_is_stored_without_secrets(
    sqlite_place: SqlitePlace, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it waits to be read, and where it is kept."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789abcdef")
    stores: list[Store] = [sqlite_place.open()]

    def work(data: int) -> int:
        RunClient(sqlite_place.open(), allow_blocking=True).cancel("run", "the key sk-canary-0123456789abcdef leaked")
        stores[0].request_cancel(RUN, reason="sk-canary-0123456789abcdef by another way")
        return data

    result = Flujo(Step("work", work), store=stores[0]).run(1, run_id="run")
    assert "canary" not in str(result.feedback)
    Flujo(Step.human_in_the_loop("ask", "?"), store=stores[0]).run(1, run_id="paused")
    RunClient(stores[0], allow_blocking=True).cancel("paused", "sk-canary-0123456789abcdef")
    sqlite_place.close()
    assert b"canary" not in b"".join(path.read_bytes() for path in sqlite_place.path.parent.glob("runs.db*"))


def test_many_runs_share_one_look_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asks its store once for all it works on, whatever their number."""
    monkeypatch.setattr("flujo_actors._durable.cancel_requests.LOOK_EVERY_S", 0.05)
    store, asked = MemoryStore(), []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def cancel_requests(self, run_ids: Any) -> Any:
            asked.append(len(run_ids))
            return store.cancel_requests(run_ids)

    async def wait(data: int) -> int:
        while 20 not in asked:
            await trio.sleep(0.01)
        return data

    async def main() -> None:
        flujo = Flujo(Step("wait", wait), store=Counting())
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(_run, flujo, number)

    trio.run(main)
    assert max(asked) == 20


async def _run(flujo: Flujo, number: int) -> None:
    await flujo.run_async(number, run_id=str(number))


def test_a_run_that_another_thread_works_on_is_cancelled_through_a_url(tmp_path: Any, effects: Effects) -> None:
    """The client needs the store's address, and nothing else."""
    url, begun = f"sqlite:///{tmp_path}/runs.db", threading.Event()
    results = []

    def work() -> None:
        results.append(asyncio.run(_awaited(Flujo(long(effects, begun.set), store=url).run_async(1, run_id="run"))))

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(120)
    RunClient(url, allow_blocking=True).cancel("run", "enough")
    worker.join(120)
    assert [result.feedback for result in results] == ["enough"]


async def _awaited(handle: Any) -> Any:
    return await handle
