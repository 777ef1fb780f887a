"""Usage limits and prices, from the declaration to the error."""

from __future__ import annotations

import pytest
from agent_hosts import each_host, two_hosts
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel

from flujo_actors import (
    Flujo,
    Price,
    PricingNotConfiguredError,
    Settings,
    Step,
    Usage,
    UsageLimitExceededError,
    UsageLimits,
    make_agent_async,
)
from flujo_actors._core.settings_model import UsageSettings
from flujo_actors.testing import Billed, CallTool, Delayed, Recorder, ScriptedAgent, run_on_mock_clock, scripted_model

HUNDRED = Usage(input_tokens=60, output_tokens=40)
DIME = {"scripted": Price(input_usd=1000, output_usd=1000)}
"""A price at which a hundred tokens cost ten cents."""


def tokens(limit):
    return UsageLimits(total_tokens_limit=limit)


def cost(limit):
    return UsageLimits(total_cost_usd_limit=limit)


def priced(**usage):
    return Settings(usage=UsageSettings(prices=DIME, **usage))


def hundred(*replies, **config):
    """A model that bills a hundred tokens each time."""
    return scripted_model(*(replies or ("ok",)), usage=HUNDRED, forever=True, **config)


# --- races --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["one agent", "an agent each"])
@pytest.mark.parametrize("limits", [tokens(500), cost(0.5)], ids=["tokens", "cost"])
@each_host
def test_eight_branches_race_for_one_quota_and_consume_it_exactly(host, limits, shared):
    """Five calls fit: five are made, the sixth is not, and nobody waits for ever."""
    model = hundred(Delayed(0.005, "ok"))
    one = make_agent_async(model)
    agents = [one if shared else make_agent_async(model) for _ in range(8)]
    branches = {f"b{number}": Step(f"s{number}", agent) for number, agent in enumerate(agents)}
    flujo = Flujo(Step.parallel("race", branches), usage_limits=limits, settings=priced())
    with pytest.raises(UsageLimitExceededError) as caught:
        host.result(flujo, "go")
    assert len(model.asked) == 5
    assert caught.value.result.total_tokens == 500
    assert caught.value.result.total_cost_usd == pytest.approx(0.5)


@pytest.mark.parametrize("size", [10, 100, 5000, 300_000])
@pytest.mark.parametrize("calls", [1, 3, 8, 20])
def test_racers_that_loop_consume_a_quota_of_any_size_exactly(size, calls):
    """Whatever a call costs beside what is guessed, as many are made as fit."""
    model = scripted_model("again", usage=Usage(input_tokens=size), forever=True)
    agent = make_agent_async(model)
    loops = {
        f"b{number}": Step.loop_until(f"loop {number}", Step("ask", agent), lambda *_: False, max_loops=50)
        for number in range(8)
    }
    with pytest.raises(UsageLimitExceededError) as caught:
        Flujo(Step.parallel("race", loops), usage_limits=tokens(size * calls)).run("go")
    assert len(model.asked) == calls
    assert caught.value.result.total_tokens == size * calls


def test_a_quota_that_is_not_used_up_stops_nobody():
    """Eight calls fit into eight hundred tokens."""
    branches = {f"b{number}": Step(f"s{number}", make_agent_async(hundred())) for number in range(8)}
    assert Flujo(Step.parallel("race", branches), usage_limits=tokens(800)).run("go").total_tokens == 800


def test_a_known_size_is_refused_although_something_is_left():
    """Four calls of a hundred fit into 450, the fifth would pass the limit and is not made."""
    model = hundred()
    loop = Step.loop_until("loop", Step("ask", make_agent_async(model)), lambda *_: False, max_loops=50)
    with pytest.raises(UsageLimitExceededError, match=r"has used 400 of 450 tokens \(total_tokens_limit\)"):
        Flujo(loop, usage_limits=tokens(450)).run("go")
    assert len(model.asked) == 4


def test_a_first_call_that_passes_the_limit_is_the_last():
    """Nobody knows its size before, but what it cost is known after."""
    model = hundred()
    flujo = Flujo(Step("one", make_agent_async(model)) >> Step("two", make_agent_async(model)), usage_limits=tokens(50))
    with pytest.raises(UsageLimitExceededError, match="100 of 50 tokens") as caught:
        flujo.run("go")
    assert len(model.asked) == 1
    assert caught.value.result.step_history[0].output == "ok"


@pytest.mark.slow
@two_hosts
def test_waiting_for_room_can_be_cancelled(host):
    """A branch that waits for another's settlement has a timeout like any other."""
    slow = make_agent_async(hundred(Delayed(30, "late")))
    branches = {"slow": Step("slow", slow, timeout_s=2), "waits": Step("waits", slow, timeout_s=0.4)}
    step = Step.parallel("both", branches, on_branch_failure="ignore")
    result = host.result(Flujo(step, usage_limits=tokens(1000)), "go")
    assert "took longer than timeout_s=0.4" in result.feedback
    assert result.total_tokens == 0


# --- where limits stand -------------------------------------------------------------------------------------


def test_a_step_has_a_limit_of_its_own():
    """It holds for all attempts and turns of that step, and names it."""
    model = hundred(CallTool("again"))
    agent = Agent(model)
    agent.tool_plain(lambda: "once more", name="again")
    pipeline = Step("free", make_agent_async(hundred())) >> Step("limited", agent, usage_limits=tokens(300))
    with pytest.raises(UsageLimitExceededError, match="step 'limited' has used 300 of 300 tokens") as caught:
        Flujo(pipeline).run("go")
    assert caught.value.result.total_tokens == 400
    assert [step.name for step in caught.value.result.step_history] == ["free", "limited"]


def test_the_limit_of_a_composite_holds_for_everything_in_it():
    """Branches of a limited parallel step share its budget; steps beside it do not."""
    agent = make_agent_async(hundred())
    branches = {key: Step.loop_until(key, Step("ask", agent), lambda *_: False, max_loops=9) for key in "ab"}
    inner = Step.parallel("inner", branches, usage_limits=tokens(400))
    with pytest.raises(UsageLimitExceededError, match="step 'inner' has used 400 of 400"):
        Flujo(Step("outer", agent) >> inner, usage_limits=tokens(10_000)).run("go")


def test_every_run_has_a_budget_of_its_own():
    """A Flujo can be run again when its first run has used its limit up."""
    flujo = Flujo(Step("ask", make_agent_async(hundred())), usage_limits=tokens(100))
    assert [flujo.run("x").total_tokens for _ in range(3)] == [100, 100, 100]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        lambda ask: ask(max_retries=9, validators=lambda text: "no"),
        lambda ask: ask(validators=lambda text: "no", fallback=ask("second", validators=lambda text: "no")),
        lambda ask: Step.loop_until("loop", ask(), lambda *_: False, max_loops=9),
        lambda ask: Step.map_over("map", ask(), items=range(9)),
        lambda ask: Step.parallel("all", {n: ask(f"s{n}") for n in range(9)}, on_branch_failure="ignore"),
        lambda ask: Step.branch_on("branch", lambda *_: 1, {1: ask(max_retries=9, validators=lambda text: "no")}),
        lambda ask: Step(
            "outer", ScriptedAgent(ValueError("x")), fallback=ask(max_retries=9, validators=lambda t: "n")
        ),
    ],
    ids=["retries", "fallback", "loop", "map", "parallel", "branch", "in a fallback"],
)
def test_a_limit_reaches_the_caller_from_anywhere(step, watched):
    """No retry, fallback, loop or patient parallel step makes a result of it; the partial result adds up."""
    model = hundred()
    agent = make_agent_async(model)

    def ask(name="ask", **config):
        return Step(name, agent, **config)

    flujo = Flujo(step(ask), usage_limits=tokens(100))
    with pytest.raises(UsageLimitExceededError, match="100 of 100 tokens") as caught:
        run_on_mock_clock(flujo, "go", recorder=Recorder() if watched else None)
    assert caught.value.result.total_tokens == model.billed.tokens == 100
    assert caught.value.result.status == "failed"


def test_limits_count_what_plain_functions_report():
    """An output with `token_counts` and `cost_usd` spends the same budget, and the next call is not made."""

    class Reported:
        token_counts = 100
        cost_usd = 0.25

    calls = []

    async def plain(data):
        calls.append(data)
        return Reported()

    loop = Step.loop_until("loop", Step("plain", plain), lambda *_: False, max_loops=9)
    with pytest.raises(UsageLimitExceededError, match=r"\$0.5 of \$0.5 \(total_cost_usd_limit\)"):
        Flujo(loop, usage_limits=cost(0.5)).run("x")
    assert len(calls) == 2


def test_what_nested_agents_use_counts_against_the_limit():
    """It is not known before, but it is counted when the call ends."""
    helper = Agent(scripted_model(Billed("found", 500, 0), name="inner"))
    agent = Agent(hundred(CallTool("delegate"), "done"))

    @agent.tool
    async def delegate(ctx) -> str:
        return (await helper.run("look", usage=ctx.usage)).output

    with pytest.raises(UsageLimitExceededError, match="700 of 600"):
        Flujo(Step("ask", agent), usage_limits=tokens(600)).run("x")


# --- prices -------------------------------------------------------------------------------------------------


def one_million(name, **config):
    """A model of that name that bills a million tokens in, half of them cached, and a million out."""
    return scripted_model(Billed("ok", 1_000_000, 1_000_000, 500_000), forever=True, name=name, **config)


def cost_of(model, settings=None, **config):
    return Flujo(Step("ask", make_agent_async(model)), settings=settings, **config).run("x").total_cost_usd


def test_prices_come_from_the_settings():
    """In dollars per million tokens; cached input may have its own."""
    prices = {"mine": Price(input_usd=2, output_usd=8, cached_usd=1)}
    assert cost_of(one_million("mine"), {"usage": {"prices": prices}}) == pytest.approx(1 + 0.5 + 8)
    plain = {"mine": {"input_usd": 2, "output_usd": 8}}
    assert cost_of(one_million("mine"), {"usage": {"prices": plain}}) == pytest.approx(10)


def test_a_price_in_the_settings_replaces_the_listed_one(monkeypatch):
    """Also if it is lower: a discount is a price."""
    model = one_million("gpt-4o")
    monkeypatch.setattr(type(model), "system", "openai")
    listed = cost_of(model)
    assert listed > 1
    free = {"usage": {"prices": {"gpt-4o": {"input_usd": 0, "output_usd": 0}}}}
    assert cost_of(model, free) == 0


def test_an_unknown_price_costs_nothing_unless_it_matters():
    """Without a cost limit and without strictness a model without a price is called."""
    assert cost_of(hundred(name="unheard-of")) == 0


STRICT = Settings(usage=UsageSettings(strict_pricing=True))

PATHS = {
    "alone": lambda ask: ask,
    "retries": lambda ask: Step("outer", ask.agent, max_retries=3),
    "fallback": lambda ask: Step("outer", ScriptedAgent(ValueError("x"), forever=True), fallback=ask),
    "has a fallback": lambda ask: Step("outer", ask.agent, fallback=Step("x", ScriptedAgent("y"))),
    "parallel": lambda ask: Step.parallel("all", {"a": ask, "b": Step("b", ScriptedAgent("y"))}),
    "patient": lambda ask: Step.parallel(
        "all", {"a": ask, "b": Step("b", ScriptedAgent("y"))}, on_branch_failure="ignore"
    ),
    "loop": lambda ask: Step.loop_until("loop", ask, lambda *_: True),
    "map": lambda ask: Step.map_over("map", ask, items=[1, 2]),
    "branch": lambda ask: Step.branch_on("branch", lambda *_: 1, {1: ask}),
}


@pytest.mark.parametrize("watched", [False, True], ids=["awaited", "streamed"])
@pytest.mark.parametrize("why", ["strict", "cost limit"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_needed_price_that_is_unknown_stops_the_run(path, why, watched):
    """Through every path, before the model is called, and never as a failed step."""
    model = hundred(name="unheard-of")
    pipeline = path(Step("ask", make_agent_async(model)))
    config = {"settings": STRICT} if why == "strict" else {"usage_limits": cost(1)}
    with pytest.raises(PricingNotConfiguredError, match="'unheard-of' of 'scripted'") as caught:
        run_on_mock_clock(Flujo(pipeline, **config), "x", recorder=Recorder() if watched else None)
    assert model.asked == []
    assert caught.value.result.status == "failed"
    assert "prices" in str(caught.value)


def test_strict_pricing_is_content_with_a_price():
    """From the settings, or from the list."""
    prices = {"mine": Price(input_usd=1, output_usd=1)}
    settings = Settings(usage=UsageSettings(strict_pricing=True, prices=prices))
    assert cost_of(one_million("mine"), settings) == pytest.approx(2)


def test_a_fallback_model_is_priced_by_what_it_may_call():
    """pydantic-ai's fallback is one model to the agent and several to the bill."""
    prices = {"first": Price(input_usd=1, output_usd=1), "second": Price(input_usd=5, output_usd=5)}
    settings = {"usage": {"prices": prices, "strict_pricing": True}}
    broken = scripted_model(Exception("down"), name="first")
    both = FallbackModel(broken, one_million("second"), fallback_on=(Exception,))
    assert cost_of(both, settings) == pytest.approx(10)
    unknown = FallbackModel(one_million("first"), one_million("third"))
    with pytest.raises(PricingNotConfiguredError, match="'third'"):
        cost_of(unknown, settings)


def test_a_cost_limit_with_prices_is_kept():
    """The error names what was spent and what was allowed, in dollars."""
    loop = Step.loop_until("loop", Step("ask", make_agent_async(hundred())), lambda *_: False, max_loops=50)
    with pytest.raises(UsageLimitExceededError, match=r"\$0.3 of \$0.35 \(total_cost_usd_limit\)"):
        Flujo(loop, usage_limits=cost(0.35), settings=priced()).run("x")
