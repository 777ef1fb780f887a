"""Steps that follow one another need no tasks, unless there are steps in them: nobody but the scheduler can tell."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from pydantic import BaseModel

from flujo_actors import Flujo, Pipeline, Step, UsageLimits

seen_by: contextvars.ContextVar[str] = contextvars.ContextVar("seen_by", default="nobody")


async def sets_and_waits(data: str) -> str:
    before = seen_by.get()
    seen_by.set(data)
    await trio.lowlevel.checkpoint()
    return f"{before}, {seen_by.get()}"


async def sets(data: str) -> str:
    before = seen_by.get()
    seen_by.set("somebody")
    return f"{data}; {before}"


@pytest.mark.trio
async def test_a_context_variable_that_a_step_sets_is_seen_by_nobody_after_it() -> None:
    """Neither by the next step nor by the caller, in whose task both run; the step itself sees it after waiting."""
    seen_by.set("caller")
    result = await Flujo(Step("waits", sets_and_waits) >> Step("next", sets) >> Step("last", sets)).run_async("first")
    assert result.output == "caller, first; caller; caller"
    assert seen_by.get() == "caller"


@pytest.mark.trio
async def test_what_a_step_starts_sees_the_variables_of_the_step() -> None:
    """A nursery of the step's own copies the context that the step has set."""
    told: list[str] = []

    async def look() -> None:
        told.append(seen_by.get())

    async def starts(data: str) -> str:
        seen_by.set("the step")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
        return data

    await Flujo(Step("starts", starts)).run_async("x")
    assert told == ["the step"]


@pytest.mark.trio
async def test_others_have_their_turn_between_steps_that_never_wait() -> None:
    """A long chain of such steps does not hold up the rest of the program."""
    turns = 0
    over = False

    async def others() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def at_once(data: int) -> int:
        return data + 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        result = await Flujo(Pipeline(Step(f"s{number}", at_once) for number in range(50))).run_async(0)
        over = True
    assert (result.output, turns > 40) == (50, True)


@pytest.mark.trio
async def test_a_run_of_steps_that_never_wait_notices_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """Running a pipeline is a checkpoint, however short it is."""

    async def at_once(data: int) -> int:
        return data

    flujo, runs = Flujo(Step("s", at_once)), 0
    with trio.CancelScope() as scope:
        scope.cancel()
        while runs < 10:
            await flujo.run_async(0)
            runs += 1
    assert (scope.cancelled_caught, runs) == (True, 0)


@pytest.mark.trio
async def test_a_step_that_is_cancelled_while_it_waits_is_not_followed_by_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It cleans up, and the caller's own scope catches the cancellation."""
    did: list[str] = []

    async def waits(data: int) -> int:
        try:
            await trio.sleep_forever()
        finally:
            did.append("cleaned up")
        return data

    async def follows(data: int) -> int:
        did.append("followed")
        return data

    with trio.move_on_after(1) as scope:
        await Flujo(Step("waits", waits) >> Step("follows", follows)).run_async(0)
    assert (scope.cancelled_caught, did) == (True, ["cleaned up"])


@pytest.mark.trio
async def test_a_step_that_swallows_its_cancellation_is_not_a_success() -> None:
    """What it returns after it was cancelled is not used."""

    async def swallows(data: int) -> int:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            return data
        return data

    async def follows(data: int) -> int:
        raise AssertionError("the run was cancelled")

    with trio.CancelScope() as scope:
        await Flujo(Step("swallows", swallows) >> Step("follows", follows)).run_async(0)
    assert scope.cancelled_caught


@pytest.mark.trio
async def test_the_turns_of_a_loop_and_a_branch_have_contexts_of_their_own() -> None:
    """Every composite that has one child at a time keeps its children apart."""

    async def counts(data: list[str]) -> list[str]:
        before = seen_by.get()
        seen_by.set("a turn")
        return [*data, before]

    loop = Step.loop_until("loop", Step("counts", counts), lambda data, context: len(data) == 3, max_loops=5)
    branch = Step.branch_on("branch", lambda data, context: "one", {"one": Step("one", counts)})
    result = await Flujo(loop >> branch).run_async([])
    assert result.output == ["nobody"] * 4


@pytest.mark.trio
async def test_a_step_with_a_scope_of_its_own_leaves_the_scopes_around_it_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Timeouts and nurseries inside a step nest in those of the caller."""

    @asynccontextmanager
    async def in_time(seconds: float) -> AsyncIterator[trio.CancelScope]:
        with trio.move_on_after(seconds) as scope:
            yield scope

    async def slow(data: int) -> int:
        async with in_time(1) as scope:
            await trio.sleep_forever()
        return data + scope.cancelled_caught

    with trio.move_on_after(10) as around:
        result = await Flujo(Step("one", slow) >> Step("two", slow)).run_async(0)
    assert (result.output, around.cancelled_caught) == (2, False)


class Spawned(trio.abc.Instrument):
    """Counts the tasks that are made."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


class Notes(BaseModel):
    """What the steps below know."""

    seen: list[str] = []


async def with_context(data: str, *, context: Notes) -> str:
    context.seen.append(seen_by.get())
    seen_by.set("a step")
    return data


ALONE: dict[str, Callable[[str], Step]] = {
    "context": lambda name: Step(name, with_context),
    "sync": lambda name: Step(name, str),
    "timeout": lambda name: Step(name, sets, timeout_s=60),
    "retries": lambda name: Step(name, sets, max_retries=2),
    "input": lambda name: Step(name, sets, input=lambda previous, context: "made"),
    "validators": lambda name: Step(name, sets, validators=[lambda output: True]),
    "limits": lambda name: Step(name, sets, usage_limits=UsageLimits(total_tokens_limit=10)),
}
"""Steps that have something around their call, but no other step."""


@pytest.mark.trio
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("kind", sorted(ALONE))
async def test_steps_without_steps_in_them_need_no_tasks(kind: str, watched: bool) -> None:
    """As many tasks for twelve of them as for two, also with hooks that are told of each."""

    async def tasks_of(size: int) -> int:
        steps = Pipeline(ALONE[kind](f"s{number}") for number in range(size))
        hooks = [lambda payload: None] if watched else []
        flujo, spawned = Flujo(steps, context_model=Notes, hooks=hooks), Spawned()
        trio.lowlevel.add_instrument(spawned)
        result = await flujo.run_async("x")
        trio.lowlevel.remove_instrument(spawned)
        assert [each.success for each in result.step_history] == [True] * size
        return spawned.count

    assert await tasks_of(12) == await tasks_of(2)


@pytest.mark.trio
async def test_steps_with_a_context_have_variables_of_their_own_each() -> None:
    """What one sets is not seen by the next, although both run in the caller's task."""
    steps = Step("one", with_context) >> Step("two", with_context)
    result = await Flujo(steps, context_model=Notes).run_async("x")
    assert result.final_context.seen == ["nobody", "nobody"]


@pytest.mark.trio
async def test_a_step_that_times_out_in_the_task_of_its_pipeline_ends_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its time limit is its own: the steps after it go on."""

    async def sleeps(data: int) -> int:
        await trio.sleep_forever()
        return data

    async def late(data: object) -> str:
        return "went on"

    slow = Step("slow", sleeps, timeout_s=1, max_retries=1, fallback=Step("instead", late))
    result = await Flujo(slow >> Step("next", sets)).run_async(1)
    assert result.output == "went on; nobody"
