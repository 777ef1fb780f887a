"""The handle on a run: awaited, iterated, entered; and how each of them ends."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
import trio
import trio.testing
from scripted import Scripted, collected, same, told

from flujo_actors import Flujo, PipelineResult, Step
from flujo_actors.errors import LoopAlreadyRunning, RunExists


class Guarded:
    """Streams for ever and notes when it is cleaned up."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def stream(self, data: Any) -> Any:
        self.begun += 1
        try:
            while True:
                yield "piece"
                await trio.sleep(1)
        finally:
            self.ended += 1

    @property
    def running(self) -> int:
        return self.begun - self.ended


def endless(agent: Guarded) -> Flujo:
    """Three of them at once."""
    return Flujo(Step.parallel("p", {n: Step(f"s{n}", agent) for n in range(3)}))


@pytest.mark.trio
async def test_nothing_happens_before_the_handle_is_used(autojump_clock: Any) -> None:
    """A handle that is dropped has done nothing, and no id is taken; it was a mistake, so it warns."""
    agent = Scripted("x")
    flujo = Flujo(Step("s", agent))
    with pytest.warns(ResourceWarning, match="a run was never started"):
        flujo.run_async(1, run_id="r")
    await trio.sleep(1)
    assert agent.calls == []
    assert (await flujo.run_async(1, run_id="r")).success


@pytest.mark.trio
async def test_awaiting_twice_gives_the_same_result(autojump_clock: Any) -> None:
    """The run happens once."""
    agent = Scripted("x")
    handle = Flujo(Step("s", agent)).run_async(1)
    assert await handle is await handle
    assert len(agent.calls) == 1


@pytest.mark.trio
@pytest.mark.parametrize("entered", [False, True])
async def test_two_tasks_await_a_run_that_was_entered(autojump_clock: Any, entered: bool) -> None:
    """One that was not runs in the task that awaits it: whoever comes second is told what to do."""
    told: list[Any] = []

    async def work(data: int) -> int:
        await trio.sleep(1)
        return data

    async def wait(run: Any) -> None:
        try:
            told.append((await run).output)
        except RuntimeError as error:
            told.append(str(error))

    run = Flujo(Step("work", work)).run_async(7)
    async with contextlib.AsyncExitStack() as stack:
        if entered:
            await stack.enter_async_context(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, run)
            nursery.start_soon(wait, run)
    assert sorted(map(str, told))[0] == "7"
    assert told == [7, 7] if entered else "async with flujo.run_async" in str(told)


@pytest.mark.trio
async def test_iterating_and_then_awaiting_is_one_run(autojump_clock: Any) -> None:
    """The outcomes first, then the result."""
    agent = Scripted("x")
    handle = Flujo(Step("s", agent)).run_async(1)
    assert told(await collected(handle)) == ["success s"]
    result = await handle
    assert isinstance(result, PipelineResult)
    assert (result.output, len(agent.calls)) == ("x", 1)


@pytest.mark.trio
async def test_iterating_after_awaiting_says_that_the_outcomes_are_over(autojump_clock: Any) -> None:
    """They were not kept."""
    handle = Flujo(Step("s", same)).run_async(1)
    await handle
    with pytest.raises(RuntimeError, match="outcomes are over"):
        await collected(handle)


@pytest.mark.trio
async def test_entering_gives_outcomes_and_result(autojump_clock: Any) -> None:
    """Iterate, then await, inside the block."""
    async with Flujo(Step("s", same) >> Step("t", same)).run_async(1) as run:
        assert told(await collected(run)) == ["success s", "success t"]
        assert (await run).output == 1
        assert await run is await run
    assert (await run).success


@pytest.mark.trio
async def test_awaiting_inside_the_block_lets_unread_outcomes_go(autojump_clock: Any) -> None:
    """Also more of them than any buffer holds."""

    async def many(data: Any) -> Any:
        for _ in range(500):
            yield "x"

    async with Flujo(Step("s", many)).run_async(1) as run:
        assert len((await run).output) == 500


@pytest.mark.trio
async def test_leaving_the_block_ends_the_run(autojump_clock: Any) -> None:
    """At once and completely; there is no result then."""
    agent, begun = Guarded(), trio.current_time()
    async with endless(agent).run_async(1) as run:
        while agent.running < 3:
            await trio.testing.wait_all_tasks_blocked()
    assert (agent.begun, agent.running) == (3, 0)
    assert trio.current_time() == begun
    with pytest.raises(RuntimeError, match="ended before it had a result"):
        await run


@pytest.mark.trio
async def test_an_exception_in_the_block_ends_the_run_and_is_the_callers(autojump_clock: Any) -> None:
    """It is not wrapped in anything."""
    agent = Guarded()

    async def read() -> None:
        async with endless(agent).run_async(1) as run:
            async for _ in run:
                if agent.running == 3:
                    raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await read()
    assert (agent.begun, agent.running) == (3, 0)


@pytest.mark.trio
async def test_breaking_out_of_the_loop_ends_the_run(autojump_clock: Any) -> None:
    """Within a scheduling round, nothing is left running."""
    agent = Guarded()
    async for _ in endless(agent).run_async(1):
        if agent.running == 3:
            break
    gc.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert (agent.begun, agent.running) == (3, 0)


@pytest.mark.trio
async def test_raising_inside_the_loop_ends_the_run(autojump_clock: Any) -> None:
    """The caller's exception is what the caller sees."""
    agent = Guarded()

    async def read() -> None:
        async for _ in endless(agent).run_async(1):
            if agent.running == 3:
                raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await read()
    gc.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert (agent.begun, agent.running) == (3, 0)


@pytest.mark.trio
async def test_closing_the_iterator_ends_the_run_and_waits_for_its_cleanup(autojump_clock: Any) -> None:
    """When `aclose` returns, nothing runs; closing again is harmless, reading on is over."""
    agent = Guarded()
    outcomes = endless(agent).run_async(1).__aiter__()
    while agent.running < 3:
        await outcomes.__anext__()
    await outcomes.aclose()
    assert agent.running == 0
    await outcomes.aclose()
    assert all(line.startswith("chunk") for line in told([each async for each in outcomes]))


@pytest.mark.trio
@pytest.mark.parametrize("how", ["await", "iterate", "enter"])
async def test_cancelling_the_caller_ends_the_run_before_the_call_returns(autojump_clock: Any, how: str) -> None:
    """At the very second, cleanup included."""
    agent = Guarded()
    begun = trio.current_time()
    with trio.move_on_after(2.5) as scope:
        handle = endless(agent).run_async(1)
        if how == "await":
            await handle
        elif how == "iterate":
            await collected(handle)
        else:
            async with handle as run:
                await run
    assert scope.cancelled_caught
    assert (agent.begun, agent.running) == (3, 0)
    assert trio.current_time() - begun == pytest.approx(2.5)


@pytest.mark.trio
async def test_cleanup_that_takes_time_is_waited_for(autojump_clock: Any) -> None:
    """Shielded cleanup of a step finishes before the call returns."""
    cleaned = []

    async def careful(data: Any) -> None:
        try:
            await trio.sleep(60)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                cleaned.append(True)

    with trio.move_on_after(2):
        await Flujo(Step("s", careful)).run_async(1)
    assert cleaned == [True]
    async with Flujo(Step("s", careful)).run_async(1):
        await trio.sleep(1)
    assert cleaned == [True, True]


@pytest.mark.trio
async def test_the_caller_chooses_the_run_id_or_gets_a_new_one(autojump_clock: Any) -> None:
    """An id can be used once, while the run is under way and after it."""
    flujo = Flujo(Step("s", same))
    assert (await flujo.run_async(1, run_id="mine")).run_id == "mine"
    assert (await flujo.run_async(1)).run_id != (await flujo.run_async(1)).run_id
    for use in (lambda: flujo.run_async(1, run_id="mine"), lambda: collected(flujo.run_async(1, run_id="mine"))):
        with pytest.raises(RunExists, match="'mine'"):
            await use()

    async def again(data: Any) -> None:
        with pytest.raises(RunExists):
            await busy.run_async(1, run_id="busy")

    busy = Flujo(Step("s", again))
    assert (await busy.run_async(1, run_id="busy")).success


@pytest.mark.trio
async def test_an_id_of_a_paused_or_failed_run_is_taken_too(autojump_clock: Any) -> None:
    """Whatever became of the run."""
    for agent in (Step.human_in_the_loop("h", "?"), Step("s", Scripted(ValueError("no")))):
        flujo = Flujo(agent)
        await flujo.run_async(1, run_id="mine")
        with pytest.raises(RunExists):
            await flujo.run_async(1, run_id="mine")


@pytest.mark.trio
async def test_run_inside_a_loop_says_what_to_call_instead(autojump_clock: Any) -> None:
    """Nothing is started."""
    flujo = Flujo(Step("s", same))
    with pytest.raises(LoopAlreadyRunning, match="run_async"):
        flujo.run(1)
    with pytest.raises(LoopAlreadyRunning, match="resume_async"):
        flujo.resume("token", 1)


@pytest.mark.trio
async def test_a_run_that_was_cancelled_leaves_the_flujo_usable(autojump_clock: Any) -> None:
    """The next run starts afresh."""
    agent = Guarded()
    flujo = endless(agent)
    for _ in range(3):
        with trio.move_on_after(1.5):
            await flujo.run_async(1)
    assert (agent.begun, agent.running) == (9, 0)
