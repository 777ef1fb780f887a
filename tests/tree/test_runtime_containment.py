"""Scopes, nurseries and cancellations that user code leaves behind end with its own step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing

from flujo_actors import Compensate, Flujo, MemoryStore, Pipeline, PostStep, Step

kept: list[Any] = []
"""Objects that user code keeps, so that no garbage collection closes them."""


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    yield
    kept.clear()


def opens_scope(*args: object, **keywords: object) -> Any:
    """Enter a scope with a deadline, and never leave it."""
    scope = trio.move_on_after(1)
    scope.__enter__()
    kept.append(scope)
    return args[0] if args else None


async def leaves_scope(data: Any) -> Any:
    return opens_scope(data)


async def words() -> AsyncIterator[str]:
    with trio.move_on_after(1):
        yield "a"
        yield "b"


async def first_word(data: Any) -> Any:
    source = words()
    kept.append(source)
    async for word in source:
        return f"{data}{word}"
    return None


async def ticks() -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield 1
        yield 2


async def first_tick(data: Any) -> Any:
    async for _ in ticks():
        return data
    return None


async def first_tick_kept(data: Any) -> Any:
    source = ticks()
    kept.append(source)
    async for _ in source:
        return data
    return None


async def slow(data: Any) -> Any:
    await trio.sleep(10)
    return data


async def fails(data: Any) -> Any:
    raise ValueError("no")


LEAVING = {
    "a scope": leaves_scope,
    "a generator with a deadline": first_word,
    "a generator with a nursery": first_tick_kept,
}


@pytest.mark.trio
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("leaves", sorted(LEAVING))
async def test_a_step_that_leaves_a_scope_open_fails_and_names_itself(
    leaves: str, durable: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The caller's own scopes are as they were."""
    flujo = Flujo(Step("bad", LEAVING[leaves]) >> Step("next", slow), store=MemoryStore() if durable else None)
    with trio.CancelScope() as around:
        result = await flujo.run_async("x")
    assert (result.status, around.cancelled_caught) == ("failed", False)
    assert "step 'bad' failed" in (result.feedback or "")
    assert "'bad' left a" in (result.feedback or "")


PLACES: dict[str, Callable[[], Any]] = {
    "input": lambda: Step("bad", slow, input=opens_scope),
    "a processor": lambda: Step("bad", slow, processors={"before": [opens_scope]}),
    "a validator": lambda: Step("bad", slow, validators=[lambda output: bool(opens_scope(True))]),
    "a condition": lambda: Step.loop_until("bad", Step("body", slow), opens_scope, max_loops=3),
    "a choice": lambda: Step.branch_on("bad", opens_scope, {"x": Step("body", slow)}),
    "items": lambda: Step.map_over("bad", Step("body", slow), items=lambda data, context: opens_scope([data])),
    "a message": lambda: Step.human_in_the_loop("bad", lambda data, context: str(opens_scope("Fine?"))),
    "a fallback": lambda: Step("bad", fails, fallback=Step("instead", leaves_scope)),
    "a branch": lambda: Step.parallel("bad", {"a": Step("a", leaves_scope) >> Step("b", slow), "c": Step("c", slow)}),
    "an item": lambda: Step.map_over("bad", Step("a", leaves_scope) >> Step("b", slow), items=["x", "y"]),
    "a loop": lambda: Step.loop_until("bad", Step("a", leaves_scope), lambda data, context: True, max_loops=3),
    "a sequence": lambda: Step.sequence("bad", Step("a", leaves_scope) >> Step("b", slow)),
}
"""Where else code of users runs."""


@pytest.mark.trio
@pytest.mark.parametrize("place", sorted(PLACES))
async def test_a_scope_left_open_anywhere_around_a_step_fails_that_step(
    place: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither the next step nor the caller runs into its deadline, and nothing completes with a part missing."""
    with trio.CancelScope() as around:
        result = await Flujo(Step("before", slow) >> PLACES[place]() >> Step("next", slow)).run_async("x")
    assert (result.status, around.cancelled_caught) == ("failed", False)
    assert "step 'bad' failed" in (result.feedback or "")
    assert "open" in (result.feedback or "")


@pytest.mark.trio
async def test_branches_of_a_step_that_ignores_failures_go_on_without_the_one_that_left_a_scope(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """That branch is a failure, and no other is cancelled with it."""
    branches = {"bad": Step("first", first_word) >> Step("slow", slow), "good": Step("good", slow)}
    stage = Step.parallel("both", branches, on_branch_failure="ignore")
    result = await Flujo(stage).run_async("x")
    assert (result.status, result.output) == ("completed", {"good": "x"})
    assert list(result.step_history[0].metadata["failed_branches"]) == ["bad"]


@pytest.mark.trio
async def test_a_hook_that_leaves_a_scope_open_changes_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported like any other failure of a hook."""
    result = await Flujo(Step("a", slow) >> Step("b", slow), hooks=[opens_scope]).run_async("x")
    assert (result.status, result.output) == ("completed", "x")
    assert "hook opens_scope failed" in caplog.text


@pytest.mark.trio
async def test_a_handler_that_leaves_a_scope_open_is_followed_by_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each handler is a step of its own."""
    told: list[str] = []

    async def second(failure: Any) -> None:
        await trio.sleep(10)
        told.append(failure.step_name)

    bad = Step("bad", fails, on_failure=[Step("first", leaves_scope), Step("second", second)])
    result = await Flujo(bad).run_async("x")
    assert (result.status, told) == ("failed", ["bad"])


@pytest.mark.trio
async def test_a_compensation_that_leaves_a_scope_open_is_followed_by_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It counts as one that failed; the rest is undone."""
    undone: list[str] = []

    async def undo_first(undo: Any) -> None:
        await trio.sleep(10)
        undone.append(undo.step_name)

    steps = (
        Step("first", slow, compensate=Compensate(Step("undo first", undo_first)))
        >> Step("second", slow, compensate=Compensate(Step("undo second", leaves_scope)))
        >> Step("bad", fails)
    )
    result = await Flujo(steps).run_async("x")
    assert (result.status, undone) == ("failed", ["first"])
    assert [(each.step_name, each.success) for each in result.undone] == [("second", False), ("first", True)]


@pytest.mark.trio
async def test_a_step_that_left_a_scope_open_can_be_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    """The scope of the first attempt does not reach the second."""
    attempts = 0

    async def unsteady(data: str) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            opens_scope()
        await trio.sleep(10)
        return data

    result = await Flujo(Step("s", unsteady, max_retries=1)).run_async("x")
    assert (result.output, attempts) == ("x", 2)


@pytest.mark.trio
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # trio's, for the generator that is left
async def test_a_step_that_leaves_a_generator_with_a_nursery_ends_no_other_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The generator is closed by the garbage collector while the other run is in flight."""
    results: dict[str, Any] = {}

    async def performed(name: str, pipeline: Any) -> None:
        results[name] = await Flujo(pipeline).run_async(name)

    good = Pipeline(Step(f"s{number}", slow) for number in range(5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(performed, "good", good)
        for number in range(3):
            nursery.start_soon(performed, f"bad {number}", Step("first", first_tick) >> Step("next", slow))
    assert results["good"].output == "good"
    assert {results[f"bad {number}"].status for number in range(3)} == {"failed"}
    assert "step 'first' failed" in results["bad 0"].feedback
    assert "'first' left a nursery open" in results["bad 0"].feedback


@pytest.mark.trio
@pytest.mark.parametrize("wrap", ["alone", "parallel", "map", "loop", "branch", "fallback"])
async def test_a_step_that_cancels_the_nursery_of_its_parent_makes_nothing_complete(
    wrap: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The composite fails: it has no outcome of the step, and did not ask for the cancellation."""

    meddler: list[str] = []

    async def meddles(data: str) -> str:
        meddler.append(trio.lowlevel.current_task().name)
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.cancel_scope.cancel()
        await trio.sleep(10)
        return data

    bad = Step("meddles", meddles)
    pipelines: dict[str, Any] = {
        "alone": bad,
        "parallel": Step.parallel("stage", {"bad": bad, "good": Step("good", slow)}),
        "map": Step.map_over("stage", bad, items=["x", "y"]),
        "loop": Step.loop_until("stage", bad, lambda data, context: True, max_loops=2),
        "branch": Step.branch_on("stage", lambda data, context: "bad", {"bad": bad}),
        "fallback": Step("stage", fails, fallback=bad),
    }
    result = await Flujo(pipelines[wrap]).run_async("x")
    assert result.status == "failed"
    assert "cancelled by code that is not part of the run" in (result.feedback or "")
    assert repr(meddler[0]) in (result.feedback or "")


@pytest.mark.trio
async def test_a_cancellation_that_a_step_raises_itself_is_its_failure() -> None:
    """An exception object of another scope proves nothing: no parent asked for it."""
    found: list[trio.Cancelled] = []

    async def finds(data: str) -> str:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                found.append(error)
                raise
        return data

    async def raises(data: str) -> str:
        raise found[0]

    outcomes: list[PostStep] = []

    def told(payload: PostStep) -> None:
        outcomes.append(payload)

    branches = {"bad": Step("finds", finds) >> Step("raises", raises), "good": Step("good", slow)}
    result = await Flujo(Step.parallel("both", branches), hooks=[told]).run_async("x")
    assert result.status == "failed"
    assert "step 'raises' of 'bad' failed" in (result.feedback or "")
