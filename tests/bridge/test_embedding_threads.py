"""Synchronous steps run in threads: quick ones are waited for where one is, slow ones let the loop go on."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sniffio
import trio
from embedding_hosts import HostCase, TrioRounds, each_host

from flujo_actors import Flujo, Pipeline, Step, abandoned_threads
from flujo_actors._bridge import threads
from flujo_actors._dsl import call_plan
from flujo_actors.errors import StepTimeout

STEPS = 20
seen_by: contextvars.ContextVar[str] = contextvars.ContextVar("seen_by", default="nobody")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a call counts as quick."""
    monkeypatch.setattr(threads, "QUICK_S", 60.0)
    monkeypatch.setattr(call_plan, "QUICK_S", 60.0)


def where(data: Any) -> tuple[Any, threading.Thread]:
    return data, threading.current_thread()


def chain(fn: Any) -> Flujo:
    return Flujo(Pipeline(Step(f"s{number}", fn) for number in range(STEPS)))


@each_host
def test_a_sync_step_runs_in_a_thread_however_quick_it_is(host: HostCase, patience: None) -> None:
    """Nothing that it does can hold up the loop for longer than a quick call takes."""

    async def main() -> None:
        for _ in range(3):
            _, thread = (await Flujo(Step("s", where)).run_async(1)).output
            assert thread is not threading.current_thread()

    host.run(main)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_quick_sync_step_needs_no_more_turns_of_the_loop_than_an_async_one(patience: None, kind: str) -> None:
    """One turn, which others get before it begins, and no task."""

    def sync(data: int) -> int:
        return data + 1

    async def at_once(data: int) -> int:
        return data + 1

    flujo = chain(sync if kind == "sync" else at_once)

    async def main() -> int:
        rounds = TrioRounds()
        assert (await flujo.run_async(0)).output == STEPS
        return rounds.count

    assert trio.run(main) <= STEPS + 5


@each_host
def test_the_loop_goes_on_while_a_sync_step_takes_its_time(host: HostCase) -> None:
    """A step that waits for somebody on the loop gets what it waits for, the first time and later."""
    told = threading.Event()

    def waits(data: int) -> bool:
        return told.wait(60)

    async def tell() -> None:
        told.set()

    async def main() -> None:
        flujo = Flujo(Step("waits", waits))
        for _ in range(3):
            told.clear()
            async with anyio.create_task_group() as group:
                run = flujo.run_async(1)
                group.start_soon(tell)
                assert (await run).output is True

    host.run(main)


def test_a_function_that_was_slow_is_not_waited_for_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first call tells; one that is quick again is waited for from then on."""
    stays: list[bool] = []
    ends_soon = threads._Call.ends_soon

    def noted(call: Any) -> bool:
        stays.append(True)
        return ends_soon(call)

    monkeypatch.setattr(threads._Call, "ends_soon", noted)
    taken = [1.0, 1.0, 0.0, 0.0]
    monkeypatch.setattr(
        call_plan.Pace, "took", lambda self, seconds: setattr(self, "quick", taken.pop(0) <= call_plan.QUICK_S)
    )
    flujo, seen = Flujo(Step("s", where)), []
    for _ in range(4):
        stays.clear()
        flujo.run(1)
        seen.append(bool(stays))
    assert seen == [True, False, False, True]


@each_host
@pytest.mark.parametrize("quick", [True, False])
def test_a_sync_step_sees_the_variables_of_its_caller_and_keeps_its_own(
    host: HostCase, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sets is seen by nobody else, and it is told of no event loop, for its thread runs none."""
    monkeypatch.setattr(threads, "QUICK_S", 60.0 if quick else 0.0)

    def looks(data: list[str]) -> list[str]:
        before = seen_by.get()
        seen_by.set("a step")
        with pytest.raises(sniffio.AsyncLibraryNotFoundError):
            sniffio.current_async_library()
        return [*data, before]

    async def main() -> None:
        seen_by.set("caller")
        result = await Flujo(Step("one", looks) >> Step("two", looks)).run_async([])
        assert (result.output, seen_by.get()) == (["caller", "caller"], "caller")

    host.run(main)


@each_host
@pytest.mark.parametrize("quick", [True, False])
def test_what_a_sync_step_raises_is_its_failure(host: HostCase, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came to the loop."""
    monkeypatch.setattr(threads, "QUICK_S", 60.0 if quick else 0.0)

    def breaks(data: int) -> int:
        raise KeyError("nothing there")

    async def main() -> None:
        result = await Flujo(Step("breaks", breaks)).run_async(1)
        error = result.step_history[-1]
        assert not error.success
        assert "KeyError" in (error.feedback or "")

    host.run(main)


@each_host
def test_a_sync_step_that_is_too_late_is_left_behind_and_frees_its_place(host: HostCase) -> None:
    """With one place for all, the next step begins when the thread that was left has ended."""
    go_on = threading.Event()

    def stuck(data: int) -> bool:
        return go_on.wait(60)

    async def main() -> None:
        settings: Any = {"sync_step_threads": 1}
        late = await Flujo(Step("stuck", stuck, timeout_s=0.05), settings=settings).run_async(1)
        assert StepTimeout.__name__ in (late.step_history[-1].feedback or "")
        assert abandoned_threads() == ("stuck",)
        async with anyio.create_task_group() as group:
            run = Flujo(Step("next", where), settings=settings).run_async(2)
            group.start_soon(anyio.to_thread.run_sync, go_on.set)
            assert (await run).output[0] == 2
        assert abandoned_threads() == ()

    host.run(main)
