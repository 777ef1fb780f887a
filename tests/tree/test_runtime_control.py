"""Control errors reach the caller from any depth; everything else stays a result."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from scripted import AT_ONCE, PLACES, Scripted, collected, failing, named, nested, read_into, same, spent

from flujo_actors import Aborted, Failure, Flujo, PipelineResult, Step, StepResult, Success
from flujo_actors.errors import (
    InfiniteRedirectError,
    MissingAgentError,
    MockDetectionError,
    PricingNotConfiguredError,
    UsageLimitExceededError,
)

CONTROL = [
    UsageLimitExceededError,
    PricingNotConfiguredError,
    MissingAgentError,
    MockDetectionError,
    InfiniteRedirectError,
]


@pytest.mark.trio
@pytest.mark.parametrize("kind", CONTROL)
async def test_every_control_error_reaches_the_caller_with_the_partial_result(autojump_clock: Any, kind: Any) -> None:
    """Raised with just a message, past retries and fallback; the same object, with what the run had reached."""
    error = kind("stop here")
    agent, standby, later = Scripted(error), Scripted("never"), Scripted("never")
    step = Step("bad", agent, max_retries=3, fallback=Step("f", standby))
    with pytest.raises(kind, match="stop here") as caught:
        await Flujo(Step("good", Scripted(spent("fine", 5, 0.5))) >> step >> Step("later", later)).run_async(1)
    assert caught.value is error
    assert (len(agent.calls), standby.calls, later.calls) == (1, [], [])
    result = caught.value.result
    assert isinstance(result, PipelineResult)
    assert (result.status, result.total_tokens, result.total_cost_usd) == ("failed", 5, 0.5)
    assert [(each.name, each.success) for each in result.step_history] == [("good", True), ("bad", False)]


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
@pytest.mark.parametrize("kind", [UsageLimitExceededError, SystemExit])
async def test_a_control_error_passes_through_every_kind_of_step(
    autojump_clock: Any, place: tuple[str, str], kind: Any
) -> None:
    """Retries and fallbacks of the leaf and of everything around it are not tried."""
    agent, standby, later = Scripted(kind("deep")), Scripted("never"), Scripted("never")
    leaf = Step("leaf", agent, max_retries=2, backoff=AT_ONCE, fallback=Step("f", standby))
    around = Step.parallel(
        "around",
        {"x": Step("paid", Scripted(spent(1, 7))) >> nested(place, leaf)},
        max_retries=2,
        backoff=AT_ONCE,
        fallback=Step("f2", standby),
        on_branch_failure="ignore",
    )
    with pytest.raises(kind, match="deep") as caught:
        await Flujo(around >> Step("later", later)).run_async(1)
    assert (len(agent.calls), standby.calls, later.calls) == (1, [], [])
    if kind is UsageLimitExceededError:
        result = caught.value.result
        assert result.total_tokens == sum(each.token_counts for each in result.step_history) == 7
        assert named(result, "paid").success


@pytest.mark.trio
@pytest.mark.parametrize("kind", [UsageLimitExceededError, KeyboardInterrupt])
async def test_iterating_raises_the_control_error_after_the_outcomes(autojump_clock: Any, kind: Any) -> None:
    """The failed steps are told, then the error comes; awaiting the same handle raises it too."""
    handle = Flujo(Step("a", same) >> Step("b", failing("stop", kind))).run_async(1)
    seen: list[Any] = []
    with pytest.raises(kind, match="stop"):
        await read_into(seen, handle)
    assert [type(outcome) for outcome in seen] == [Success, Failure]
    with pytest.raises(kind, match="stop"):
        await handle


def test_run_raises_control_errors_in_synchronous_code() -> None:
    """Also from a sync step in a worker thread."""

    def fail(data: Any) -> None:
        raise PricingNotConfiguredError("which price?")

    with pytest.raises(PricingNotConfiguredError, match="which price") as caught:
        Flujo(Step("s", fail)).run(1)
    assert caught.value.result.status == "failed"


@pytest.mark.trio
async def test_awaiting_again_after_a_control_error_raises_it_again(autojump_clock: Any) -> None:
    """A handle stands for one run; asking twice gives the same answer twice."""
    handle = Flujo(Step("s", failing("stop", UsageLimitExceededError))).run_async(1)
    for _ in range(2):
        with pytest.raises(UsageLimitExceededError, match="stop"):
            await handle


@pytest.mark.trio
async def test_a_control_error_inside_an_exception_group_is_found(autojump_clock: Any) -> None:
    """A step with a nursery of its own raises groups, also nested ones."""

    async def fail(data: Any) -> None:
        async def one() -> None:
            raise ValueError("only a failure")

        async def two() -> None:
            raise UsageLimitExceededError("in a group")

        async with trio.open_nursery() as outer:
            outer.start_soon(one)
            async with trio.open_nursery() as inner:
                inner.start_soon(two)

    with pytest.raises(UsageLimitExceededError, match="in a group") as caught:
        await Flujo(Step("s", fail, max_retries=3, fallback=Step("f", same))).run_async(1)
    assert caught.value.result.status == "failed"


@pytest.mark.trio
@pytest.mark.parametrize(
    "where",
    ["input", "before", "after", "validator", "select", "until", "items", "message", "stream", "returned", "fallback"],
)
async def test_control_errors_from_any_user_code_stop_the_run(autojump_clock: Any, where: str) -> None:
    """Not only agents are user code."""

    def bad(*args: Any) -> Any:
        raise PricingNotConfiguredError("from user code")

    async def stream(data: Any) -> Any:
        yield "piece"
        bad()

    more: Any = {"max_retries": 2, "backoff": AT_ONCE, "fallback": Step("f", same)}
    x = Step("x", same)
    step = {
        "input": lambda: Step("s", same, input=bad, **more),
        "before": lambda: Step("s", same, processors={"before": [bad]}, **more),
        "after": lambda: Step("s", same, processors={"after": [bad]}, **more),
        "validator": lambda: Step("s", same, validators=[bad], **more),
        "select": lambda: Step.branch_on("s", bad, {"x": x}, **more),
        "until": lambda: Step.loop_until("s", x, bad, **more),
        "items": lambda: Step.map_over("s", x, items=bad, **more),
        "message": lambda: Step.human_in_the_loop("s", bad, **more),
        "stream": lambda: Step("s", stream, **more),
        "returned": lambda: Step("s", Scripted(Failure(error=PricingNotConfiguredError("from user code"))), **more),
        "fallback": lambda: Step("s", failing(), fallback=Step("f", bad, **more)),
    }[where]()
    with pytest.raises(PricingNotConfiguredError, match="from user code") as caught:
        await Flujo(step).run_async(1)
    assert caught.value.result.status == "failed"


@pytest.mark.trio
@pytest.mark.parametrize("moment", ["pre_run", "pre_step", "post_step", "on_step_failure", "on_pause", "post_run"])
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_control_error_of_a_hook_stops_the_run(autojump_clock: Any, moment: str, grouped: bool) -> None:
    """At every moment, also in an exception group, also about a step inside a parallel branch."""
    error: Any = UsageLimitExceededError("said the hook")

    def hook(payload: Any) -> None:
        if payload.kind == moment and getattr(payload, "step_name", "leaf") == "leaf":
            raise ExceptionGroup("several", [ValueError("one"), error]) if grouped else error

    leaves = {"on_step_failure": Step("leaf", failing()), "on_pause": Step.human_in_the_loop("leaf", "?")}
    leaf = leaves.get(moment, Step("leaf", same))
    later = Scripted("never")
    step = Step.parallel("p", {"x": leaf, "y": Step("beside", same)}, max_retries=1, fallback=Step("f", same))
    with pytest.raises(UsageLimitExceededError, match="said the hook") as caught:
        await Flujo(step >> Step("later", later), hooks=hook).run_async(1)
    assert isinstance(caught.value.result, PipelineResult)
    assert later.calls == [] or moment == "post_run"


@pytest.mark.trio
async def test_a_control_error_stops_the_siblings_at_once(autojump_clock: Any) -> None:
    """A sleeping branch is cancelled, an ignoring parallel step does not ignore it."""
    ended = []

    async def slow(data: Any) -> None:
        try:
            await trio.sleep(60)
        finally:
            ended.append(trio.current_time())

    async def fail(data: Any) -> None:
        await trio.sleep(1)
        raise InfiniteRedirectError("round and round")

    begun = trio.current_time()
    branches = {"slow": Step("slow", slow), "bad": Step("bad", fail)}
    with pytest.raises(InfiniteRedirectError):
        await Flujo(Step.parallel("p", branches, on_branch_failure="ignore")).run_async(1)
    assert ended == [pytest.approx(begun + 1)]


@pytest.mark.trio
async def test_a_failed_pipeline_is_a_result(autojump_clock: Any) -> None:
    """No exception, whatever ordinary exception a step raised."""
    for kind in (ValueError, RuntimeError, json.JSONDecodeError, OSError, StopAsyncIteration, AssertionError):
        error = kind("x", "", 0) if kind is json.JSONDecodeError else kind("x")
        result = await Flujo(Step("s", Scripted(error))).run_async(1)
        assert (result.status, result.success) == ("failed", False)


@pytest.mark.trio
async def test_a_step_without_an_agent_is_an_error_when_it_is_built(autojump_clock: Any) -> None:
    """`MissingAgentError` names the step."""
    with pytest.raises(MissingAgentError, match="'lonely'"):
        Step("lonely", None)
    with pytest.raises(MissingAgentError):
        Step("lonely")


# --- abort --------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_a_returned_abort_at_any_depth_aborts_the_run(autojump_clock: Any, place: tuple[str, str]) -> None:
    """Nothing is retried, nothing follows; what was used is counted."""
    agent, later = Scripted(Aborted(reason="enough")), Scripted("never")
    leaf = Step("paid", Scripted(spent(1, 7))) >> Step("leaf", agent, max_retries=2, fallback=Step("f", same))
    flujo = Flujo(Step("first", Scripted(spent(1, 1))) >> nested(place, leaf) >> Step("later", later))
    result = await flujo.run_async(1)
    assert (result.status, result.feedback, result.success) == ("aborted", "enough", False)
    assert (len(agent.calls), later.calls) == (1, [])
    assert result.total_tokens == sum(each.token_counts for each in result.step_history) == 8
    last = (await collected(flujo.run_async(1)))[-1]
    assert last == Aborted(reason="enough")


@pytest.mark.trio
async def test_usage_reported_by_an_attempt_before_the_abort_is_counted(autojump_clock: Any) -> None:
    """A step that is aborted has paid for what it did."""
    result = StepResult(name="x", success=False, token_counts=9)
    agent = Scripted(Failure(feedback="again", step_result=result), Aborted(reason="enough"))
    got = await Flujo(Step("s", agent, max_retries=1, backoff=AT_ONCE)).run_async(1)
    assert (got.status, got.total_tokens) == ("aborted", 9)


@pytest.mark.trio
async def test_an_abort_outranks_a_failure_of_the_same_moment(autojump_clock: Any) -> None:
    """Whoever aborts means the run: it is not tried again because a sibling merely failed."""
    agent = Scripted(Aborted(reason="enough"))
    for branches in (
        {"bad": Step("bad", failing()), "stop": Step("stop", agent)},
        {"stop": Step("stop", agent), "bad": Step("bad", failing())},
    ):
        agent.calls.clear()
        step = Step.parallel("p", branches, max_retries=3, backoff=AT_ONCE, on_branch_failure="ignore")
        result = await Flujo(step).run_async(1)
        assert (result.status, result.feedback, len(agent.calls)) == ("aborted", "enough", 1)
