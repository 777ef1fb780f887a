"""One trio task per step, at any depth: its name, its context, its cancellation, its scopes."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import (
    Compensate,
    Flujo,
    MemoryStore,
    Pipeline,
    PreRun,
    PreStep,
    Recovered,
    Step,
    ThompsonSampling,
    UsageLimits,
    Votes,
)

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
    """Neither the next step nor the caller sees it; the step itself sees it after waiting."""
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


class Notes(BaseModel):
    """The context of the steps below."""

    seen: list[str] = []


async def with_context(data: str, *, context: Notes) -> str:
    context.seen.append(seen_by.get())
    seen_by.set("a step")
    return data


async def fails(data: object) -> str:
    raise ValueError("no")


async def recovers(failure: object) -> Recovered:
    return Recovered(output="recovered")


async def takes_back(undo: object) -> None:
    return None


def answering() -> Agent[None, str]:
    return Agent(TestModel(custom_output_text="yes"))


async def chunks(data: object) -> AsyncIterator[str]:
    yield "[1,"
    yield "2]"


def one() -> Step[Any, Any]:
    return Step("one", sets)


STEPS: dict[str, Any] = {
    "a function": lambda: one() >> Step("two", sets),
    "a sync function": lambda: Step("s", str),
    "a context": lambda: Step("s", with_context),
    "a timeout": lambda: Step("s", sets, timeout_s=60),
    "retries": lambda: Step("s", fails, max_retries=2),
    "an input": lambda: Step("s", sets, input=lambda previous, context: "made"),
    "a validator": lambda: Step("s", sets, validators=[lambda output: True]),
    "limits": lambda: Step("s", sets, usage_limits=UsageLimits(total_tokens_limit=10)),
    "a stream": lambda: Step("s", chunks),
    "a structured stream": lambda: Step("s", chunks, processing={"schema": {"type": "array"}}),
    "an agent": lambda: Step("ask", answering()) >> Step("again", answering()),
    "a granular agent": lambda: Step.granular("ask", answering()),
    "a pipeline in a pipeline": lambda: Pipeline([one(), Pipeline([one(), Step("two", sets)], name="inner")]),
    "a sequence": lambda: Step.sequence("seq", one() >> Step("two", sets)),
    "a parallel stage": lambda: Step.parallel("both", {"a": one(), "b": one() >> Step("two", sets)}),
    "a map": lambda: Step.map_over("each", one() >> Step("two", sets)),
    "a loop": lambda: Step.loop_until("loop", one(), lambda data, context: len(data) > 20, max_loops=5),
    "a branch": lambda: Step.branch_on("way", lambda data, context: "a", {"a": one(), "b": one()}),
    "a person": lambda: one() >> Step.human_in_the_loop("ask", "Fine?"),
    "an approval": lambda: one() >> Step.approval("sign", "Fine?"),
    "a sleep": lambda: one() >> Step.sleep("nap", 0),
    "an agent's question": lambda: Step.human_in_the_loop("first", "Fine?") >> one(),
    "a fallback": lambda: Step("s", fails, fallback=Step("instead", sets)),
    "a selection": lambda: Step.select_agent("pick", {"a": sets, "b": sets}, by=ThompsonSampling(seed=1)),
    "votes": lambda: Step("vote", sets, confidence=Votes(3)),
    "a judge": lambda: Step("s", sets, confidence=lambda output: 1.0),
    "a handler": lambda: Step("s", fails, on_failure=[Step("handle", recovers)]),
    "a compensation": lambda: Step("book", sets, compensate=Compensate(Step("undo", takes_back))) >> Step("s", fails),
}
"""Every kind of step, alone and with steps inside."""


class Tasks(trio.abc.Instrument):
    """Counts the tasks that are spawned, by name."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.names[task.name] += 1


def spans_and_tasks(pipeline: Any, data: Any, **options: Any) -> tuple[Counter[str], Counter[str]]:
    """Run a pipeline; count the steps that started and the tasks, by path."""
    tasks, spans = Tasks(), Counter[str]()

    def begin(payload: PreRun) -> None:
        trio.lowlevel.add_instrument(tasks)

    def started(payload: PreStep) -> None:
        spans[payload.path] += 1

    Flujo(pipeline, context_model=Notes, hooks=[begin, started], **options).run(data)
    return spans, tasks.names


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("kind", sorted(STEPS))
def test_every_step_is_one_task_that_has_its_path_for_a_name(kind: str, durable: bool) -> None:
    """There are as many tasks as spans, whatever the kind of step, and however deep it is."""
    data = ["a", "b"] if kind == "a map" else "x"
    spans, tasks = spans_and_tasks(STEPS[kind](), data, store=MemoryStore() if durable else None)
    assert spans
    assert {path: tasks[path] for path in spans} == dict.fromkeys(spans, 1)
    assert set(spans.values()) == {1}


@pytest.mark.parametrize("hooked", [False, True])
def test_tasks_are_as_many_as_steps_with_and_without_hooks(hooked: bool) -> None:
    """Ten more steps are ten more tasks."""

    def tasks_of(size: int) -> int:
        tasks, hooks = Tasks(), [lambda payload: None] if hooked else []
        flujo = Flujo(Pipeline(Step(f"s{number}", sets) for number in range(size)), hooks=hooks)
        trio.run(flujo.run_async, "x", instruments=[tasks])
        return tasks.names.total()

    assert tasks_of(12) - tasks_of(2) == 10


def test_the_chunks_of_a_structured_stream_are_kept_by_a_task_of_their_own() -> None:
    """The aggregator is an actor: its task is named after its step."""
    _, tasks = spans_and_tasks(STEPS["a structured stream"](), "x")
    assert tasks["s (aggregator)"] == 1


@pytest.mark.trio
async def test_steps_with_a_context_have_variables_of_their_own_each() -> None:
    """A variable that one step sets is not seen by the next."""
    steps = Step("one", with_context) >> Step("two", with_context)
    result = await Flujo(steps, context_model=Notes).run_async("x")
    assert result.final_context.seen == ["nobody", "nobody"]


@pytest.mark.trio
async def test_a_step_that_times_out_ends_alone(
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
