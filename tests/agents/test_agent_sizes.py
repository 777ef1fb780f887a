"""What a request is reckoned at before it is made: limits are not passed by agents that have not called yet."""

from __future__ import annotations

import itertools
import sys

import pytest
from agent_hosts import two_hosts
from pydantic_ai import Agent

from flujo_actors import Flujo, Pipeline, Price, Settings, Step, Usage, UsageLimitExceededError, UsageLimits
from flujo_actors._core.settings_model import UsageSettings
from flujo_actors.testing import Billed, CallTool, scripted_model
from kit import preloaded


def agent(tokens=10, **config):
    """An agent of its own, whose requests cost that much."""
    return Agent(scripted_model("fine", usage=Usage(input_tokens=tokens), forever=True), **config)


def limit(tokens):
    return UsageLimits(total_tokens_limit=tokens)


def spent(run, *data, **options):
    """What was spent when the limit was reached."""
    with pytest.raises(UsageLimitExceededError) as caught:
        run(*data, **options)
    return caught.value.result.total_tokens


# --- agents that have not called yet ------------------------------------------------------------------------

MANY = {
    "parallel": lambda: Step.parallel("all", {n: Step(f"s{n}", agent()) for n in range(8)}),
    "one after the other": lambda: Pipeline([Step(f"s{n}", agent()) for n in range(8)]),
    "loop over new ones": lambda: Step.loop_until(
        "loop",
        Step.branch_on("next", lambda *_: next(NUMBERS) % 8, {n: Step(f"s{n}", agent()) for n in range(8)}),
        lambda *_: False,
        max_loops=8,
    ),
    "fallbacks": lambda: Pipeline(
        [Step(f"s{n}", agent(), validators=lambda text: "no", fallback=Step("b", agent())) for n in range(4)]
    ),
    "granular": lambda: Step.parallel("all", {n: Step.granular(f"s{n}", agent()) for n in range(8)}),
}
NUMBERS = itertools.count()


@pytest.mark.parametrize("make", MANY.values(), ids=list(MANY))
@two_hosts
def test_agents_that_have_not_called_yet_do_not_pass_a_limit(host, make):
    """They are reckoned at the largest request so far: four of ten tokens fit into 45."""
    assert spent(host.result, Flujo(make(), usage_limits=limit(45)), "x") == 40


def test_a_limited_step_reckons_with_what_was_used_in_it():
    """A large request outside does not count there."""
    inner = Step.parallel("inner", {n: Step(f"s{n}", agent()) for n in range(8)}, usage_limits=limit(45))
    assert spent(Flujo(Step("large", agent(1000)) >> inner, usage_limits=limit(5000)).run, "x") == 1040


def test_an_agent_of_known_size_is_not_reckoned_at_what_others_use():
    """A small one still fits where a large one would not."""
    small, large = agent(10), agent(100)
    steps = [Step("large", large), Step("small", small), Step("small again", small)]
    assert Flujo(Pipeline(steps[1:2] + steps[:1] + steps[2:]), usage_limits=limit(125)).run("x").total_tokens == 120
    assert spent(Flujo(Pipeline(steps), usage_limits=limit(125)).run, "x") == 100


# --- what a request says itself -----------------------------------------------------------------------------

LONG = "word " * 1000


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (LONG, {}),
        ({"text": LONG}, {}),
        ([LONG, "and this"], {}),
        ("x", {"system_prompt": LONG}),
        ("x", {"instructions": LONG}),
        ("x", {"model_settings": {"max_tokens": 600}}),
        (LONG[:1500], {"model_settings": {"max_tokens": 300}}),
    ],
    ids=["prompt", "data", "parts", "system prompt", "instructions", "max_tokens", "both"],
)
@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
def test_a_request_that_cannot_fit_is_not_made(make, data, config):
    """The size of the prompt, and the answer that it may ask for, are known before anything is spent."""
    asked = agent(**config)
    with pytest.raises(UsageLimitExceededError, match=r"0 of 500 tokens .* the next call was reckoned at") as caught:
        Flujo(make("ask", asked), usage_limits=limit(500)).run(data)
    assert asked.model.asked == []
    assert caught.value.result.total_tokens == 0


def test_a_request_that_fits_is_made():
    """What is sure is no more than that."""
    asked = agent(model_settings={"max_tokens": 100})
    assert Flujo(Step("ask", asked), usage_limits=limit(500)).run(LONG[:1000]).total_tokens == 10


def test_what_is_sure_has_a_price_where_dollars_are_limited():
    """By the prices of the settings, here a cent for a token of an answer."""
    asked = agent(model_settings={"max_tokens": 200})
    settings = Settings(usage=UsageSettings(prices={"scripted": Price(input_usd=0, output_usd=10_000)}))
    flujo = Flujo(Step("ask", asked), usage_limits=UsageLimits(total_cost_usd_limit=1.0), settings=settings)
    with pytest.raises(UsageLimitExceededError, match=r"reckoned at \$2"):
        flujo.run("x")
    assert asked.model.asked == []


# --- sizes survive ------------------------------------------------------------------------------------------

ASK = Step.human_in_the_loop("ask", "Go on?")


@pytest.mark.parametrize("stored", [True, False])
def test_sizes_survive_a_pause(stored, tmp_path):
    """Two calls of 15 tokens do not fit into 20, whatever lies between them."""
    one = agent(15)
    pipeline = Step("first", one) >> ASK >> Step("second", one)
    flujo = Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db" if stored else None, usage_limits=limit(20))
    paused = flujo.run("x")
    assert spent(flujo.resume, paused.state_token, "yes") == 15
    assert len(one.model.asked) == 1


NESTS = {
    "plain": lambda step: step,
    "pipeline": lambda step: Pipeline([step], name="inner"),
    "parallel": lambda step: Step.parallel("all", {"a": step}),
    "loop": lambda step: Step.loop_until("loop", step, lambda *_: True),
    "branch": lambda step: Step.branch_on("branch", lambda *_: 1, {1: step}),
    "map": lambda step: Step.map_over("map", step, items=[1]),
    "fallback": lambda step: Step("failing", failing, fallback=step),
}


async def failing(data):
    raise ValueError("no")


@pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])
@pytest.mark.parametrize("nest", NESTS.values(), ids=list(NESTS))
def test_each_agents_size_is_known_in_another_process(nest, make, tmp_path):
    """A small agent still fits after a large one; the large one does not fit again, and is not asked."""

    def flujo(last):
        small, large = agent(10), agent(100)
        first = Pipeline([make("small", small), make("large", large)], name="both")
        step = nest(first) >> ASK >> make("again", {"small": small, "large": large}[last])
        return Flujo(step, store=f"sqlite:///{tmp_path}/{last}.db", usage_limits=limit(125))

    for last, tokens in (("small", 120), ("large", 110)):
        paused = flujo(last).run("x")
        resumed = flujo(last)
        if last == "small":
            assert resumed.resume(paused.state_token, "yes").total_tokens == tokens
        else:
            assert spent(resumed.resume, paused.state_token, "yes") == tokens


def test_the_largest_of_several_requests_is_what_survives(tmp_path):
    """Not their average: two turns of 5 and 25 tokens leave an agent of 25."""

    def flujo():
        model = scripted_model(Billed(CallTool("look"), 5), Billed("done", 25), Billed("more", 15))
        asked = Agent(model, tools=[look])
        pipeline = Step("first", asked) >> ASK >> Step("second", asked)
        return Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db", usage_limits=limit(50))

    paused = flujo().run("x")
    assert spent(flujo().resume, paused.state_token, "yes") == 30


def look() -> str:
    """A tool."""
    return "seen"


def test_sizes_of_failed_attempts_survive_a_crash(tmp_path):
    """An attempt that was refused has taught its size; the next process does not pay to learn it again."""
    interrupts = iter([KeyboardInterrupt])

    def flujo():
        asked = agent(15)

        def refuse(text):
            return "no"

        async def stop(data, feedback=None):
            for error in interrupts:
                raise error
            return data

        pipeline = Step("ask", asked, validators=refuse, fallback=Step("stop", stop)) >> Step("second", asked)
        return Flujo(pipeline, store=f"sqlite:///{tmp_path}/runs.db", usage_limits=limit(20))

    with pytest.raises(KeyboardInterrupt):
        flujo().run("x", run_id="run")
    assert spent(flujo().resume, "run") == 15


SCRIPT = """
import sys
from pydantic_ai import Agent
from flujo_actors import Flujo, Step, Usage, UsageLimitExceededError, UsageLimits
from flujo_actors.testing import scripted_model
agent = Agent(scripted_model("fine", usage=Usage(input_tokens=15), forever=True))
pipeline = Step("one", agent) >> Step.human_in_the_loop("ask", "?") >> Step("two", agent)
flujo = Flujo(pipeline, store=sys.argv[1], usage_limits=UsageLimits(total_tokens_limit=20))
try:
    print((flujo.run("x") if len(sys.argv) == 2 else flujo.resume(sys.argv[2], "yes")).state_token)
except UsageLimitExceededError as error:
    print(error.result.total_tokens)
"""


@pytest.mark.slow
def test_sizes_are_known_in_a_process_of_its_own(tmp_path):
    """Really another one."""

    def said(*arguments):
        command = [sys.executable, "-c", SCRIPT, f"sqlite:///{tmp_path}/runs.db", *arguments]
        return preloaded.run(command, capture_output=True, text=True, check=True, timeout=240).stdout.strip()

    assert said(said()) == "15"
