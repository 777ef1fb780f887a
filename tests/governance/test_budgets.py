"""Limits on requests, tool calls, steps and time, and what code can know of them: through the front door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai import Agent

from flujo_actors import (
    DeclarationError,
    Flujo,
    InvalidAnswer,
    Pipeline,
    RunClient,
    Step,
    StepResult,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    make_agent_async,
)
from flujo_actors.testing import CallTool, JumpingClock, MemorySink, scripted_model


def asking(model: Any, steps: int) -> Pipeline:
    """So many steps in a row that ask one model."""
    return Pipeline([Step(f"s{number}", make_agent_async(model)) for number in range(steps)])


def answering(**config: Any) -> Any:
    return scripted_model("ok", forever=True, **config)


async def done(data: Any) -> Any:
    return data


# --- requests -----------------------------------------------------------------------------------------------


def test_so_many_requests_are_made_and_no_more() -> None:
    """B1: three of five agents in a row."""
    model = answering()
    with pytest.raises(UsageLimitExceededError, match=r"3 of 3 requests \(request_limit\)") as caught:
        Flujo(asking(model, 5), usage_limits=UsageLimits(request_limit=3)).run("go")
    assert len(model.asked) == 3
    assert caught.value.limits == ("request_limit",)
    assert len(caught.value.result.step_history) == 4


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_branches_that_race_for_requests_make_exactly_as_many(backend: Any) -> None:
    """Eight at once, and five are allowed."""
    model = answering()
    branches = {f"b{number}": Step(f"s{number}", make_agent_async(model)) for number in range(8)}
    with pytest.raises(UsageLimitExceededError):
        Flujo(Step.parallel("race", branches), usage_limits=UsageLimits(request_limit=5)).run("go", backend=backend)
    assert len(model.asked) == 5


def test_a_request_that_fails_was_made() -> None:
    """A loop of failures is what the limit is for."""
    model = scripted_model(OSError("down"), forever=True)
    flujo = Flujo(Step("ask", make_agent_async(model), max_retries=9), usage_limits=UsageLimits(request_limit=3))
    with pytest.raises(UsageLimitExceededError):
        flujo.run("go")
    assert len(model.asked) == 3


def test_every_limit_that_is_short_is_named() -> None:
    """B5: tokens and requests, in the order of the fields."""
    model = answering(usage=Usage(input_tokens=60, output_tokens=40))
    limits = UsageLimits(total_tokens_limit=300, request_limit=3)
    with pytest.raises(UsageLimitExceededError) as caught:
        Flujo(asking(model, 5), usage_limits=limits).run("go")
    assert caught.value.limits == ("total_tokens_limit", "request_limit")


def test_a_steps_own_limit_holds_within_the_runs() -> None:
    """B6: two within ten."""
    model = answering()
    loop = Step.loop_until(
        "loop", Step("ask", make_agent_async(model)), lambda *_: False, 20, usage_limits=UsageLimits(request_limit=2)
    )
    with pytest.raises(UsageLimitExceededError, match="step 'loop' has used 2 of 2 requests"):
        Flujo(loop, usage_limits=UsageLimits(request_limit=10)).run("go")
    assert len(model.asked) == 2


# --- tool calls ---------------------------------------------------------------------------------------------


def tooled(*replies: Any, calls: list[int], fails: bool = False) -> Agent[None, str]:
    agent = Agent(scripted_model(*replies, "done"))

    @agent.tool_plain
    async def count(number: int) -> int:
        calls.append(number)
        await trio_or_asyncio_pause()
        if fails:
            raise OSError("no")
        return number

    return agent


async def trio_or_asyncio_pause() -> None:
    import anyio

    await anyio.sleep(0)


def call(number: int) -> CallTool:
    return CallTool("count", {"number": number})


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
@pytest.mark.parametrize(
    "replies", [[call(1), call(2), call(3)], [[call(1), call(2), call(3)]]], ids=["in turn", "all at once"]
)
def test_the_tool_call_after_the_last_one_is_not_begun(make: Any, replies: list[Any]) -> None:
    """B2: two are executed, the third is refused, and what had begun is not cut short."""
    calls: list[int] = []
    step = make("use", tooled(*replies, calls=calls))
    with pytest.raises(UsageLimitExceededError, match=r"2 of 2 tool calls") as caught:
        Flujo(step, usage_limits=UsageLimits(tool_calls_limit=2)).run("go")
    assert len(calls) == 2
    assert caught.value.limits == ("tool_calls_limit",)


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_a_tool_call_that_fails_has_begun(make: Any) -> None:
    """It counts over the attempts of a step."""
    calls: list[int] = []
    agent = tooled(*[call(number) for number in range(9)], calls=calls, fails=True)
    flujo = Flujo(make("use", agent, max_retries=8), usage_limits=UsageLimits(tool_calls_limit=3))
    with pytest.raises(UsageLimitExceededError):
        flujo.run("go")
    assert len(calls) == 3


def test_enough_tool_calls_are_no_matter() -> None:
    """Exactly at the limit passes."""
    calls: list[int] = []
    limits = UsageLimits(tool_calls_limit=2)
    result = Flujo(Step("use", tooled(call(1), call(2), calls=calls)), usage_limits=limits).run("go")
    assert (result.output, calls) == ("done", [1, 2])


# --- steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [25, 26])
def test_so_many_steps_are_done(steps: int) -> None:
    """B3: 25 complete, 26 do not."""
    flujo = Flujo(Pipeline([Step(f"s{n}", done) for n in range(steps)]), usage_limits=UsageLimits(step_limit=25))
    if steps == 25:
        assert flujo.run("go").success
        return
    with pytest.raises(UsageLimitExceededError, match="25 of 25 steps") as caught:
        flujo.run("go")
    assert caught.value.limits == ("step_limit",)


def test_trying_again_is_the_same_step() -> None:
    """4.2: retries are not counted."""
    tries = []

    async def third_time(data: str) -> str:
        tries.append(data)
        if len(tries) < 3:
            raise ValueError("not yet")
        return data

    flujo = Flujo(Step("try", third_time, max_retries=5) >> Step("end", done), usage_limits=UsageLimits(step_limit=2))
    assert flujo.run("go").success


# --- time ---------------------------------------------------------------------------------------------------


async def slow(data: Any) -> Any:
    await trio.sleep(40)
    return data


def test_every_open_step_is_cut_when_the_time_is_over() -> None:
    """4.4: the error is raised, and what was done stands in its result."""

    async def main() -> UsageLimitExceededError:
        pipeline = Step("first", slow) >> Step.parallel("both", {"a": Step("a", slow), "b": Step("b", slow)})
        with pytest.raises(UsageLimitExceededError, match=r"60 of 60 s \(time_limit_s\)") as caught:
            await Flujo(pipeline, usage_limits=UsageLimits(time_limit_s=60)).run_async("go")
        assert trio.current_time() < 65
        return caught.value

    error = trio.run(main, clock=JumpingClock())
    assert error.limits == ("time_limit_s",)
    assert error.result.step_history[0].output == "go"


def test_a_step_has_a_time_of_its_own() -> None:
    """Its retries and its siblings do not make it longer."""

    async def main() -> None:
        loop = Step.loop_until(
            "loop", Step("work", slow), lambda *_: False, 9, usage_limits=UsageLimits(time_limit_s=90)
        )
        with pytest.raises(UsageLimitExceededError, match="step 'loop' has used 90 of 90 s"):
            await Flujo(loop, usage_limits=UsageLimits(time_limit_s=1000)).run_async("go")

    trio.run(main, clock=JumpingClock())


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
def test_time_that_is_not_worked_does_not_count(stored: bool, tmp_path: Path) -> None:
    """40 s before a pause of a day, and 40 s after it, of 90."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if stored else None
    pipeline = Step("before", slow) >> Step.human_in_the_loop("ask", "Go on?") >> Step("after", slow)

    def limited(seconds: float) -> Flujo:
        return Flujo(pipeline, usage_limits=UsageLimits(time_limit_s=seconds), store=store)

    async def main(seconds: float) -> Any:
        flujo = limited(seconds)
        paused = await flujo.run_async("go")
        await trio.sleep(24 * 3600)
        return await flujo.resume_async(paused.state_token, "yes")

    assert trio.run(main, 90, clock=JumpingClock()).success
    with pytest.raises(UsageLimitExceededError):
        trio.run(main, 70, clock=JumpingClock())


# --- levels -------------------------------------------------------------------------------------------------


def spending(tokens: int) -> Any:
    async def spend(data: Any) -> StepResult:
        return StepResult(name="spend", output=data, usage=Usage(input_tokens=tokens))

    return spend


def test_nothing_limited_is_abundant() -> None:
    """B4: and what was spent can be known all the same."""
    seen = []

    async def look(data: Any, *, budget: Any) -> Any:
        seen.append(budget)
        return data

    assert Flujo(Step("spend", spending(70)) >> Step("look", look)).run("go").success
    assert (seen[0].level, seen[0].fraction, seen[0].remaining.tokens) == ("abundant", 1.0, None)
    assert seen[0].spent.tokens == 70


@pytest.mark.parametrize(("spent", "level"), [(29, "abundant"), (30, "normal"), (70, "scarce"), (90, "critical")])
def test_a_level_goes_by_what_is_left(spent: int, level: str) -> None:
    """B7: of a hundred tokens."""
    seen = []

    def look(data: Any, context: Any, budget: Any) -> str:
        seen.append(budget)
        return "x"

    pipeline = Step("spend", spending(spent)) >> Step.branch_on("by level", look, {"x": Step("x", done)})
    assert Flujo(pipeline, usage_limits=UsageLimits(total_tokens_limit=100)).run("go").success
    assert (seen[0].level, seen[0].remaining.tokens, seen[0].spent.tokens) == (level, 100 - spent, spent)


def test_a_budget_can_be_asked_for_wherever_something_is_decided() -> None:
    """4.3: in agents, `until` and `input`."""
    pipeline = Step.loop_until(
        "loop", Step("spend", spending(40)), lambda output, context, *, budget: budget.level == "scarce", 9
    ) >> Step("tell", done, input=lambda previous, context, budget: budget.fraction)
    result = Flujo(pipeline, usage_limits=UsageLimits(total_tokens_limit=100)).run("go")
    assert result.output == pytest.approx(0.2)


def test_each_crossing_of_a_level_is_told() -> None:
    """4.3: the event says from where to where, and of whose budget."""
    sink = MemorySink()
    pipeline = Pipeline([Step(f"s{n}", spending(100)) for n in range(10)])
    limits = UsageLimits(total_tokens_limit=1000)
    Flujo(pipeline, usage_limits=limits, settings={"telemetry": {"sinks": [sink]}}).run("go")
    told = [(event.before, event.level) for event in sink.events if event.kind == "budget.level"]
    assert told == [("abundant", "normal"), ("normal", "scarce"), ("scarce", "critical")]


# --- pausing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
def test_a_limit_may_ask_instead_of_ending_the_run(stored: bool, tmp_path: Path) -> None:
    """B9: with new limits it goes on, five in all; with `False` it is the error."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if stored else None
    for answer in ({"request_limit": 5}, False):
        model = answering()
        flujo = Flujo(asking(model, 7), usage_limits=UsageLimits(request_limit=3, when_reached="pause"), store=store)
        paused = flujo.run("go")
        assert (paused.status, len(model.asked)) == ("paused", 3)
        assert "3 of 3 requests" in (paused.feedback or "")
        if answer is False:
            with pytest.raises(UsageLimitExceededError):
                flujo.resume(paused.state_token, answer)
            assert len(model.asked) == 3
        else:
            again = flujo.resume(paused.state_token, answer)
            assert (again.status, len(model.asked)) == ("paused", 5)
            assert flujo.resume(again.state_token, UsageLimits(request_limit=7)).success
            assert len(model.asked) == 7


def test_a_raised_limit_holds_in_another_process(tmp_path: Path) -> None:
    """Whoever only has the store answers, and another `Flujo` goes on; what was spent stays spent."""
    store, model = f"sqlite:///{tmp_path / 'runs.db'}", answering()
    limits = UsageLimits(request_limit=2, when_reached="pause")
    paused = Flujo(asking(model, 4), usage_limits=limits, store=store).run("go")
    client = RunClient(store)
    for wrong in ({"request_limit": -1}, {"requests": 5}, True, {}, "more"):
        with pytest.raises(InvalidAnswer):
            client.answer(paused.state_token, wrong)
    client.answer(paused.state_token, {"request_limit": 3})
    [again] = Flujo(asking(model, 4), usage_limits=limits, store=store).recover()
    assert (again.status, len(model.asked)) == ("paused", 3)


def test_branches_that_wait_for_one_budget_go_on_with_one_answer() -> None:
    """The question is the same for all of them."""
    model = answering()
    branches = {f"b{number}": Step(f"s{number}", make_agent_async(model)) for number in range(4)}
    limits = UsageLimits(request_limit=2, when_reached="pause")
    flujo = Flujo(Step.parallel("race", branches), usage_limits=limits)
    paused = flujo.run("go")
    assert (paused.status, len(model.asked)) == ("paused", 2)
    assert flujo.resume(paused.state_token, {"request_limit": 4}).success
    assert len(model.asked) == 4


def test_more_time_can_be_asked_for() -> None:
    """A run whose time is over waits for an answer like any other."""

    async def main() -> None:
        limits = UsageLimits(time_limit_s=50, when_reached="pause")
        flujo = Flujo(Step("a", slow) >> Step("b", slow), usage_limits=limits)
        paused = await flujo.run_async("go")
        assert (paused.status, [each.name for each in paused.step_history]) == ("paused", ["a"])
        assert (await flujo.resume_async(paused.state_token, {"time_limit_s": 100})).success

    trio.run(main, clock=JumpingClock())


@pytest.mark.parametrize("stored", ["sqlite", "memory"])
def test_spent_stays_spent_over_a_resume(stored: str, tmp_path: Path) -> None:
    """4.5: requests, tool calls and steps."""
    store = f"sqlite:///{tmp_path / 'runs.db'}" if stored == "sqlite" else None
    for limits in (UsageLimits(request_limit=4), UsageLimits(tool_calls_limit=3), UsageLimits(step_limit=1)):
        calls: list[int] = []
        pipeline = (
            Step("use", tooled(call(1), call(2), calls=calls))
            >> Step.human_in_the_loop("ask", "Go on?")
            >> Step("again", tooled(call(3), call(4), calls=calls))
        )
        flujo = Flujo(pipeline, usage_limits=limits, store=store)
        paused = flujo.run("go")
        with pytest.raises(UsageLimitExceededError):
            flujo.resume(paused.state_token, "yes")


@pytest.mark.parametrize(
    "name", ["total_cost_usd_limit", "request_limit", "tool_calls_limit", "step_limit", "time_limit_s"]
)
@pytest.mark.parametrize("value", [-1, True, "3"])
def test_a_limit_that_is_no_number_is_refused(name: str, value: object) -> None:
    """B10."""
    with pytest.raises(DeclarationError, match=name):
        UsageLimits(**{name: value})  # type: ignore[arg-type]


def test_what_happens_at_a_limit_is_one_of_two_things() -> None:
    """Anything else is a slip of the pen."""
    with pytest.raises(DeclarationError, match="when_reached"):
        UsageLimits(when_reached="stop")  # type: ignore[arg-type]
