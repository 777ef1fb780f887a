"""What steps used adds up: the parts to the totals, and the totals to what the models billed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flujo_actors import Backoff, Flujo, PipelineResult, Price, Settings, Step, StepResult, Usage, make_agent_async
from flujo_actors._core.settings_model import UsageSettings
from flujo_actors.testing import Billed, CallTool, Delayed, Recorder, run_on_mock_clock, scripted_model
from flujo_actors.testing._scripted_model import ScriptedModel

pytestmark = pytest.mark.slow

NAMES = ("small", "large")
PRICES = {"small": Price(input_usd=3, output_usd=7, cached_usd=1), "large": Price(input_usd=30, output_usd=70)}
PRICED = Settings(usage=UsageSettings(prices=PRICES))


# --- one agent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_a_step_counts_tokens_cached_tokens_requests_tool_calls_and_cost(watched):
    """Everything a provider bills is in the step's result, and the totals are in the run's."""
    model = scripted_model(
        Billed([CallTool("tick"), CallTool("tick")], 1000, 100, 400), Billed("done", 2000, 50, 1500), name="small"
    )
    agent = make_agent_async(model, tools=[tick])
    flujo = Flujo(Step("ask", agent), settings=PRICED)
    result = run_on_mock_clock(flujo, "x", recorder=Recorder() if watched else None)
    step = result.step_history[0]
    cost = (1100 * 3 + 1900 * 1 + 150 * 7) / 1e6
    assert attrs.evolve(step.usage, cost_usd=0) == Usage(
        input_tokens=3000, output_tokens=150, cached_tokens=1900, requests=2, tool_calls=2
    )
    assert step.usage.cost_usd == step.cost_usd == result.total_cost_usd == pytest.approx(cost)
    assert step.token_counts == result.total_tokens == 3150


def tick() -> str:
    return "tock"


@pytest.mark.parametrize("watched", [False, True])
def test_a_failed_attempt_is_counted_with_those_that_follow(watched):
    """Attempts that were refused or raised after they were billed, and the fallback, count once each."""

    def broken() -> str:
        raise ValueError("the tool broke")

    primary = scripted_model(Billed("no", 10, 1), Billed(CallTool("broken"), 20, 2), name="small")
    second = scripted_model(Billed("yes", 300, 30), name="large")
    step = Step(
        "ask",
        make_agent_async(primary, tools=[broken]),
        validators=lambda text: text == "yes",
        max_retries=1,
        fallback=Step("second", make_agent_async(second)),
    )
    result = run_on_mock_clock(Flujo(step, settings=PRICED), "x", recorder=Recorder() if watched else None)
    asked, fallback = result.step_history[0], result.step_history[0].step_history[0]
    assert (asked.attempts, asked.token_counts, fallback.token_counts) == (3, 363, 330)
    assert result.total_cost_usd == pytest.approx((30 * 3 + 3 * 7 + 300 * 30 + 30 * 70) / 1e6)


def test_a_step_that_is_cancelled_after_it_was_billed_is_counted():
    """The first turn was paid for, although the second never came."""
    model = scripted_model(Billed(CallTool("tick"), 100, 10), Delayed(30, "late"))
    flujo = Flujo(Step("ask", make_agent_async(model, tools=[tick]), timeout_s=1.5))
    assert flujo.run("x").total_tokens == 110


# --- random pipelines ---------------------------------------------------------------------------------------


@attrs.define
class Cast:
    """The models of one random pipeline, and names that are used once."""

    models: list[ScriptedModel] = attrs.field(factory=list)
    numbers: Any = attrs.field(factory=itertools.count)

    def name(self, kind: str) -> str:
        return f"{kind} {next(self.numbers)}"

    def billed(self) -> Usage:
        return sum((model.billed for model in self.models), Usage())

    def cost(self) -> float:
        return sum(price_of(model) for model in self.models)


def price_of(model: ScriptedModel) -> float:
    price, used = PRICES[model.model_name], model.billed
    cached = price.input_usd if price.cached_usd is None else price.cached_usd
    fresh = used.input_tokens - used.cached_tokens
    return (fresh * price.input_usd + used.cached_tokens * cached + used.output_tokens * price.output_usd) / 1e6


billings = st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 100)).map(
    lambda each: (each[0] + each[2], each[1], each[2])
)
turns = st.tuples(st.sampled_from(["good", "bad", "tool", "broken tool", "error", "late"]), billings)


@st.composite
def leaves(draw, depth=0):
    """An agent step, with retries and perhaps a fallback."""
    script = [*draw(st.lists(turns, max_size=2)), (draw(st.sampled_from(["good", "bad"])), draw(billings))]
    name, retries = draw(st.sampled_from(NAMES)), draw(st.integers(0, 2))
    fallback = draw(leaves(depth=depth + 1)) if depth < 2 and draw(st.booleans()) else None

    def build(cast: Cast) -> Step:
        model = scripted_model(*map(reply, script), name=name, forever=True)
        cast.models.append(model)
        return Step(
            cast.name("ask"),
            make_agent_async(model, tools=[tick, broken_tool]),
            validators=lambda text: text != "bad",
            max_retries=retries,
            backoff=Backoff.none(),
            fallback=None if fallback is None else fallback(cast),
            timeout_s=None if all(kind != "late" for kind, _ in script) else 0.05,
        )

    return build


def reply(turn: tuple[str, tuple[int, int, int]]) -> Any:
    kind, billing = turn
    match kind:
        case "tool":
            return Billed(CallTool("tick"), *billing)
        case "broken tool":
            return Billed(CallTool("broken_tool"), *billing)
        case "error":
            return ConnectionError("down")
        case "late":
            return Delayed(5, "never")
        case _:
            return Billed(kind, *billing)


def broken_tool() -> str:
    raise ValueError("broken")


@st.composite
def composites(draw, inner):
    """A step of steps."""
    kind = draw(st.sampled_from(["sequence", "parallel", "patient", "loop", "map", "branch"]))
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    count = draw(st.integers(1, 3))

    def build(cast: Cast) -> Any:
        name, built = cast.name(kind), [part(cast) for part in parts]
        match kind:
            case "sequence":
                first, *rest = [*built, Step(cast.name("last"), passing)]
                for each in rest:
                    first = first >> each
                return first
            case "loop":
                return Step.loop_until(name, built[0], counted_to(count), max_loops=3)
            case "map":
                return Step.map_over(name, built[0], items=range(count))
            case "branch":
                return Step.branch_on(name, lambda *_: count % len(built), dict(enumerate(built)))
            case _:
                patience = "ignore" if kind == "patient" else "propagate"
                return Step.parallel(name, dict(enumerate(built)), on_branch_failure=patience)

    return build


async def passing(data):
    return data


def counted_to(count):
    turns = itertools.count(1)
    return lambda *_: next(turns) % count == 0


pipelines = st.recursive(leaves(), composites, max_leaves=5)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(build=pipelines, host=st.sampled_from(["run", "watched", "asyncio"]))
def test_the_parts_of_any_pipeline_add_up_to_the_totals_and_to_the_bill(build, host):
    """Retries, fallbacks, loops, tools, errors, timeouts, cancelled branches: nothing is lost or counted twice."""
    cast = Cast()
    flujo = Flujo(build(cast), settings=PRICED)
    result = HOW[host](flujo)
    billed = cast.billed()
    assert result.total_tokens == billed.tokens
    assert result.total_cost_usd == pytest.approx(cast.cost())
    own = [own_usage(step) for _, step in result.walk()]
    assert sum(each.tokens for each in own) == billed.tokens
    assert sum(each.input_tokens for each in own) == billed.input_tokens
    assert sum(each.cached_tokens for each in own) == billed.cached_tokens
    assert sum(each.requests for each in own) == billed.requests
    assert all(each.tokens >= 0 and each.requests >= 0 for each in own)
    assert sum(step.cost_usd for step in result.step_history) == pytest.approx(result.total_cost_usd)
    assert all(not own_usage(step).tokens for _, step in result.walk() if not step.name.startswith("ask"))


def own_usage(step: StepResult) -> Usage:
    """What a step used itself, without what is nested in it."""
    nested = sum((each.usage for each in step.step_history), Usage())
    return Usage(
        input_tokens=step.usage.input_tokens - nested.input_tokens,
        output_tokens=step.usage.output_tokens - nested.output_tokens,
        cached_tokens=step.usage.cached_tokens - nested.cached_tokens,
        requests=step.usage.requests - nested.requests,
    )


def watched(flujo: Flujo) -> PipelineResult:
    recorder = Recorder()
    return trio.run(recorder.record, flujo.run_async("x"))


def in_asyncio(flujo: Flujo) -> PipelineResult:
    async def main():
        return await flujo.run_async("x")

    return asyncio.run(main())


HOW = {"run": lambda flujo: flujo.run("x"), "watched": watched, "asyncio": in_asyncio}
