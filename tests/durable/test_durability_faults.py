"""A store that fails: never a completion without its record, a `StoreError` for the caller, and a run to resume."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import pytest
import trio
from tour import Tour, gone_on_to

from flujo_actors import Flujo, RunClient, Step, current_unit, make_agent_async
from flujo_actors._core.outcomes import RunId
from flujo_actors.errors import NotPaused, RunNotFound, StoreError
from flujo_actors.stores._lease_clock import ManualClock
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing import CallTool, scripted_model
from flujo_actors.testing.faulty_store import FaultyStore, store_faults
from kit.durable_places import AN_HOUR_LATER, PostgresPlace, SqlitePlace
from kit.effects import Effects
from kit.postgres_server import SessionServer

pytestmark = pytest.mark.slow

FAULTS = list(store_faults())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_call_may_fail_unnoticed(when: Literal["before", "after"], fault: str) -> None:
    """Whichever call fails, and however: the caller knows, and once the fault is gone the run comes to the same end."""
    pipeline = Step("one", _plus_one) >> Step.human_in_the_loop("ask", "?") >> Step("two", _plus_one)
    for number in range(1, 100):
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        faulty = FaultyStore(store, fail_at=number, error=store_faults()[fault], when=when)
        error = _failure_of(lambda: _completed(Flujo(pipeline, store=faulty)))  # noqa: B023 - called at once
        if len(faulty.calls) < number:
            break
        if number > 1 or when == "before":  # the first call asks for a run that is not there, and is told so
            assert str(error) == str(store_faults()[fault])
        clock.advance(3600)
        _failure_of(lambda: _completed(Flujo(pipeline, store=store)))  # noqa: B023 - called at once
        state = RunClient(store).state("run")
        assert (state.status, state.output, len(state.outcomes)) == ("completed", 42, 3), number
    assert number > 12


async def _plus_one(data: int) -> int:
    return data + 1


def _completed(flujo: Flujo) -> None:
    client = RunClient(flujo._store)
    try:
        info = client.get("run")
    except RunNotFound:
        flujo.run(0, run_id="run")
        info = client.get("run")
    if info.status == "running":
        flujo.resume("run")
        info = client.get("run")
    if info.status == "paused":
        flujo.resume("run") if info.state_token is None else flujo.resume(info.state_token, 41)


def _failure_of(work: Callable[[], None]) -> StoreError | None:
    try:
        work()
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_call_of_a_nested_pipeline_may_fail_unnoticed(effects: Effects, when: Literal["before", "after"]) -> None:
    """Loops, branches, maps and fallbacks: the failure of any call reaches the caller from there, and costs nothing."""
    expected = gone_on_to(Tour(effects).complete(MemoryStore(), "run"))
    for number in range(1, 200):
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        error = store_faults()[FAULTS[number % len(FAULTS)]]
        faulty = FaultyStore(store, fail_at=number, error=error, when=when)
        told = _failure_of(lambda: Tour(effects).complete(faulty, "run"))  # noqa: B023 - called at once
        if len(faulty.calls) < number:
            break
        if number > 1 or when == "before":  # as above
            assert str(told) == str(error)
        clock.advance(3600)
        assert _gone_on(effects, store) == expected, number
    assert number > 25


def _gone_on(effects: Effects, store: Any) -> dict[str, Any]:
    """What the run comes to when its store works again."""
    client = RunClient(store)
    before = _ended(client)
    if before is None:
        return gone_on_to(Tour(effects).complete(store, "run"))
    # The answer to the last write was lost: it is done, and says so.
    with pytest.raises(NotPaused):
        Tour(effects).flujo(store).resume("run")
    return {
        "status": before.status,
        "output": before.output,
        "tokens": before.usage.tokens,
        "cost": before.usage.cost_usd,
        "context": vars(before.context),
        "steps": [(step.name, step.output, step.attempts) for step in before.results],
    }


def _ended(client: RunClient) -> Any:
    try:
        return client.state("run") if client.get("run").status == "completed" else None
    except RunNotFound:
        return None


def test_a_completion_is_not_told_before_it_is_written() -> None:
    """If the last record cannot be written, the result is an error, and the run is not completed."""
    store = MemoryStore()
    faulty = FaultyStore(store)
    Flujo(Step("one", lambda data: data), store=faulty).run(0, run_id="counted")
    last = len(faulty.calls)
    assert faulty.calls[-1] == "append"
    with pytest.raises(StoreError):
        Flujo(Step("one", lambda data: data), store=FaultyStore(store, fail_at=last)).run(0, run_id="run")
    assert RunClient(store).get("run").status == "running"
    assert Flujo(Step("one", lambda data: data), store=store).resume("run").status == "completed"


def test_every_run_of_a_failed_commit_is_told_by_an_error_of_its_own() -> None:
    """Twenty runs share a commit that fails: twenty errors, twenty runs to resume."""
    store = MemoryStore()
    flujo = Flujo(Step("one", lambda data: data), store=FaultyStore(store, fail_at=2, times=20))
    errors: list[StoreError] = []

    async def run(number: int) -> None:
        with pytest.raises(StoreError) as caught:
            await flujo.run_async(number, run_id=str(number))
        errors.append(caught.value)

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(run, number)

    trio.run(all_of_them)
    assert len({id(error) for error in errors}) == 20


def test_a_store_that_breaks_its_contract_is_a_store_error() -> None:
    """What it may not raise reaches the run that asked, not the loop that everybody shares."""
    odd = FaultyStore(MemoryStore(), fail_at=2, error=ZeroDivisionError("a bug"))
    with pytest.raises(StoreError, match="ZeroDivisionError: a bug"):
        Flujo(Step("one", lambda data: data), store=odd).run(0)


def test_a_file_that_is_locked_is_waited_for_while_the_loop_goes_on(sqlite_place: SqlitePlace) -> None:
    """Another process holds the write lock for three seconds: the run waits, a heartbeat beside it does not."""
    store = sqlite_place.open()
    flujo = Flujo(Step("one", lambda data: data), store=store)
    flujo.run(0, run_id="before")
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(trio.current_time())
            await trio.sleep(0.02)

    async def both() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            begun = trio.current_time()
            assert (await flujo.run_async(0, run_id="run")).status == "completed"
            nursery.cancel_scope.cancel()
        return trio.current_time() - begun

    with closing(sqlite3.connect(sqlite_place.path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        release = threading.Timer(3.0, lambda: db.execute("COMMIT"))
        release.start()
        assert trio.run(both) > 2.5
        release.join()
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 1.0


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(sqlite_place: SqlitePlace) -> None:
    """SQLite's own limit on the file's size stands for the disk."""
    store = sqlite_place.open()
    assert isinstance(store, SqliteStore)
    flujo = Flujo(Step("big", lambda data: "x" * data), store=store)
    flujo.run(1, run_id="small")
    limit = store._connections._open_writer().execute
    [(pages,)] = limit("PRAGMA page_count").fetchall()
    limit(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(StoreError, match="full"):
        flujo.run(200_000, run_id="run")
    assert RunClient(store).get("run").status == "running"
    limit(f"PRAGMA max_page_count = {pages + 4000}")
    assert Flujo(flujo.pipeline, store=sqlite_place.open(AN_HOUR_LATER)).resume("run").status == "completed"
    sqlite_place.check()


def test_postgres_restarts_under_twenty_runs(postgres_server: SessionServer, effects: Effects) -> None:
    """A crash of the server in the middle of them: each run completes, or can be resumed and then completes."""
    place = PostgresPlace(postgres_server.fresh_url(), safe=True)
    flujo = Flujo(_slow_pipeline(effects), store=place.open(timeout_s=30.0))
    ended: dict[str, str] = {}

    async def run(run_id: str) -> None:
        try:
            ended[run_id] = (await flujo.run_async(0, run_id=run_id)).status
        except StoreError:
            ended[run_id] = "told"

    async def restart() -> None:
        while len(effects.counted()) < 30:  # in the middle of it
            await trio.sleep(0.01)
        await trio.to_thread.run_sync(postgres_server.restart, "immediate")

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            for number in range(20):
                nursery.start_soon(run, f"run {number}")

    trio.run(all_of_them)
    late = place.open(AN_HOUR_LATER)
    for run_id, status in ended.items():
        if status != "completed":
            assert Flujo(_slow_pipeline(effects), store=late).resume(run_id).status == "completed"
    assert {run.status for run in RunClient(late).list()} == {"completed"}
    counted = effects.counted()
    assert len(counted) == 20 * 5
    assert set(counted.values()) <= {1, 2}
    place.check()
    place.close()


def _slow_pipeline(effects: Effects) -> Any:
    def step(name: str) -> Step:
        async def work(data: int, *, idempotency_key: str) -> int:
            effects.add(idempotency_key)
            await trio.sleep(0.05)
            return data + 1

        return Step(name, work)

    first, *others = (step(f"step {number}") for number in range(5))
    pipeline: Any = first
    for each in others:
        pipeline = pipeline >> each
    return pipeline


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_call_of_a_granular_step_is_no_failure_of_its_agent(
    when: Literal["before", "after"], fault: str
) -> None:
    """The caller gets the store's error, the run can be resumed, and a repeated unit has the same key."""
    for number in itertools.count(2):  # the first call asks for a run that does not exist
        keys: list[str] = []
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        faulty = FaultyStore(store, fail_at=number, error=store_faults()[fault], when=when)
        error = _failure_of(lambda: _completed_agent(faulty, keys))  # noqa: B023 - called at once
        if len(faulty.calls) < number:
            break
        assert error is None or str(error) == str(store_faults()[fault])  # live texts are sent if possible
        clock.advance(3600)
        _failure_of(lambda: _completed_agent(store, keys))  # noqa: B023 - called at once
        state = RunClient(store).state("run")
        assert (state.status, state.output) == ("completed", "done"), number
        assert (len(keys) <= 2, len(set(keys))) == (True, 1)
    assert number > 10


def _completed_agent(store: MemoryStore | FaultyStore, keys: list[str]) -> None:
    async def pay(amount: int) -> str:
        unit = current_unit()
        assert unit is not None
        keys.append(unit.idempotency_key)
        return f"paid {amount}"

    def reply(messages: list[Any]) -> CallTool | str:
        return CallTool("pay", {"amount": 9}) if len(messages) == 1 else "done"

    agent = make_agent_async(scripted_model(reply, forever=True), tools=[pay])
    _completed(Flujo(Step.granular("ask", agent), store=store))


@pytest.mark.trio
@pytest.mark.parametrize("method", ["look", "scan"])
async def test_a_watch_survives_whatever_its_store_raises(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the store does not declare does not end the thread of all watches: this one reads to the end."""
    store = MemoryStore()
    flujo = Flujo(Step("one", _plus_one) >> Step.human_in_the_loop("ask", "?"), store=store)
    paused = await flujo.run_async(1, run_id="r")
    client, original, seen, failed = RunClient(store), getattr(MemoryStore, method), list[int](), list[str]()

    def fails_once(me: MemoryStore, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(method)
            raise OSError("disk full")
        return original(me, *args, **options)

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        async for record in client.watch("r"):
            seen.append(record.seq)
            if record.kind == "paused":
                task_status.started()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            monkeypatch.setattr(MemoryStore, method, fails_once)
            assert paused.state_token is not None
            await flujo.resume_async(paused.state_token, "yes")
    assert (failed, seen) == ([method], [record.seq for record in store.read(RunId("r"))])
