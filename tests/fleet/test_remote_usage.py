"""What crosses the border: limits, usage, units, transactions, undoing; and pipelines of every shape."""

from __future__ import annotations

import random
from typing import Any

import anyio
import psycopg
import pytest
import trio
from test_remote_steps import fleet, leave_when, make, shape

from flujo_actors import (
    Context,
    Flujo,
    Pipeline,
    RunClient,
    Step,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    make_agent_async,
)
from flujo_actors.testing import CallTool, scripted_model
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


def run(flujo: Flujo[Any, Any, Any], data: Any) -> Any:
    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async(data)

    return trio.run(main)


def test_usage_is_counted_once(url: str) -> None:
    """In the step's result, and in the run's totals."""
    model = scripted_model("ok", forever=True, usage=Usage(input_tokens=60, output_tokens=40))
    asking = [Step(name, make_agent_async(model), runs_on="gpu") for name in ("a", "b")]
    result = run(make(Pipeline(asking), url), "go")
    assert (result.total_tokens, [each.token_counts for each in result.step_history]) == (200, [100, 100])


def test_limits_hold_over_all_machines(url: str) -> None:
    """Eight branches elsewhere race for five requests: five are made, and the error says what was reached."""
    model = scripted_model("ok", forever=True)
    branches = {f"b{number}": Step(f"s{number}", make_agent_async(model), runs_on="gpu") for number in range(8)}
    flujo = make(Step.parallel("race", branches), url, usage_limits=UsageLimits(request_limit=5))
    with pytest.raises(UsageLimitExceededError, match=r"5 of 5 requests \(request_limit\)") as caught:
        run(flujo, "go")
    assert len(model.asked) == 5
    assert caught.value.limits == ("request_limit",)


def test_a_granular_agent_goes_on_after_its_last_unit(url: str) -> None:
    """Put to rest inside its second tool, it repeats neither the first one nor the turns before."""
    calls: list[str] = []

    async def first() -> str:
        calls.append("first")
        return "one"

    async def second() -> str:
        calls.append("second")
        if calls.count("second") == 1:
            await anyio.sleep_forever()
        return "two"

    from pydantic_ai import Agent

    model = scripted_model(CallTool("first"), CallTool("second"), "done")
    agent = Agent(model, tools=[first, second])
    flujo = make(Step.granular("work", agent, runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            with trio.move_on_after(60) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leave_when, scope, lambda: "second" in calls)
                    await flujo.run_async("go", run_id="r")
            return await flujo.resume_async("r")

    assert trio.run(main).output == "done"
    assert calls == ["first", "second", "second"]


def test_a_transaction_commits_with_the_remote_step(url: str) -> None:
    """What it wrote and how it ended are one commit, in the worker's own connection."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE orders (item int)")

    def book(item: int, *, transaction: Any) -> int:
        transaction.execute("INSERT INTO orders VALUES (%s)", (item,))
        if item == 2:
            raise ValueError("no")
        return item

    items = Step.parallel("all", {"a": Step("a", book, input=1, runs_on="gpu"), "b": Step("b", book, runs_on="gpu")})
    assert run(make(items, url), 2).status == "failed"
    with psycopg.connect(url) as db:
        assert db.execute("SELECT item FROM orders").fetchall() in ([], [(1,)])
    assert run(make(Step("only", book, runs_on="gpu"), url), 3).output == 3
    with psycopg.connect(url) as db:
        assert (3,) in db.execute("SELECT item FROM orders").fetchall()


def test_what_remote_steps_did_is_undone(url: str) -> None:
    """Also what is inside them, in reverse order, when something after them fails."""
    undone: list[str] = []

    def undo(name: str) -> Any:
        async def take_back(data: Any) -> None:
            undone.append(name)

        return take_back

    async def done(data: Any) -> Any:
        return data

    async def failing(data: Any) -> Any:
        raise ValueError("no")

    def pipeline(runs_on: str | None) -> Any:
        inner = Step("a", done, compensate=undo("a")) >> Step("b", done, compensate=undo("b"))
        both = Step.branch_on("both", lambda data, context: "x", {"x": inner}, runs_on=runs_on)
        return both >> Step("c", done, compensate=undo("c"), runs_on=runs_on) >> Step("fails", failing)

    home = Flujo(pipeline(None)).run(1)
    expected, undone[:] = list(undone), []
    away = run(make(pipeline("gpu"), url), 1)
    assert expected == ["c", "b", "a"]
    assert undone == expected
    assert (away.status, away.feedback) == (home.status, home.feedback)


SEEDS = 6
"""How many are tried; thirty were, once."""

# --- pipelines of every shape -------------------------------------------------------------------------------


async def add(data: int) -> int:
    return data + 1


def odd_only(data: int) -> int:
    if data % 2 == 0:
        raise ValueError(f"{data} is even")
    return data * 3


async def noting(data: int, *, context: Context) -> int:
    context.seen = getattr(context, "seen", 0) + data
    return data


def small(output: int) -> Any:
    return True if output < 40 else f"{output} is too large"


class Shapes:
    """Makes the same pipeline twice from one seed, at home and elsewhere."""

    def __init__(self, seed: int, runs_on: str | None) -> None:
        self.rng, self.runs_on, self.count = random.Random(seed), runs_on, 0

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"runs_on": self.runs_on} if self.rng.random() < 0.6 else {}
        if self.rng.random() < 0.2:
            options["max_retries"] = 1
        if self.rng.random() < 0.2:
            options["validators"] = small
        if self.rng.random() < 0.3:
            options["fallback"] = Step("standby", add)
        return options

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def step(self, depth: int) -> Any:
        kind = self.rng.choice(["call", "call", "loop", "map", "parallel", "branch"] if depth else ["call"])
        options = self.options()
        name = self.name(kind)
        match kind:
            case "call":
                return Step(name, self.rng.choice([add, odd_only, noting]), **options)
            case "loop":
                return Step.loop_until(name, self.step(depth - 1), lambda output, context: True, **options)
            case "map":
                body = self.step(0)
                step = Step.map_over(name, body, items=two, max_concurrency=1, **no_checks(options))
                return step >> Step(self.name("sum"), total)
            case "parallel":
                both = {"a": self.step(depth - 1), "b": self.step(depth - 1)}
                step = Step.parallel(
                    name, both, on_branch_failure="ignore", merge="keep_first", max_concurrency=1, **no_checks(options)
                )
                return step >> Step(self.name("sum"), total_of)
            case _:
                chosen = {True: self.step(depth - 1), False: self.step(depth - 1)}
                return Step.branch_on(name, lambda data, context: data % 2 == 0, chosen, **options)

    def pipeline(self) -> Pipeline[Any, Any]:
        return Pipeline([Pipeline.from_step(self.step(2)) for _ in range(3)], name="generated")


def two(data: int, context: Any) -> list[int]:
    return [data, data + 1]


def no_checks(options: dict[str, Any]) -> dict[str, Any]:
    """What fits a step whose output is no number."""
    return {name: value for name, value in options.items() if name not in ("validators", "fallback")}


def total(items: list[int]) -> int:
    return sum(items)


def total_of(items: dict[str, int]) -> int:
    return sum(items.values())


def test_generated_pipelines_come_to_the_same_elsewhere(url: str) -> None:
    """Loops, fallbacks, validators, branches, merges, failures; equal but for times."""
    for seed in range(SEEDS):
        home = Flujo(Shapes(seed, None).pipeline()).run(seed)
        flujo = make(Shapes(seed, "gpu").pipeline(), url)
        away = run(flujo, seed)
        told = (away.status, away.output, away.feedback, away.final_context)
        assert told == (home.status, home.output, home.feedback, home.final_context), seed
        assert [shape(each) for each in away.step_history] == [shape(each) for each in home.step_history], seed
    assert len(RunClient(url).list()) == SEEDS
