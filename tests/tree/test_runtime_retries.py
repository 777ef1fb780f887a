"""Attempts: how many, when, on what, and what is left of them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from scripted import AT_ONCE, Scripted, collected, failing, named, same, spent, told, wasted

from flujo_actors import Backoff, Flujo, Pipeline, Step
from flujo_actors.errors import StepTimeout


class Timed:
    """Fails a number of times and notes when it was called."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.begun = trio.current_time()
        self.at: list[float] = []

    async def run(self, data: Any) -> str:
        self.at.append(trio.current_time() - self.begun)
        if len(self.at) <= self.failures:
            raise ValueError(f"failure {len(self.at)}")
        return "done"


@pytest.mark.trio
@pytest.mark.parametrize(("failures", "max_retries"), [(0, 0), (0, 3), (1, 1), (2, 3), (3, 3)])
async def test_a_step_is_tried_until_it_works(autojump_clock: Any, failures: int, max_retries: int) -> None:
    """`attempts` counts the calls made."""
    agent = Timed(failures)
    result = await Flujo(Step("s", agent, max_retries=max_retries, backoff=AT_ONCE)).run_async(1)
    assert result.success
    assert result.step_history[0].attempts == len(agent.at) == failures + 1
    assert result.step_history[0].feedback is None


@pytest.mark.trio
@pytest.mark.parametrize("max_retries", [0, 1, 4])
async def test_a_step_is_not_tried_more_often_than_allowed(autojump_clock: Any, max_retries: int) -> None:
    """One call and `max_retries` more; the last failure is the step's."""
    agent = Timed(99)
    result = await Flujo(Step("s", agent, max_retries=max_retries, backoff=AT_ONCE)).run_async(1)
    assert result.status == "failed"
    assert result.step_history[0].attempts == len(agent.at) == max_retries + 1
    assert result.step_history[0].feedback == f"Agent execution failed with ValueError: failure {max_retries + 1}"


@pytest.mark.trio
async def test_the_waits_between_attempts_grow_up_to_the_ceiling(autojump_clock: Any) -> None:
    """`first`, times `factor` each, never more than `ceiling`."""
    agent = Timed(5)
    backoff = Backoff(first=1, factor=3, ceiling=10, jitter=0)
    assert (await Flujo(Step("s", agent, max_retries=5, backoff=backoff)).run_async(1)).success
    assert agent.at == pytest.approx([0, 1, 4, 13, 23, 33])


@pytest.mark.trio
async def test_jitter_only_shortens_a_wait(autojump_clock: Any) -> None:
    """By at most its share."""
    agent = Timed(20)
    backoff = Backoff(first=10, factor=1, ceiling=10, jitter=0.5)
    assert (await Flujo(Step("s", agent, max_retries=20, backoff=backoff)).run_async(1)).success
    waits = [later - earlier for earlier, later in zip(agent.at, agent.at[1:], strict=False)]
    assert all(5 - 1e-6 <= wait <= 10 + 1e-6 for wait in waits)
    assert len({round(wait, 6) for wait in waits}) > 10


@pytest.mark.trio
async def test_latency_covers_all_attempts_and_waits(autojump_clock: Any) -> None:
    """`latency_s` is the time from start to end of the step."""
    backoff = Backoff(first=2, factor=1, ceiling=2, jitter=0)
    result = await Flujo(Step("s", Timed(2), max_retries=2, backoff=backoff)).run_async(1)
    assert result.step_history[0].latency_s == pytest.approx(4)


@pytest.mark.trio
async def test_every_attempt_gets_the_same_input_and_the_reason_of_the_last(autojump_clock: Any) -> None:
    """An agent that asks for `feedback` is told why it is called again."""
    seen: list[tuple[Any, Any]] = []

    async def work(data: Any, *, feedback: str | None) -> str:
        seen.append((data, feedback))
        if len(seen) < 3:
            raise ValueError(f"no {len(seen)}")
        return "ok"

    await Flujo(Step("s", work, max_retries=2, backoff=AT_ONCE)).run_async("in")
    prefix = "Agent execution failed with ValueError: "
    assert seen == [("in", None), ("in", prefix + "no 1"), ("in", prefix + "no 2")]


@pytest.mark.trio
async def test_usage_of_every_attempt_is_counted_once(autojump_clock: Any) -> None:
    """Failed attempts cost too."""
    agent = Scripted(wasted("a", 5, 0.5), wasted("b", 7, 0.25), spent("ok", 11, 1.0))
    result = await Flujo(Step("s", agent, max_retries=2, backoff=AT_ONCE)).run_async(1)
    assert (result.total_tokens, result.total_cost_usd) == (23, 1.75)
    assert (result.step_history[0].token_counts, result.step_history[0].cost_usd) == (23, 1.75)


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["parallel", "map", "branch", "loop"])
async def test_composites_are_retried_as_a_whole(autojump_clock: Any, kind: str) -> None:
    """All children run again; the history and the usage of both attempts are kept."""
    flaky, steady = Scripted(wasted("first", 3), spent("ok", 4)), Scripted(spent("fine", 10))
    body = Step("steady", steady) >> Step("flaky", flaky)
    config: Any = {"max_retries": 1, "backoff": AT_ONCE}
    composite = {
        "parallel": lambda: Step.parallel("c", {"x": body}, **config),
        "map": lambda: Step.map_over("c", body, items=[1], **config),
        "branch": lambda: Step.branch_on("c", lambda data, context: "x", {"x": body}, **config),
        "loop": lambda: Step.loop_until("c", body, lambda output, context: True, **config),
    }[kind]()
    result = await Flujo(composite).run_async(1)
    assert result.success
    assert (result.step_history[0].attempts, result.total_tokens) == (2, 27)
    assert len(result.step_history[0].step_history) == 2


# --- time ---------------------------------------------------------------------------------------------------


class Slow:
    """Takes its time; each call may take a different one."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.cancelled = 0

    async def run(self, data: Any) -> str:
        try:
            await trio.sleep(self.seconds.pop(0))
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return "done"


@pytest.mark.trio
async def test_an_attempt_that_takes_too_long_is_cancelled_and_fails(autojump_clock: Any) -> None:
    """`timeout_s` ends the attempt at its second; the error is a `TimeoutError`."""
    agent, begun = Slow(60), trio.current_time()
    outcomes = await collected(Flujo(Step("s", agent, timeout_s=2.5)).run_async(1))
    assert trio.current_time() - begun == pytest.approx(2.5)
    assert told(outcomes) == ["failure s"]
    assert isinstance(outcomes[0].error, StepTimeout)
    assert isinstance(outcomes[0].error, TimeoutError)
    assert "timeout_s=2.5" in outcomes[0].feedback
    assert agent.cancelled == 1


@pytest.mark.trio
async def test_each_attempt_has_the_whole_time(autojump_clock: Any) -> None:
    """A timeout is retried like any failure, with a clock of its own."""
    result = await Flujo(Step("s", Slow(60, 60, 1.5), timeout_s=2, max_retries=2, backoff=AT_ONCE)).run_async(1)
    assert (result.output, result.step_history[0].attempts) == ("done", 3)
    assert result.step_history[0].latency_s == pytest.approx(5.5)


@pytest.mark.trio
async def test_work_within_its_time_is_left_alone(autojump_clock: Any) -> None:
    """Nothing happens before the time is over."""
    assert (await Flujo(Step("s", Slow(1.9), timeout_s=2)).run_async(1)).success


@pytest.mark.trio
async def test_a_timeout_leads_to_the_fallback(autojump_clock: Any) -> None:
    """As any failure does."""
    result = await Flujo(Step("s", Slow(60), timeout_s=1, fallback=Step("f", same))).run_async("in")
    assert result.output == "in"
    assert "timeout_s=1" in result.step_history[0].metadata["original_error"]


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["parallel", "map", "branch", "loop"])
async def test_a_composite_can_have_a_timeout(autojump_clock: Any, kind: str) -> None:
    """Everything in it is cancelled, and what was used by then is counted."""
    quick, slow = Scripted(spent("quick", 10)), Slow(60, 60, 60)
    body = Step("quick", quick) >> Step("slow", slow)
    config: Any = {"timeout_s": 1}
    composite = {
        "parallel": lambda: Step.parallel("c", {"x": body, "y": Step("quick", quick)}, **config),
        "map": lambda: Step.map_over("c", body, items=[1, 2], **config),
        "branch": lambda: Step.branch_on("c", lambda data, context: "x", {"x": body}, **config),
        "loop": lambda: Step.loop_until("c", body, lambda output, context: True, **config),
    }[kind]()
    result = await Flujo(composite).run_async(1)
    assert (result.status, slow.cancelled) == ("failed", 2 if kind == "map" else 1)
    assert result.total_tokens == 10 * len(quick.calls)
    assert named(result, "quick").success


@pytest.mark.trio
async def test_the_tighter_of_two_timeouts_wins(autojump_clock: Any) -> None:
    """The inner step's failure is its own, the outer's is not reached."""
    inner = Step("inner", Slow(60), timeout_s=1, fallback=Step("f", same))
    outer = Step.parallel("outer", {"x": inner}, timeout_s=5)
    assert (await Flujo(outer).run_async("in")).output == {"x": "in"}
    begun = trio.current_time()
    late = Step.parallel("outer", {"x": Step("inner", Slow(60), timeout_s=9)}, timeout_s=5)
    result = await Flujo(late).run_async("in")
    assert (result.status, trio.current_time() - begun) == ("failed", pytest.approx(5))
    assert "'outer'" in result.feedback


@pytest.mark.trio
async def test_a_retried_step_inside_a_retried_step_multiplies(autojump_clock: Any) -> None:
    """Three times two calls; the outer counts its own attempts only."""
    agent = Scripted(ValueError("always"))
    inner = Step("inner", agent, max_retries=1, backoff=AT_ONCE)
    outer = Step.branch_on("outer", lambda data, context: 1, {1: inner}, max_retries=2, backoff=AT_ONCE)
    result = await Flujo(Pipeline((outer,))).run_async(1)
    assert len(agent.calls) == 6
    assert result.step_history[0].attempts == 3
    assert [each.attempts for each in result.step_history[0].step_history] == [2, 2, 2]


@pytest.mark.trio
async def test_steps_after_a_failure_do_not_start(autojump_clock: Any) -> None:
    """The history ends with the failed step; its partial result is there."""
    later = Scripted("never")
    result = await Flujo(Step("a", same) >> Step("b", failing()) >> Step("c", later)).run_async(1)
    assert [(each.name, each.success) for each in result.step_history] == [("a", True), ("b", False)]
    assert (later.calls, result.output) == ([], None)
