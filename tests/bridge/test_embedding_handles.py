"""What a handle says when it is used wrongly, and that no error of a run is swallowed, in every kind of program."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import anyio
import pytest
from embedding_hosts import HostCase, each_host

from flujo_actors import Flujo, RunExists, Step, StoreError, UsageLimitExceededError
from flujo_actors.stores._memory_store import MemoryStore


async def same(data: Any) -> Any:
    return data


async def greedy(data: Any) -> None:
    raise UsageLimitExceededError("enough")


class Down(MemoryStore):
    """A store that cannot be reached."""

    def admit_all(self, *args: Any, **options: Any) -> Any:
        raise StoreError("the store is down")


def _taken() -> Any:
    flujo = Flujo(Step("s", same))
    flujo.run(1, run_id="r")
    return flujo.run_async(1, run_id="r")


async def stopped(run: Any) -> None:
    """Wait until the run is over, however slow the machine is, without awaiting the run itself."""
    while not run._background._ended.is_set():
        await anyio.sleep(0.001)


STOPPED = {
    "a control error": (lambda: Flujo(Step("s", greedy)).run_async(1), UsageLimitExceededError),
    "an id that is taken": (_taken, RunExists),
    "a store that is down": (lambda: Flujo(Step("s", same), store=Down()).run_async(1), StoreError),
}

each_stop = pytest.mark.parametrize(("start", "expected"), STOPPED.values(), ids=STOPPED)


@each_host
@each_stop
def test_leaving_the_block_raises_what_stopped_the_run(host: HostCase, start: Any, expected: Any) -> None:
    """Whoever only enters the run learns of it, too."""
    run = start()

    async def main() -> None:
        async with run:
            await stopped(run)

    with pytest.raises(expected):
        host.run(main)


@each_host
@each_stop
def test_what_the_block_raises_goes_before(host: HostCase, start: Any, expected: Any) -> None:
    """Its own error is the one that its author looks for."""
    run = start()

    async def main() -> None:
        async with run:
            await stopped(run)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        host.run(main)


@each_host
@each_stop
@pytest.mark.parametrize("how", ["await", "iterate"])
def test_what_was_told_inside_the_block_is_not_told_again(host: HostCase, start: Any, expected: Any, how: str) -> None:
    """Whoever has handled an error has handled it."""
    run = start()

    async def read(run: Any) -> None:
        if how == "await":
            await run
        async for _ in run:
            pass

    async def main() -> str:
        async with run:
            with pytest.raises(expected):
                await read(run)
        return "left quietly"

    assert host.run(main) == "left quietly"


@each_host
def test_leaving_the_block_of_a_run_that_goes_well_raises_nothing(host: HostCase) -> None:
    """Neither when it has ended nor when leaving ends it."""

    async def slow(data: Any) -> None:
        await anyio.sleep(60)

    async def main() -> str:
        async with Flujo(Step("s", same)).run_async(1) as run:
            await stopped(run)
        async with Flujo(Step("s", slow)).run_async(1):
            await anyio.sleep(0.01)
        return "left quietly"

    assert host.run(main) == "left quietly"


@pytest.mark.parametrize("start", ["run_async", "run_outcomes_async", "resume_async"])
def test_a_handle_that_nobody_used_warns(start: str) -> None:
    """The run that its author expects has never begun."""
    flujo = Flujo(Step("s", same))
    with pytest.warns(ResourceWarning, match="never started: await, iterate or enter"):
        getattr(flujo, start)("data")


@each_host
def test_a_handle_that_was_used_does_not_warn(host: HostCase) -> None:
    """Awaited, iterated, entered or closed."""
    flujo = Flujo(Step("s", same))

    async def main() -> None:
        await flujo.run_async(1)
        async for _ in flujo.run_async(1):
            break
        async with flujo.run_async(1):
            pass
        flujo.run_async(1).close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host.run(main)
        gc.collect()


@pytest.mark.parametrize("name", ["output", "status", "feedback", "error", "unwrap", "step_history"])
def test_asking_a_handle_for_its_result_says_to_await_it_first(name: str) -> None:
    """It is the usual slip, and the warning about the handle would come too late."""
    run = Flujo(Step("s", same)).run_async(1)
    with pytest.raises(AttributeError, match=f"a run has no '{name}' before it has ended: await it first"):
        getattr(run, name)
    with pytest.raises(AttributeError, match="'RunHandle' object has no attribute 'nothing'"):
        run.nothing


@each_host
def test_a_task_group_of_anyio_starts_runs(host: HostCase) -> None:
    """`start_soon` takes `run_async` as it takes any async function, with the lowest anyio that is allowed, too."""
    done: list[int] = []

    async def note(data: int) -> int:
        done.append(data)
        return data

    async def main() -> None:
        flujo = Flujo(Step("s", note))
        async with anyio.create_task_group() as group:
            group.start_soon(flujo.run_async, 1)
            group.start_soon(flujo.run_async, 2)

    host.run(main)
    assert sorted(done) == [1, 2]
