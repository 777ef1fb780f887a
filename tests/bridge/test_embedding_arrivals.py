"""What threads bring back to a run: heard by the loop that drives it, in order, and not lost with the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, MemoryStore, Pipeline, Step
from flujo_actors._bridge.guest import current_guest
from flujo_actors._bridge.threads import way_in
from flujo_actors._core.records.records import RunQuery

STEPS = 20


async def agent(data: int) -> int:
    return data


FLUJO = Flujo(Step("same", agent))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What trio's own way in was asked for."""
    asked: list[object] = []
    soon = trio.lowlevel.TrioToken.run_sync_soon

    def run_sync_soon(self: Any, fn: Callable[..., object], *args: object, **options: bool) -> None:
        asked.append(fn)
        soon(self, fn, *args, **options)

    monkeypatch.setattr(trio.lowlevel.TrioToken, "run_sync_soon", run_sync_soon)
    return asked


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_commit_is_heard_by_the_loop_that_drives_the_run(told: list[object], backend: Any) -> None:
    """A trio program is told through trio's token, once for each commit; a guest on asyncio by asyncio's loop."""
    flujo = Flujo(Pipeline(Step(f"s{number}", agent) for number in range(STEPS)), store=MemoryStore())
    assert flujo.run(1, backend=backend).success
    assert len(told) < STEPS / 2 if backend == "asyncio" else len(told) >= STEPS  # alarms take trio's way, too


def test_what_threads_bring_is_called_in_the_order_of_coming() -> None:
    """Also if much comes at once."""

    async def heard() -> list[int]:
        post, called, all_there = way_in(), [], trio.Event()

        def bring() -> None:
            for number in range(100):
                post(lambda number=number: called.append(number))
            post(all_there.set)

        threading.Thread(target=bring).start()
        await all_there.wait()
        return called

    async def main() -> list[int]:
        guest = await current_guest()
        return await guest.call(heard)

    assert asyncio.run(main()) == trio.run(heard) == list(range(100))


@pytest.mark.parametrize("answers", ["before the loop is closed", "after the loop was closed"])
def test_an_answer_of_the_store_is_not_lost_with_the_loop(answers: str) -> None:
    """A loop is closed while a commit is under way: whoever needs the thread next brings the run to its end at once."""
    silent, speaks, answered = threading.Event(), threading.Event(), threading.Event()

    class Slow(MemoryStore):
        """Answers the first write when it is told to."""

        def append(self, batch: Any) -> Any:
            silent.set()
            assert speaks.wait(120)
            try:
                return super().append(batch)
            finally:
                answered.set()

    async def begin() -> None:
        kept.append(asyncio.ensure_future(flujo.run_async(1)._result()))
        while not silent.is_set():
            await asyncio.sleep(0.001)

    kept: list[Any] = []
    store = Slow()
    flujo = Flujo(Step("one", agent) >> Step("two", agent), store=store)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    if answers.startswith("before"):
        speaks.set()
        assert answered.wait(120)
    loop.close()
    speaks.set()
    assert FLUJO.run(1).output == 1
    [run] = store.find(RunQuery())
    assert not run.leased
    assert [record.path for record in store.read(run.run_id) if record.kind == "settled"] == ["one"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_arrival_that_fails_ends_the_run(backend: Any) -> None:
    """A store that answers fewer questions than it was asked leaves nobody waiting for ever."""

    class Short(MemoryStore):
        """Forgets its answers."""

        def append(self, batch: Any) -> Any:
            super().append(batch)
            return []

    with pytest.raises((trio.TrioInternalError, asyncio.CancelledError)):  # asyncio's loop reports the error itself
        Flujo(Step("one", agent) >> Step("two", agent), store=Short()).run(1, backend=backend)
