"""Model agents as steps: stateless to the runner, told why they were refused, and quiet."""

from __future__ import annotations

import logging
from typing import TypedDict

import attrs
import pytest
from agent_hosts import two_hosts
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_actors import (
    DeclarationError,
    Flujo,
    InfiniteRedirectError,
    Processors,
    Redirect,
    Step,
    Usage,
    make_agent_async,
)
from flujo_actors._core.settings_model import Settings, TelemetrySettings
from flujo_actors.testing import (
    Billed,
    CallTool,
    MemorySink,
    Recorder,
    ScriptedAgent,
    run_on_mock_clock,
    scripted_model,
)


class Notes(BaseModel):
    words: list[str] = []


MAKERS = {
    "make_agent_async": lambda model, **config: make_agent_async(model, "Be brief.", **config),
    "bare agent": lambda model, **config: Agent(model, system_prompt="Be brief.", **config),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_maker
@two_hosts
def test_an_agent_gets_the_data_and_nothing_else(make, host):
    """Neither `context` nor `resources` reach it, whatever the run has; the data is its prompt."""
    model = scripted_model("fine")
    flujo = Flujo(Step("ask", make(model)), context_model=Notes, resources={"db": object()})
    result = host.result(flujo, "how are you?")
    assert result.output == "fine"
    assert model.prompts == ["how are you?"]
    assert result.final_context == Notes()
    assert result.step_history[0].metadata["model"] == "scripted"


@pytest.mark.parametrize(
    ("data", "prompt"),
    [({"a": [1]}, '{\n  "a": [\n    1\n  ]\n}'), (Notes(words=["x"]), '{\n  "words": [\n    "x"\n  ]\n}'), (7, "7")],
    ids=["dict", "model", "number"],
)
def test_data_that_is_no_text_is_the_prompt_as_json(data, prompt):
    """What the step before handed over can be anything."""
    model = scripted_model("ok")
    Flujo(Step("ask", make_agent_async(model))).run(data)
    assert model.prompts == [prompt]


def test_a_steps_deps_reach_tools_and_dynamic_prompts():
    """They are pydantic-ai's own deps, given as they are."""
    agent = Agent(scripted_model(CallTool("whose"), lambda messages: messages[-1].parts[0].content), deps_type=dict)

    @agent.tool
    def whose(ctx) -> str:
        return f"that of {ctx.deps['user']}"

    assert Flujo(Step("ask", agent, deps={"user": "Ada"})).run("x").output == "that of Ada"


def test_one_agent_may_stand_in_many_steps_and_runs():
    """An agent has no state that a run could change."""
    agent = make_agent_async(scripted_model(lambda messages: f"<{messages[0].parts[-1].content}>", forever=True))
    flujo = Flujo(Step("one", agent) >> Step("two", agent))
    assert [flujo.run(text).output for text in "ab"] == ["<<a>>", "<<b>>"]


def test_an_overridden_model_is_the_one_that_is_called_and_counted():
    """`Agent.override`, pydantic-ai's own way to test, works through a Flujo and is metered."""
    agent = make_agent_async("openai:gpt-4o", "Be brief.")
    model = scripted_model(Billed("from the script", 100, 10))
    with agent.override(model=model):
        result = Flujo(Step("ask", agent)).run("x")
    assert result.output == "from the script"
    assert result.step_history[0].usage == Usage(input_tokens=100, output_tokens=10, requests=1)
    with agent.override(model=TestModel(custom_output_text="canned")):
        assert Flujo(Step("ask", agent)).run("x").output == "canned"


def test_a_model_name_is_resolved_when_it_is_called(monkeypatch):
    """No key is needed to declare a pipeline; without one the step fails and says what is missing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    flujo = Flujo(Step("ask", make_agent_async("openai:gpt-4o")))
    assert "OPENAI_API_KEY" in flujo.run("x").feedback


# --- validators and redirects -------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [False, True])
@each_maker
def test_a_validators_reason_is_the_next_attempts_feedback(make, raises):
    """Returned or raised, the model reads it with the next prompt, and all attempts are counted."""

    def short(text):
        if len(text) > 5 and raises:
            raise ValueError("at most five letters")
        return True if len(text) <= 5 else "at most five letters"

    model = scripted_model("much too long", "fits")
    result = run_on_mock_clock(Flujo(Step("write", make(model), validators=short, max_retries=2)), "a word")
    assert (result.output, result.step_history[0].attempts) == ("fits", 2)
    assert result.total_tokens == 30
    assert "at most five letters" in model.prompts[1]
    assert model.prompts[1].startswith("a word\n\n")


def test_a_refusal_that_stays_is_the_steps_feedback():
    """When the retries are used up, the reason is in the result."""
    model = scripted_model("no", forever=True)
    result = run_on_mock_clock(
        Flujo(Step("write", make_agent_async(model), validators=lambda text: "say yes", max_retries=1)), "x"
    )
    assert result.step_history[0].feedback == "Validation failed: say yes"
    assert result.step_history[0].output == "no"


def test_a_redirect_gives_the_work_to_another_agent():
    """It gets the same data and the reason, at once and without using up a retry."""
    expert_model = scripted_model("the expert's answer")
    expert = make_agent_async(expert_model)

    def known(text):
        return Redirect(to=expert, feedback="the novice does not know") if "?" in text else None

    novice = make_agent_async(scripted_model("hm?"))
    result = Flujo(Step("ask", novice, validators=known)).run("why")
    assert (result.output, result.step_history[0].attempts, result.total_tokens) == ("the expert's answer", 2, 30)
    assert "the novice does not know" in expert_model.prompts[0]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_of_redirects_is_an_error(length):
    """Coming back to an agent that had its turn stops the run, with what was used until then."""
    agents = [make_agent_async(scripted_model("x", forever=True)) for _ in range(length)]
    turn = iter([*agents[1:], agents[0]])
    flujo = Flujo(Step("ask", agents[0], validators=lambda text: Redirect(to=next(turn)), max_retries=3))
    with pytest.raises(InfiniteRedirectError, match="'ask'") as caught:
        flujo.run("x")
    assert caught.value.result.total_tokens == 15 * length
    assert caught.value.result.status == "failed"


def test_a_circle_of_redirects_stops_the_run_from_any_depth():
    """Neither a fallback nor a patient parallel step turns it into a result."""
    agent = make_agent_async(scripted_model("x", forever=True))
    circular = Step(
        "ask", agent, validators=lambda text: Redirect(to=agent), fallback=Step("instead", ScriptedAgent("y"))
    )
    branches = {"a": circular, "b": Step("fine", ScriptedAgent("z"))}
    with pytest.raises(InfiniteRedirectError):
        Flujo(Step.parallel("both", branches, on_branch_failure="ignore")).run("x")


def test_a_redirect_to_what_is_no_agent_is_a_failure():
    """A validator's mistake is not a crash of the run."""
    flujo = Flujo(Step("ask", ScriptedAgent("x"), validators=lambda text: Redirect(to=42)))
    result = flujo.run("x")
    assert not result.success
    assert "42" in result.feedback or "int" in result.feedback


def test_processors_stand_before_and_after_the_agent():
    """The model gets what the first make of the data, validators see what the second make of the output."""
    model = scripted_model("  answer  ")
    seen = []
    step = Step(
        "ask",
        make_agent_async(model),
        processors=Processors(before=(str.strip, str.upper), after=str.strip),
        validators=seen.append,
    )
    assert Flujo(step).run("  question ").output == "answer"
    assert model.prompts == ["QUESTION"]
    assert seen == ["answer"]


def test_processors_may_be_async_and_see_the_context():
    """They are called by their signature, like agents."""

    async def remember(text, *, context):
        context.words.append(text)
        return text

    step = Step("ask", make_agent_async(scripted_model("yes")), processors={"before": remember, "after": remember})
    assert Flujo(step, context_model=Notes).run("why").final_context == Notes(words=["why", "yes"])


# --- what is said, and what is not --------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_an_answer_without_tokens_is_reported(watched, caplog):
    """It counts as a request, the log and the result say that usage is incomplete, telemetry marks it."""
    sink = MemorySink()
    flujo = Flujo(
        Step("ask", make_agent_async(scripted_model(Billed("free?", 0, 0)))),
        settings=Settings(telemetry=TelemetrySettings(sinks=[sink])),
    )
    result = run_on_mock_clock(flujo, "x", recorder=Recorder() if watched else None)
    step = result.step_history[0]
    assert result.success
    assert step.usage == Usage(requests=1)
    assert step.metadata["unmeasured_responses"] == 1
    assert "reported no tokens" in caplog.text
    assert [event.zero_tokens for event in sink.of("agent.usage")] == [True]


def test_plain_callables_make_no_noise(caplog):
    """Functions have no model, and nobody wonders about it; neither does a metered agent."""
    caplog.set_level(logging.DEBUG)
    sink = MemorySink()
    pipeline = (
        Step("plain", lambda text: text)
        >> Step("object", ScriptedAgent("x"))
        >> Step("model", make_agent_async(scripted_model("y")))
    )
    Flujo(pipeline, settings=Settings(telemetry=TelemetrySettings(sinks=[sink]))).run("x")
    ours = [record for record in caplog.records if record.name.startswith("flujo_actors")]
    assert ours == []
    assert not [
        event for event in sink.events if event.kind.startswith(("model", "agent")) and event.step_name != "model"
    ]


def test_an_agent_with_its_own_retries_counts_every_request():
    """pydantic-ai's own corrections are turns of one attempt."""

    class City(BaseModel):
        people: int

    model = scripted_model({"people": "many"}, {"people": 10})
    flujo = Flujo(
        Step("ask", make_agent_async(model, output_type=City, retries=2)), settings={"aros": {"enabled": False}}
    )
    result = flujo.run("x")
    assert result.output == City(people=10)
    assert (result.step_history[0].attempts, result.step_history[0].usage.requests) == (1, 2)


def test_nested_agents_that_share_usage_are_counted_once():
    """A tool that calls an agent with `usage=ctx.usage` adds to the step, tokens and requests."""
    helper = Agent(scripted_model(Billed("found", 30, 3), name="inner"))
    agent = Agent(scripted_model(Billed(CallTool("delegate"), 100, 10), Billed("done", 200, 20)))

    @agent.tool
    async def delegate(ctx) -> str:
        return (await helper.run("look", usage=ctx.usage)).output

    result = Flujo(Step("ask", agent)).run("x")
    used = result.step_history[0].usage
    assert (used.input_tokens, used.output_tokens, used.requests, used.tool_calls) == (330, 33, 3, 1)
    assert result.total_tokens == 363


class Town(TypedDict):
    """A dict of the standard library's kind."""

    name: str


def test_an_agent_may_promise_any_typed_dict():
    """Pydantic knows those of `typing` only from Python 3.12 on."""
    agent = make_agent_async(scripted_model('{"name": "Lima"}'), "Be brief.", Town)
    assert Flujo(Step("ask", agent)).run("?").output == {"name": "Lima"}


@pytest.mark.parametrize("output_type", [attrs.make_class("Place", ["name"]), 42])
def test_what_no_model_can_be_asked_for_is_told_in_one_sentence(output_type):
    """With what to write instead."""
    with pytest.raises(DeclarationError, match=r'give the step processing=\{"schema": …\}') as refused:
        make_agent_async(scripted_model("?"), "Be brief.", output_type)
    assert "\n" not in str(refused.value)
