"""Leases that hold: loops that are blocked, stores that are silent, loops that are closed, processes out of threads."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from silent_store import SilentStore

from flujo_actors import Flujo, LeaseLost, NotSerializable, RunClient, Step, StoreError
from flujo_actors._bridge.guest import end_orphans
from flujo_actors._core.records import record_bodies
from flujo_actors._durable.leases import LeaseTimes
from flujo_actors.stores._memory_store import MemoryStore
from kit.durable_places import Place

SHORT = {"durability": {"lease_s": 3.0}}
"""Enough for a slow machine to begin a step."""

Run = Callable[[Callable[[], Any]], Any]

on_both_hosts = pytest.mark.parametrize("run", [trio.run, lambda main: asyncio.run(main())], ids=["trio", "asyncio"])


async def same(data: int) -> int:
    return data


class CountingStore(MemoryStore):
    """Says when it has been asked for four renewals."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals, self.often = 0, threading.Event()

    def renew(self, leases: Any, *, lease_s: float) -> Any:
        self.renewals += len(leases)
        if self.renewals >= 4:
            self.often.set()
        return super().renew(leases, lease_s=lease_s)


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals of a lease that outlasts every pause of the machine, twenty times a second."""
    monkeypatch.setattr(LeaseTimes, "every_s", 0.05)


@pytest.mark.usefixtures("renewed_often")
@on_both_hosts
def test_a_step_that_blocks_its_loop_keeps_its_lease(run: Run) -> None:
    """The renewals are made by another thread: nobody begins the step elsewhere while this process lives."""
    store = CountingStore()

    async def blocking(data: int) -> int:
        assert store.often.wait(120)
        return data

    async def main() -> Any:
        return await Flujo(Step("blocking", blocking), store=store).run_async(1)

    assert run(main).status == "completed"


@pytest.mark.usefixtures("renewed_often")
def test_a_run_that_is_long_to_read_is_kept_meanwhile() -> None:
    """Its lease is renewed from the claim on: whoever resumes does not lose it before the first step."""
    store = CountingStore()
    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("same", same), store=store)
    token = flujo.run(1, run_id="run").state_token
    assert token is not None
    RunClient(store).answer(token, "yes")
    read = store.read

    def read_for_long(run_id: Any, *, after: int = 0) -> Any:
        assert store.often.wait(120)
        return read(run_id, after=after)

    store.read = read_for_long  # type: ignore[method-assign]
    assert flujo.resume("run").output == "yes"


class LockedStore(CountingStore):
    """Refuses the first five renewals, as a locked database does."""

    def renew(self, leases: Any, *, lease_s: float) -> Any:
        answers = super().renew(leases, lease_s=lease_s)
        if self.renewals <= 5:
            self.often.clear()
            raise StoreError("database is locked")
        return answers


@pytest.mark.usefixtures("renewed_often")
@on_both_hosts
def test_a_renewal_is_repeated_until_a_locked_store_is_free(run: Run) -> None:
    """The lease has not expired, so the step continues and is not repeated."""
    store, began = LockedStore(), list[int]()

    async def blocking(data: int) -> int:
        began.append(data)
        assert await trio.to_thread.run_sync(store.often.wait, 60) if run is trio.run else store.often.wait(60)
        return data

    async def main() -> Any:
        return await Flujo(Step("blocking", blocking), store=store).run_async(1)

    assert run(main).status == "completed"
    assert began == [1]


@on_both_hosts
def test_an_owner_whose_store_is_silent_stops_when_its_lease_is_over(run: Run) -> None:
    """It does not wait for the store to tell it: by its own clock somebody else may have the run by now."""
    store = SilentStore("renew")

    async def for_ever(data: int) -> int:
        await (asyncio.Event().wait() if run is not trio.run else trio.sleep_forever())
        return data

    async def main() -> None:
        flujo = Flujo(Step("for ever", for_ever), store=store, settings={"durability": {"lease_s": 0.6}})
        with pytest.raises(LeaseLost, match="the store has not answered for"):
            await flujo.run_async(1, run_id="run")

    run(main)
    assert not store.speaks.is_set()
    store.speaks.set()


@pytest.mark.slow
@on_both_hosts
@pytest.mark.parametrize("call", ["admit_all", "append"])
def test_who_cancels_a_run_does_not_wait_for_a_silent_store(run: Run, call: str) -> None:
    """The store speaks again only after the run has returned; the lease is then given up, and the run can go on."""
    store = SilentStore(call)
    flujo = Flujo(Step("same", same) >> Step("again", same), store=store)

    async def main() -> None:
        if run is trio.run:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(called)
                await trio.to_thread.run_sync(store.asked.wait, 60)
                nursery.cancel_scope.cancel()
        else:
            call = asyncio.ensure_future(flujo.run_async(1, run_id="run"))
            await asyncio.to_thread(store.asked.wait, 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        store.speaks.set()
        while not store.is_free("run", epoch=1):
            await (asyncio.sleep(0.01) if run is not trio.run else trio.sleep(0.01))

    async def called() -> None:
        await flujo.run_async(1, run_id="run")

    run(main)
    assert flujo.resume("run").status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["get", "claim", "read"])
def test_who_cancels_a_resume_does_not_wait_for_a_silent_store(call: str) -> None:
    """Whatever the store is asked then, and a lease that it grants too late is given up."""
    store = SilentStore()
    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("same", same), store=store)
    token = flujo.run(1, run_id="run").state_token
    assert token is not None
    RunClient(store.inner).answer(token, "yes")
    store.silent.add(call)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resumed)
            await trio.to_thread.run_sync(store.asked.wait, 60)
            nursery.cancel_scope.cancel()
        store.silent.clear()
        store.speaks.set()
        while not store.is_free("run", epoch=1 if call == "get" else 2):
            await trio.sleep(0.01)

    async def resumed() -> None:
        await flujo.resume_async("run")

    trio.run(main)
    assert flujo.resume("run").output == "yes"


OUT_OF_THREADS = """
import sys, threading, trio
from unittest import mock
from flujo_actors import Flujo, MemoryStore, Step, StoreError

async def same(data):
    return data

async def main():
    flujo = Flujo(Step("ask", same) >> Step("same", same), store=MemoryStore())
    refused = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
    with refused:
        try:
            await flujo.run_async(1, run_id="run")
        except StoreError as error:
            assert "no thread could be started" in str(error), error
        try:
            await flujo.resume_async("run")
        except StoreError as error:
            print(error)
    result = await flujo.run_async(2)
    print(result.status)

{run}
"""


@pytest.mark.slow
@pytest.mark.parametrize("run", ["trio.run(main)", "import asyncio; asyncio.run(main())"], ids=["trio", "asyncio"])
def test_a_process_out_of_threads_gets_an_error_and_can_go_on_later(run: str) -> None:
    """What cannot be written is a `StoreError` at once, and the next run works when there are threads again."""
    program = [sys.executable, "-c", OUT_OF_THREADS.replace("{run}", run)]
    said = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert said.stdout.splitlines()[-1:] == ["completed"], said.stderr
    assert "no thread could be started" in said.stdout


INTERRUPTED = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it
from flujo_actors import Flujo, Step
from flujo_actors.stores._memory_store import MemoryStore

class Silent(MemoryStore):
    def append(self, batch):
        print("silent", flush=True)
        threading.Event().wait()

async def same(data):
    return data

try:
    Flujo(Step("same", same), store=Silent()).run(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_a_silent_store() -> None:
    """Ctrl-C ends the program although the store never answers."""
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "silent\n"
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=120)[0] == "interrupted\n"


@pytest.mark.slow
def test_the_lease_of_a_run_whose_loop_was_closed_is_not_renewed_for_ever() -> None:
    """A closed loop cannot go on with its runs: somebody else may."""
    store = CountingStore()
    begun = asyncio.Event()

    async def for_ever(data: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return data

    async def main() -> None:
        flujo = Flujo(Step("for ever", for_ever), store=store, settings=SHORT)
        kept.append(asyncio.ensure_future(flujo.run_async(1, run_id="run")))
        await begun.wait()

    kept: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # asyncio complains of what is left pending
    loop.run_until_complete(main())
    loop.close()
    while store.get("run").leased:  # type: ignore[arg-type]
        time.sleep(0.05)
    end_orphans()


@on_both_hosts
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_stores_that_nobody_uses_any_more_are_closed(run: Run, kind: str, request: pytest.FixtureRequest) -> None:
    """A loop that lives for long keeps no files, connections and threads of the stores that were used on it."""
    place = request.getfixturevalue(f"{kind}_place")

    async def use_one() -> None:
        store = place.open()
        place.forget()
        assert (await Flujo(Step("same", same), store=store).run_async(1)).status == "completed"

    async def main() -> tuple[int, int]:
        await use_one()
        before = open_files(), threading.active_count()
        for _ in range(8):
            await use_one()
        for _ in range(3000):
            gc.collect()
            await (asyncio.sleep(0.01) if run is not trio.run else trio.sleep(0.01))
            if open_files() <= before[0] and threading.active_count() <= before[1] + 3:
                return 0, 0
        return open_files() - before[0], threading.active_count() - before[1]

    assert run(main) == (0, 0)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("text", ["x" * 40_000, "é" * 20_000, "😀" * 12_000], ids=["ascii", "two bytes", "four bytes"])
def test_an_output_that_is_too_long_to_be_stored_fails_its_step(
    place: Place, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """No database takes a value of more than about a gigabyte: the run ends, and says why."""
    monkeypatch.setattr(record_bodies, "MAX_BYTES", 30_000)  # a traceback fits, wherever the package is installed
    flujo = Flujo(Step("long", lambda data: text), store=place.open())
    result = flujo.run(1, run_id="run")
    assert (result.status, RunClient(place.open()).get("run").status) == ("failed", "failed")
    assert "too long" in (result.feedback or "")
    with pytest.raises(NotSerializable, match="too long"):
        flujo.run(text)


def test_an_output_that_is_just_short_enough_is_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count, not characters."""
    monkeypatch.setattr(record_bodies, "MAX_BYTES", 30_000)
    assert Flujo(Step("long", lambda data: "é" * 14_000), store=place.open()).run(1).status == "completed"


@pytest.mark.parametrize("begin", ["run", "resume"])
def test_an_error_before_the_first_step_releases_the_run(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot be loaded, or an engine that cannot be opened: others claim the run at once."""
    flujo = Flujo(Step("same", same), store=(store := MemoryStore()))
    if begin == "resume":
        flujo.submit_sync(1, run_id="r")

    def fail(*_: object) -> None:
        raise ImportError("no such library")

    call = functools.partial(flujo.run, 1, run_id="r") if begin == "run" else functools.partial(flujo.resume, "r")
    with monkeypatch.context() as broken:
        broken.setattr("flujo_actors._api.flujo.live_key", fail)
        with pytest.raises(ImportError):
            call()
    assert RunClient(store).get("r").state != "running"
    assert flujo.resume("r", wait=False).output == 1
