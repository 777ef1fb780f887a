"""One owner at a time: leases, thieves, owners that come back, and clocks that jump."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import attrs
import pytest
import trio
from silent_store import SilentStore

from flujo_actors import Flujo, LeaseLost, Pipeline, RunClient, RunLeased, Step
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.testing import JumpingClock
from flujo_actors.testing.faulty_store import FaultyStore
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, all_at_once, ended, forked, in_another_process

pytestmark = pytest.mark.slow

SHORT = {"durability": {"lease_s": 6.0}}
"""Renewed every two seconds, and kept for as long as a slow machine needs."""
RAN, LEASED, LOST = 0, 3, 4


def working(effects: Effects, passing: Any = lambda name: None, *, wait_s: float = 0.0) -> Pipeline:
    """Two steps with an effect each; the first takes its time."""

    async def first(data: int) -> int:
        effects.add("first")
        passing("first")
        await trio.sleep(wait_s)
        return data + 1

    async def second(data: int) -> int:
        effects.add("second")
        passing("second")
        return data + 1

    return Step("first", first) >> Step("second", second)


def test_of_two_resumes_at_once_one_runs(place: Place, effects: Effects) -> None:
    """The other is told that the run has an owner, and does nothing."""
    first = Flujo(working(effects, Points(name="second")), store=place.open())
    assert in_another_process(lambda: first.run(0, run_id="run")) == KILLED
    refused, tell = os.pipe()

    def resume(number: int) -> int:
        until_the_other_is_refused = working(effects, lambda name: os.read(refused, 1))
        try:
            Flujo(until_the_other_is_refused, store=place.open(AN_HOUR_LATER)).resume("run", wait=False)
        except RunLeased:
            os.write(tell, b"!")
            return LEASED
        return RAN

    assert sorted(all_at_once(2, resume)) == [RAN, LEASED]
    assert effects.counted() == {"first": 1, "second": 2}
    assert RunClient(place.open()).get("run").status == "completed"
    os.close(refused), os.close(tell)


def test_an_owner_that_was_stopped_past_its_lease_is_refused_and_stops(place: Place, effects: Effects) -> None:
    """A thief finishes the run; the owner wakes, cannot write, raises `LeaseLost`, and does nothing more."""
    begun, tell = os.pipe()
    go, resume = os.pipe()

    async def first(data: int) -> int:
        effects.add("first")
        os.write(tell, b"!")
        await trio.lowlevel.wait_readable(go)
        return data + 1

    [_, second] = working(effects).steps

    def own() -> None:
        try:
            Flujo(Step("first", first) >> second, store=place.open()).run(0, run_id="run")
        except LeaseLost:
            os._exit(LOST)

    owner = forked(own)
    os.read(begun, 1)
    os.kill(owner, signal.SIGSTOP)
    os.write(resume, b"!")
    thief = Flujo(Step("first", first) >> second, store=place.open(AN_HOUR_LATER))
    assert thief.resume("run").output == 2
    records = len(place.open().read("run"))
    os.kill(owner, signal.SIGCONT)
    assert ended(owner) == LOST
    assert effects.counted() == {"first": 2, "second": 1}
    assert len(place.open().read("run")) == records
    for end in (begun, tell, go, resume):
        os.close(end)


@attrs.frozen
class RunTime:
    """Leases counted in the time that a run experiences."""

    clock: JumpingClock

    def boot(self) -> str:
        return "the beginning of this test"

    def now(self) -> float:
        return 1000 + self.clock.current_time()


def test_a_lease_is_renewed_for_as_long_as_its_run_takes(place: Place) -> None:
    """A step that takes many leases keeps its run: nobody can take it, and its end is written."""
    clock = JumpingClock()
    store = place.open(RunTime(clock))

    async def long(data: int) -> int:
        for _ in range(20):
            await trio.sleep(25)
            with pytest.raises(RunLeased):
                await trio.to_thread.run_sync(lambda: store.claim("run", owner="thief", lease_s=1))
        return data

    async def main() -> Any:
        return await Flujo(Step("long", long), store=store).run_async(0, run_id="run")

    assert trio.run(main, clock=clock).status == "completed"
    assert clock.current_time() >= 500


@pytest.mark.trio
async def test_a_run_whose_lease_is_taken_is_cancelled_at_once(place: Place) -> None:
    """The next renewal finds out, while the step still waits for something else."""
    store, late = place.open(), place.open(AN_HOUR_LATER)

    async def wait(data: int) -> int:
        await trio.to_thread.run_sync(lambda: late.claim("run", owner="thief", lease_s=7200))
        await trio.sleep_forever()
        return data

    with pytest.raises(LeaseLost, match="was claimed"), trio.fail_after(120):
        await Flujo(Step("wait", wait), store=store, settings=SHORT).run_async(0, run_id="run")
    assert not [record for record in await trio.to_thread.run_sync(store.read, "run") if record.kind == "settled"]


def test_a_renewal_that_comes_after_the_end_is_not_a_loss(effects: Effects) -> None:
    """The lease was given up with the last record: the run is completed, and says so."""

    class Late:
        """Renewals wait until the lease is released."""

        def __init__(self) -> None:
            self.inner, self.renewals = MemoryStore(), 0
            self.asked, self.released = threading.Event(), threading.Event()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def renew(self, leases: Any, *, lease_s: float) -> Any:
            self.renewals += 1
            self.asked.set()
            assert self.released.wait(120)
            return self.inner.renew(leases, lease_s=lease_s)

        def append(self, batch: Any) -> Any:
            answers = self.inner.append(batch)
            if any(append.release for append in batch):
                self.released.set()
                time.sleep(0.1)  # the renewal is answered first
            return answers

    store = Late()
    until_it_is_asked = working(effects, lambda name: store.asked.wait(60))
    result = Flujo(until_it_is_asked, store=store, settings=SHORT).run(0)
    assert (result.status, store.renewals) == ("completed", 1)


@pytest.mark.trio
async def test_a_process_that_cannot_renew_stops_when_its_lease_has_expired(autojump_clock: Any) -> None:
    """By its own monotonic clock: it need not reach the store to know."""
    store = FaultyStore(MemoryStore(), fail_at=2, times=1000)

    with pytest.raises(LeaseLost, match="could not be renewed"):
        await Flujo(Step("wait", lambda data: data) >> Step("for_ever", forever), store=_Renewing(store)).run_async(0)


async def forever(data: int) -> int:
    await trio.sleep_forever()
    return data


class _Renewing:
    """A store whose renewals fail, and nothing else."""

    def __init__(self, faulty: FaultyStore) -> None:
        self._faulty = faulty

    def __getattr__(self, name: str) -> Any:
        if name == "renew":
            return self._faulty.renew
        return getattr(self._faulty._store, name)


def test_recover_takes_over_what_dead_processes_left(place: Place, effects: Effects) -> None:
    """All of them, at once, and none of those that live, wait or have ended."""
    for number in range(3):
        dying = Flujo(working(effects, Points(name="second")), store=place.open())
        assert in_another_process(lambda: dying.run(0, run_id=f"dead {number}")) == KILLED  # noqa: B023 - at once
    asking = Step("first", lambda data: data) >> Step.human_in_the_loop("second", "?")
    Flujo(working(effects), store=place.open()).run(0, run_id="ended")
    Flujo(asking, store=place.open()).run(0, run_id="waiting")
    recovered = Flujo(working(effects), store=place.open()).recover()
    assert {result.run_id for result in recovered} == {"dead 0", "dead 1", "dead 2"}
    assert {(result.status, result.output) for result in recovered} == {("completed", 2)}
    statuses = {run.run_id: run.status for run in RunClient(place.open()).list()}
    assert (statuses["ended"], statuses["waiting"]) == ("completed", "paused")


@pytest.mark.parametrize("run", [asyncio.run, lambda awaitable: trio.run(lambda: awaitable)], ids=["asyncio", "trio"])
def test_recover_async_takes_over_inside_a_loop(place: Place, effects: Effects, run: Any) -> None:
    """A server that starts finishes what the one before it left, on its own loop."""
    dying = Flujo(working(effects, Points(name="second")), store=place.open())
    assert in_another_process(lambda: dying.run(0, run_id="dead")) == KILLED
    [result] = run(Flujo(working(effects), store=place.open(AN_HOUR_LATER)).recover_async())
    assert (result.run_id, result.status, result.output) == ("dead", "completed", 2)


def test_recover_goes_on_with_runs_whose_questions_are_answered(place: Place) -> None:
    """A process that died between an answer and its use leaves nothing behind that nobody looks at."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("same", lambda data: data), store=place.open())
    token = flujo.run(0, run_id="run").state_token
    assert flujo.recover() == []
    assert token is not None
    RunClient(place.open()).answer(token, "yes")
    assert [result.output for result in flujo.recover()] == ["yes"]


def test_a_run_that_cannot_be_recovered_does_not_keep_others_from_it(
    sqlite_place: SqlitePlace, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    """Two runs of changed and damaged origin are named in the log; the third one goes on."""
    for run_id in ("damaged", "changed", "sound"):
        dying = Flujo(working(effects, Points(name="second")), store=sqlite_place.open())
        assert in_another_process(lambda: dying.run(0, run_id=run_id)) == KILLED  # noqa: B023 - called at once
    for run_id, old, new in (("damaged", '"input"', '"inp'), ("changed", "working.<locals>.second", "other")):
        sqlite_place.query(
            "UPDATE flujo_records SET body = replace(body, %s, %s) WHERE seq = 1 AND run = "
            "(SELECT id FROM flujo_runs WHERE run_id = %s)",
            *(old, new, run_id),
        )
    recovered = Flujo(working(effects), store=sqlite_place.open(AN_HOUR_LATER)).recover()
    assert [result.run_id for result in recovered] == ["sound"]
    assert "record 1 of run 'damaged'" in caplog.text
    assert "run 'changed' was started with another pipeline" in caplog.text


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_changes_nothing(
    place: Place, effects: Effects, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Leases are counted in monotonic time, or in the database's."""
    wall = time.time
    store = place.open() if isinstance(place, SqlitePlace) else place.open(clock=None)

    def jump(name: str) -> None:
        monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
        with pytest.raises(RunLeased):
            store.claim("run", owner="thief", lease_s=30)

    result = Flujo(working(effects, jump), store=store).run(0, run_id="run")
    assert (result.status, result.output) == ("completed", 2)


def test_a_run_that_is_cancelled_while_it_is_admitted_can_be_resumed_at_once(effects: Effects) -> None:
    """The admission is not taken back, so its lease is given up."""
    store = SilentStore("admit_all")

    async def cancelled() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(admitted)
            await trio.to_thread.run_sync(store.asked.wait, 60)
            nursery.cancel_scope.cancel()
        store.speaks.set()
        while not store.is_free("run", epoch=1):
            await trio.sleep(0.01)

    async def admitted() -> None:
        await Flujo(working(effects), store=store).run_async(0, run_id="run")

    trio.run(cancelled)
    assert effects.counted() == {}
    assert Flujo(working(effects), store=store).resume("run").status == "completed"


def test_a_cancelled_run_can_be_resumed_at_once(place: Place, effects: Effects) -> None:
    """Whoever is cancelled gives its lease up, instead of letting others wait until it expires."""

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            steps = working(effects, lambda name: scope.cancel(), wait_s=60)
            await Flujo(steps, store=place.open()).run_async(0, run_id="run")

    trio.run(cancelled)
    assert RunClient(place.open()).get("run").abandoned
    assert Flujo(working(effects), store=place.open()).resume("run").status == "completed"
