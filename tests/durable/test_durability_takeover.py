"""After a crash: who is taken over from at once, who is waited for, and what `recover()` takes and leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from flujo_actors import (
    FingerprintMismatch,
    Flujo,
    LeftRun,
    MemoryStore,
    NotPaused,
    Pipeline,
    RecoveryReport,
    RunClient,
    RunLeased,
    Step,
)
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Admission, Append, Lease
from flujo_actors._durable.leases import new_owner, this_process
from flujo_actors.stores._lease_clock import ManualClock
from kit import preloaded
from kit.durable_places import Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, ended, forked, in_another_process

SHORT = {"durability": {"lease_s": 10.0}}

CRASHED = """
import os, signal, sys
from flujo_actors import Flujo, Step
async def first(x): return x + 1
async def second(x):
    if sys.argv[2] == "run": os.kill(os.getpid(), signal.SIGKILL)
    return x * 10
flujo = Flujo(Step("first", first) >> Step("second", second), store=sys.argv[1])
print((flujo.run(1, run_id="r") if sys.argv[2] == "run" else flujo.resume("r")).output)
"""


def working(effects: Effects, passing: Any = lambda name: None) -> Pipeline:
    """Two steps with an effect each."""

    async def first(data: int) -> int:
        effects.add("first")
        return data + 1

    async def second(data: int) -> int:
        passing("second")
        effects.add("second")
        return data * 10

    return Step("first", first) >> Step("second", second)


def dies(place: Place, effects: Effects, run_id: str = "run") -> None:
    """A process that is killed in its second step, with all of its lease ahead."""
    dying = Flujo(working(effects, Points(name="second")), store=place.open())
    assert in_another_process(lambda: dying.run(1, run_id=run_id)) == KILLED


def held_elsewhere(store: Any, run_id: str = "run", *, lease_s: float = 60.0) -> str:
    """Let somebody of another machine hold an unfinished run."""
    owner = attrs.evolve(this_process(), host="elsewhere").owner("claim")
    store.claim(run_id, owner=owner, lease_s=lease_s)
    return owner


def unfinished(store: Any, effects: Effects, run_id: str = "run") -> Flujo:
    """A run that was cancelled in its first step, so that nobody holds it."""
    flujo = Flujo(working(effects), store=store, settings=SHORT)

    async def leave() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await flujo.run_async(1, run_id=run_id)

    trio.run(leave)
    return flujo


# --- resume ---


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_resumed_at_once(tmp_path: Path) -> None:
    """A supervisor that restarts a killed worker need not wait for a lease that nobody will renew."""
    url = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", CRASHED, url]
    assert preloaded.run([*command, "run"], check=False).returncode == -signal.SIGKILL
    resumed = preloaded.run([*command, "resume"], capture_output=True, text=True, check=True)
    assert resumed.stdout.strip() == "20"


def test_what_a_dead_process_held_is_taken_over_from_any_store(place: Place, effects: Effects) -> None:
    """Without a wait: its death is known, and what it had done is not done again."""
    dies(place, effects)
    result = Flujo(working(effects), store=place.open()).resume("run", wait=False)
    assert (result.status, result.output) == ("completed", 20)
    assert effects.counted() == {"first": 1, "second": 1}


def test_a_zombie_is_dead_and_a_stopped_process_is_not(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """A process that ended holds nothing, whether its parent has asked for it or not; one that is stopped may go on."""
    begun, tell = os.pipe()

    def wait(name: str) -> None:
        os.write(tell, b"!")
        time.sleep(600)

    store = sqlite_place.open()
    child = forked(lambda: Flujo(working(effects, wait), store=store).run(1, run_id="run"))
    os.read(begun, 1)
    os.kill(child, signal.SIGSTOP)
    resuming = Flujo(working(effects), store=sqlite_place.open())
    with pytest.raises(RunLeased, match=rf"held by process {child} on '.*', which is alive, .* s from now") as refused:
        resuming.resume("run", wait=False)
    assert 0 < (refused.value.left_s or 0) <= 30
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert resuming.resume("run", wait=False).output == 20
    assert ended(child) == KILLED
    os.close(begun), os.close(tell)


def test_a_lease_of_another_machine_is_waited_for(effects: Effects, caplog: pytest.LogCaptureFixture) -> None:
    """Until it expires; that and how long is said once."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    flujo = unfinished(store, effects)
    held_elsewhere(store, lease_s=60.0)
    caplog.handler.addFilter(lambda record: clock.advance(61) is None)  # it expires when the wait was reported
    assert flujo.resume("run").output == 20
    [said] = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert "'elsewhere', which cannot be seen from here" in said
    assert "60.0 s from now" in said


def test_who_does_not_wait_is_told_until_when_and_what_to_do(effects: Effects) -> None:
    """The time left is an attribute, too."""
    store = MemoryStore()
    flujo = unfinished(store, effects)
    owner = held_elsewhere(store, lease_s=60.0)
    with pytest.raises(RunLeased, match=r"until \d+-\d+-\d+ .* UTC, [56]\d\.\d s from now.*resume waits") as refused:
        flujo.resume("run", wait=False)
    assert refused.value.owner == owner
    assert 50 < (refused.value.left_s or 0) <= 60


@pytest.mark.trio
async def test_an_owner_that_renews_its_lease_is_not_waited_for_for_ever(effects: Effects, autojump_clock: Any) -> None:
    """Its lease has not expired when it should have: so it lives."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    flujo = await trio.to_thread.run_sync(unfinished, store, effects)
    held_elsewhere(store, lease_s=20.0)
    begun = trio.current_time()
    with pytest.raises(RunLeased, match="renewed while this call waited"):
        await flujo.resume_async("run")
    assert 20 <= trio.current_time() - begun <= 22


@pytest.mark.trio
async def test_whoever_waits_learns_that_the_run_has_ended(effects: Effects) -> None:
    """Before its lease is over: there is nothing left to wait for."""
    store = MemoryStore()
    flujo = await trio.to_thread.run_sync(unfinished, store, effects)
    owner = held_elsewhere(store, lease_s=600.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_refused_as_ended, flujo)
        await trio.testing.wait_all_tasks_blocked(0.05)
        lease = Lease(run_id=RunId("run"), owner=owner, epoch=store.get(RunId("run")).epoch)
        store.append([Append(lease=lease, records=(), status="completed", release=True)])


async def _refused_as_ended(flujo: Flujo) -> None:
    with trio.fail_after(120), pytest.raises(NotPaused, match="has ended as completed"):
        await flujo.resume_async("run")


@pytest.mark.slow
@pytest.mark.trio
async def test_a_run_that_this_process_works_on_is_not_waited_for(effects: Effects) -> None:
    """A step that resumes its own run would wait for itself; it is told so, and soon."""
    store, told = MemoryStore(), []

    async def work(data: int) -> int:
        with trio.fail_after(120):
            try:
                await flujo.resume_async("run")
            except RunLeased as error:
                told.append(str(error))
        return data

    flujo = Flujo(Step("work", work), store=store)
    assert (await flujo.run_async(1, run_id="run")).status == "completed"
    assert "this very process" in told[0]


@pytest.mark.slow
def test_what_this_process_holds_and_does_not_work_on_is_waited_for(effects: Effects) -> None:
    """As when a store failed while a run was given up: its lease expires, and this process can go on."""
    store = MemoryStore()
    flujo = unfinished(store, effects)
    store.claim(RunId("run"), owner=new_owner(), lease_s=1.0)
    assert flujo.resume("run").output == 20


class OfOthers:
    """Somebody's own store, which can neither take over from the dead nor say who holds a run."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        if name in ("take_over", "request_cancel", "cancel_requests"):
            raise AttributeError(name)
        return getattr(self._store, name)

    def get(self, run_id: Any) -> Any:
        return attrs.evolve(self._store.get(run_id), owner=None, left_s=None)


def test_a_store_that_cannot_take_over_is_waited_for(effects: Effects) -> None:
    """For the lease it grants, since it does not say how long that lasts."""
    store = OfOthers()
    flujo = unfinished(store, effects)
    held_elsewhere(store, lease_s=0.5)
    assert flujo.resume("run").output == 20


# --- recover ---


def test_recover_takes_over_from_the_dead_and_says_what_it_left(
    place: Place, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    """The results are a list; beside it stands what somebody else holds, and for how long."""
    for number in range(3):
        dies(place, effects, f"dead {number}")
    unfinished(place.open(), effects, "away")
    held_elsewhere(place.open(), "away", lease_s=3600.0)
    recovered = Flujo(working(effects), store=place.open()).recover()
    assert isinstance(recovered, RecoveryReport)
    assert {result.run_id for result in recovered} == {"dead 0", "dead 1", "dead 2"}
    assert {(result.status, result.output) for result in recovered} == {("completed", 20)}
    [left] = recovered.left
    assert isinstance(left, LeftRun)
    assert left.run_id == "away"
    assert "'elsewhere', which cannot be seen from here" in left.reason
    assert isinstance(left.error, RunLeased)
    assert (left.error.left_s or 0) > 3000
    assert "recover() left run 'away'" in caplog.text


def test_recover_leaves_what_a_living_process_works_on(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """It says that it lives, and does not wait for it."""
    begun, tell = os.pipe()

    def wait(name: str) -> None:
        os.write(tell, b"!")
        time.sleep(600)

    store = sqlite_place.open()
    child = forked(lambda: Flujo(working(effects, wait), store=store).run(1, run_id="run"))
    os.read(begun, 1)
    recovered = Flujo(working(effects), store=sqlite_place.open()).recover()
    assert recovered == []
    assert f"process {child}" in recovered.left[0].reason
    assert "which is alive" in recovered.left[0].reason
    os.kill(child, signal.SIGKILL)
    ended(child)
    os.close(begun), os.close(tell)


def test_recover_may_wait_for_leases(effects: Effects) -> None:
    """Also for those of other machines, all at the same time, behind what can be had at once."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(3):
        flujo = unfinished(store, effects, f"run {number}")
        held_elsewhere(store, f"run {number}", lease_s=60.0)
    unfinished(store, effects, "free")
    assert [result.run_id for result in flujo.recover()] == ["free"]
    threading.Timer(0.3, clock.advance, [61]).start()
    recovered = flujo.recover(wait=True)
    assert {result.run_id for result in recovered} == {"run 0", "run 1", "run 2"}
    assert recovered.left == ()


@pytest.mark.parametrize("run", [asyncio.run, lambda awaitable: trio.run(lambda: awaitable)], ids=["asyncio", "trio"])
def test_a_run_that_raises_or_waits_does_not_keep_the_others(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Poisonous runs are named with what they raised; the others are finished beside one that waits for them."""
    store = MemoryStore()
    flujo = Flujo(Step("work", _ends_last_if_it_waits(store)), store=_Poisonous(store))
    names = ["waits", "raises", *SOUND]

    async def leave() -> None:
        for name in names:
            with trio.CancelScope() as scope:
                scope.cancel()
                await flujo.run_async(name, run_id=name)

    trio.run(leave)
    recovered = run(flujo.recover_async())
    assert {result.run_id for result in recovered} == set(names) - {"raises"}
    [left] = recovered.left
    assert (left.run_id, left.reason) == ("raises", "it raised ZeroDivisionError: poison")
    assert "recover() left run 'raises': it raised ZeroDivisionError: poison" in caplog.text


SOUND = [f"sound {number}" for number in range(5)]


def _ends_last_if_it_waits(store: MemoryStore) -> Any:
    def work(name: str) -> str:
        while name == "waits" and any(_is_open(store, each) for each in SOUND):
            time.sleep(0.01)
        return name

    return work


def _is_open(store: MemoryStore, run_id: Any) -> bool:
    return store.get(run_id).status == "running"


class _Poisonous:
    """A store that raises what no store may when one of its runs is read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, run_id: Any, *, after: int = 0) -> Any:
        if run_id == "raises":
            raise ZeroDivisionError("poison")
        return self._store.read(run_id, after=after)


@pytest.mark.trio
async def test_recover_works_on_so_many_runs_at_once() -> None:
    """No more than the setting says."""
    store, at_work, most, three = MemoryStore(), set(), [0], trio.Event()

    async def work(data: int) -> int:
        at_work.add(data)
        most.append(len(at_work))
        if len(at_work) == 3:
            three.set()
        await three.wait()
        at_work.remove(data)
        return data

    flujo = Flujo(Step("work", work), store=store, settings={"durability": {"recover_at_once": 3}})
    for number in range(10):
        with trio.CancelScope() as scope:
            scope.cancel()
            await flujo.run_async(number, run_id=str(number))
    recovered = await flujo.recover_async()
    assert len(recovered) == 10
    assert max(most) == 3


def test_recover_takes_a_mode(effects: Effects) -> None:
    """Runs of an earlier deploy are recovered if what they have done still holds."""
    store = MemoryStore()
    unfinished(store, effects)
    longer = Flujo(working(effects) >> Step("third", _same), store=store)
    longer.pipeline = attrs.evolve(longer.pipeline, name="first >> second")  # runs are found by their pipeline's name
    refused = longer.recover()
    assert refused == []
    assert isinstance(refused.left[0].error, FingerprintMismatch)
    assert [result.output for result in longer.recover(mode="compat")] == [20]


async def _same(data: Any) -> Any:
    return data


@pytest.mark.parametrize("mode", ["Strict", "compatt", "", None, "forced"])
def test_a_mode_that_there_is_not_is_refused(mode: Any) -> None:
    """Before anything is done, with or without a store; it must not be taken for leave to go on."""
    for flujo in (Flujo(Step("a", _same)), Flujo(Step("a", _same), store=MemoryStore())):
        for call in (
            lambda flujo=flujo: flujo.resume("token", "yes", mode=mode),
            lambda flujo=flujo: flujo.resume("run", mode=mode),
            lambda flujo=flujo: flujo.resume_async("run", mode=mode),
            lambda flujo=flujo: flujo.recover(mode=mode),
        ):
            with pytest.raises(ValueError, match="choose one of 'strict', 'compat', 'force'"):
                call()


def test_many_left_runs_are_claimed_together(place: Place) -> None:
    """Claims and commits of a recovery are shared: far fewer transactions than runs."""
    store = place.open()
    flujo = Flujo(Step("one", lambda n: n + 1) >> Step("two", lambda n: n + 1), store=store)
    first = flujo.run(1, run_id="first")
    admitted = store.read("first")[0]
    lost = [Admission(run_id=RunId(f"run {n}"), pipeline=flujo.pipeline.title, body=admitted.body) for n in range(96)]
    store.admit_all(lost, owner="nobody", lease_s=0.0001)
    claims: list[int] = []
    claim_all = type(store).claim_all

    class Counting(type(store)):  # type: ignore[misc]
        def claim_all(self, runs: Any, **options: Any) -> Any:
            claims.append(len(runs))
            return claim_all(self, runs, **options)

    store.__class__ = Counting
    recovered = flujo.recover()
    assert [result.output for result in recovered] == [first.output] * 96
    assert sum(claims) == 96
    assert len(claims) <= 48
    assert {run.status for run in RunClient(store).list()} == {"completed"}


class DyingClaims:
    """Store whose process is killed right after a claim, before it writes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim_next(self, *given: Any, **options: Any) -> Any:
        return self._die_after(self._store.claim_next(*given, **options))

    def claim(self, *given: Any, **options: Any) -> Any:
        return self._die_after(self._store.claim(*given, **options))

    def _die_after(self, claimed: Any) -> Any:
        if claimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return claimed


def waiting(kind: str) -> Pipeline:
    wait = Step.human_in_the_loop("wait", "How?", input_schema=int) if kind == "question" else Step.sleep("wait", 1.5)
    return Step("first", abs) >> wait >> Step("last", abs)


def work_once(flujo: Flujo) -> None:
    """Execute what is queued, and stop."""

    async def main() -> None:
        async with flujo.worker(once=True, look_s=0.05) as worker:
            await worker.stopped()

    trio.run(main)


@pytest.mark.parametrize("finder", ["worker", "recover"])
@pytest.mark.parametrize("kind", ["question", "sleep"])
def test_a_run_is_found_whose_owner_died_between_claim_and_first_write(place: Place, kind: str, finder: str) -> None:
    """Its stored status is still that of the wait, and a worker or `recover()` continues it."""
    flujo, client = Flujo(waiting(kind), store=place.open()), RunClient(place.open())
    flujo.submit_sync(3, run_id="r")
    work_once(flujo)
    if kind == "question":
        client.answer(client.questions()[0].state_token, 7)
    else:
        client.wake("r")
    assert in_another_process(lambda: work_once(Flujo(waiting(kind), store=DyingClaims(place.open())))) == KILLED
    info = client.get("r")
    assert (info.status, info.state) == ("paused" if kind == "question" else "sleeping", "running")
    again = Flujo(waiting(kind), store=place.open())
    if finder == "worker":
        work_once(again)
    else:
        assert [result.status for result in again.recover()] == ["completed"]
    assert client.get("r").status == "completed"
