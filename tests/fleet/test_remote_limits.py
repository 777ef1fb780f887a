"""Limits of runs with remote steps: exact over all machines, whoever draws on them, and whoever dies."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fleet_app
import psycopg
import pytest
import trio
from fleet_processes import Worker
from pydantic_ai import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage
from test_remote_steps import fleet, make

from flujo_actors import (
    Flujo,
    PipelineResult,
    RunClient,
    Step,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    make_agent_async,
)
from flujo_actors.testing import scripted_model
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

TEN = Usage(input_tokens=6, output_tokens=4)


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


def run(flujo: Flujo[Any, Any, Any], data: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async(data, **options)

    return trio.run(main)


def branches(count: int, model: Any, runs_on: str | None = "gpu") -> dict[str, Any]:
    agent = make_agent_async(model)
    return {f"b{number}": Step(f"s{number}", agent, runs_on=runs_on) for number in range(count)}


def rows(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()


def test_remote_steps_of_a_limited_run_go_at_the_same_time(url: str) -> None:
    """Each waits for the other, so both must have begun."""
    both = trio.Event()
    begun: list[str] = []

    async def meet(name: str) -> str:
        begun.append(name)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return name

    stage = Step.parallel("both", {each: Step(each, meet, input=each, runs_on="gpu") for each in "ab"})
    result = run(make(stage, url, usage_limits=UsageLimits(request_limit=1)), "go")
    assert result.output == {"a": "a", "b": "b"}


@pytest.mark.parametrize("limits", [UsageLimits(request_limit=5), UsageLimits(total_tokens_limit=50)])
def test_those_who_race_for_a_limit_never_pass_it(url: str, limits: UsageLimits) -> None:
    """Eight branches elsewhere want one call each, and there is room for five."""
    model = scripted_model("ok", forever=True, usage=TEN)
    flujo = make(Step.parallel("race", branches(8, model)), url, usage_limits=limits)
    with pytest.raises(UsageLimitExceededError, match=r"5 of 5 requests|50 of 50 tokens") as caught:
        run(flujo, "go")
    assert len(model.asked) == 5
    assert caught.value.limits == (("request_limit",) if limits.request_limit else ("total_tokens_limit",))


def test_what_is_left_is_used_up_exactly(url: str) -> None:
    """By steps at home and elsewhere, one after another and at once, alone and in batches."""
    model = scripted_model("ok", forever=True, usage=TEN)
    agent = make_agent_async(model)
    home = Step("home", agent)
    stage = Step.parallel("stage", {**branches(3, model), "here": Step("here", agent)})
    items = Step.map_over("items", Step("item", agent, runs_on="gpu"), items=["x"] * 4, batch=2)
    pipeline = home >> stage >> items
    result = run(make(pipeline, url, usage_limits=UsageLimits(total_tokens_limit=90, request_limit=9)), "go")
    assert (result.status, result.total_tokens, len(model.asked)) == ("completed", 90, 9)
    assert rows(url, "SELECT sum(tokens), sum(under_way) FROM flujo_shares") == [(90.0, 0)]


def test_calls_of_a_known_size_go_at_the_same_time_near_a_limit(url: str) -> None:
    """A worker knows how large a caller's calls are after the first of them, and sets no more aside for the others."""
    most, now, asked = 0, 0, 0

    async def reply(messages: Any, info: Any) -> Any:
        nonlocal most, now, asked
        asked, now = asked + 1, now + 1
        most = max(most, now)
        while asked > 1 and most < 3:
            await asyncio.sleep(0.01)
        now -= 1
        return ModelResponse(parts=[TextPart("ok")], usage=RequestUsage(input_tokens=6, output_tokens=4))

    agent = make_agent_async(FunctionModel(reply))
    items = Step.map_over("items", Step("item", agent, runs_on="gpu"))
    result = run(make(items, url, usage_limits=UsageLimits(total_tokens_limit=100)), ["x"] * 10)
    assert (result.status, result.total_tokens, asked) == ("completed", 100, 10)
    assert most >= 3


def test_a_limit_on_a_step_holds_inside_it(url: str) -> None:
    """For what it has performed elsewhere, beside the limit of the run."""
    model = scripted_model("ok", forever=True, usage=TEN)
    stage = Step.parallel("stage", branches(4, model), usage_limits=UsageLimits(request_limit=2))
    flujo = make(stage, url, usage_limits=UsageLimits(request_limit=100))
    with pytest.raises(UsageLimitExceededError, match="step 'stage' has used 2 of 2 requests"):
        run(flujo, "go")
    assert len(model.asked) == 2


def test_steps_and_tool_calls_are_counted_over_all_machines(url: str) -> None:
    """Each remote step is one."""
    model = scripted_model("ok", forever=True)
    flujo = make(Step.parallel("race", branches(5, model)), url, usage_limits=UsageLimits(step_limit=3))
    with pytest.raises(UsageLimitExceededError, match="3 of 3 steps"):
        run(flujo, "go")
    assert len(model.asked) <= 3


@pytest.mark.parametrize("answer", [{"request_limit": 9}, False])
def test_a_limit_asks_from_where_it_was_reached(url: str, answer: Any) -> None:
    """Elsewhere; the answer is passed on, and what was asked before is not asked again."""
    model = scripted_model("ok", forever=True, usage=TEN)
    limits = UsageLimits(request_limit=2, when_reached="pause")
    stage = Step.parallel("race", branches(4, model), max_concurrency=2)
    flujo = make(stage, url, usage_limits=limits)
    result = run(flujo, "go", run_id="r")
    assert (result.status, len(model.asked)) == ("paused", 2)
    [prompt, *_] = RunClient(url, allow_blocking=True).prompts()
    assert "2 of 2 requests (request_limit)" in prompt.message

    async def go_on() -> PipelineResult[Any]:
        async with fleet(flujo):
            with trio.fail_after(120):
                RunClient(url, allow_blocking=True).answer(prompt.state_token, answer)
                return await flujo.resume_async("r")

    if answer is False:
        with pytest.raises(UsageLimitExceededError):
            trio.run(go_on)
        assert len(model.asked) == 2
    else:
        resumed = trio.run(go_on)
        assert (resumed.status, resumed.total_tokens, len(model.asked)) == ("completed", 40, 4)


def test_a_worker_that_dies_inside_a_call_holds_back_nothing(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What it had set aside is free for whoever takes over: the limit is used up exactly, by two processes."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(fleet_app, "LOG", str(log))
    options = ("--queue", "cores", "--slots", "3")
    limited = {"target": "fleet_app:limited", "FLEET_LIMITED": "6"}
    with ExitStack() as workers:
        dying = workers.enter_context(Worker(url, log, *options, FLEET_DIES="1", **limited))

        def replace() -> None:
            dying.process.wait()
            dying.expire()
            workers.enter_context(Worker(url, log, *options, **limited))

        threading.Thread(target=replace, daemon=True).start()
        result = fleet_app.make_limited(url, 6).run([f"item {number}" for number in range(6)])
        assert dying.process.returncode == -signal.SIGKILL
    assert (result.status, result.total_tokens) == ("completed", 60)
    asked = [words[-1] for words in fleet_app.history() if words[1] == "asked"]
    assert len(asked) <= 6 + 3  # as many as were in flight in the worker that died are asked again
    assert rows(url, "SELECT sum(tokens), sum(under_way) FROM flujo_shares") == [(60.0, 0)]


def test_budgets_go_with_their_run(url: str) -> None:
    """And runs without limits, or without remote steps, have none."""
    model = scripted_model("ok", forever=True, usage=TEN)
    run(make(Step.parallel("race", branches(2, model)), url), "go")
    run(make(Step.parallel("race", branches(2, model, None)), url, usage_limits=UsageLimits(request_limit=9)), "go")
    assert rows(url, "SELECT count(*) FROM flujo_budgets") == [(0,)]
    flujo = make(Step.parallel("race", branches(2, model)), url, usage_limits=UsageLimits(request_limit=9))
    run(flujo, "go", run_id="r")
    assert rows(url, "SELECT count(*) FROM flujo_budgets") == [(1,)]
    RunClient(url, allow_blocking=True).delete("r")
    assert rows(url, "SELECT count(*) FROM flujo_budgets") == rows(url, "SELECT count(*) FROM flujo_shares") == [(0,)]


def test_a_window_counts_the_requests_of_remote_steps_once(url: str) -> None:
    """Each session has its own share: neither the caller nor a second run repeats it."""
    model = scripted_model("ok", forever=True, usage=TEN)
    limits = UsageLimits(request_limit=5, window="month", name="team")
    flujo = make(Step.parallel("race", branches(3, model)), url, usage_limits=limits)
    assert run(flujo, "go", run_id="a").total_tokens == 30
    [found] = RunClient(url, allow_blocking=True).budgets("team")
    assert (found.spent.requests, found.spent.tokens, found.reserved.requests) == (3, 30, 0)
    with pytest.raises(UsageLimitExceededError, match="budget 'team' of this month has used 5 of 5 requests"):
        run(flujo, "go", run_id="b")
    [found] = RunClient(url, allow_blocking=True).budgets("team")
    assert (found.spent.requests, len(model.asked)) == (5, 5)


def test_a_remote_step_waits_for_the_next_window_without_a_worker(url: str) -> None:
    """The run sleeps until the window ends; a higher limit and a wake let it complete."""
    model = scripted_model("ok", forever=True, usage=TEN)

    def flujo(most: int) -> Any:
        limits = UsageLimits(request_limit=most, window="month", when_reached="wait")
        both = Step("a", make_agent_async(model), runs_on="gpu") >> Step("b", make_agent_async(model), runs_on="gpu")
        return make(both, url, usage_limits=limits)

    result = run(flujo(1), "go", run_id="r")
    client = RunClient(url, allow_blocking=True)
    assert (result.status, [each.kind for each in client.get("r").waits]) == ("sleeping", ["budget"])
    assert result.wakes_at == client.budgets()[0].ends_at
    assert client.wake("r")
    more = flujo(2)

    async def go_on() -> PipelineResult[Any]:
        async with fleet(more):
            with trio.fail_after(120):
                return await more.resume_async("r")

    resumed = trio.run(go_on)
    assert (resumed.status, resumed.total_tokens, len(model.asked)) == ("completed", 20, 2)
    assert [each.spent.requests for each in client.budgets()] == [2]
