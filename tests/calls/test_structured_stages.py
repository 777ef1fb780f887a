"""Repair and fallback: what is tried, in which order, and what it may see and cost."""

from __future__ import annotations

import attrs
import pytest
from pydantic import ValidationError
from pydantic_ai import Agent, ModelHTTPError, ModelRetry, NativeOutput, UnexpectedModelBehavior
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError
from pydantic_ai.models.test import TestModel
from said_by_models import (
    LIMA,
    LIMA_JSON,
    NOISY,
    PROSE,
    Call,
    City,
    CityData,
    Heard,
    Played,
    both,
    noted,
    run,
    says,
    watch,
)

from flujo_actors import Backoff, Step, UsageLimitExceededError, UsageLimits

LACKING = '{"name": "Lima"}'


def agent_step(played, output_type=City, **config):
    return Step(
        "say", Agent(played.model, output_type=output_type, system_prompt="You are SECRET.", retries=0), **config
    )


def aros(**settings):
    return {"settings": {"aros": settings}}


# --- the repairing call -------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_repairing_model_sees_the_output_the_schema_and_the_flaws_alone():
    """No prompt, no system prompt, no context, no deps and no history go along."""
    played = Played(Call('{"name": "Lima", "people": "many"}'), LIMA_JSON)
    step = agent_step(played, deps="DEPS", input=lambda previous, context: f"PROMPT {context.word}")
    result = await run(step, initial_context_data={"word": "CONTEXT"})
    assert result.output == City(**LIMA)
    (message,) = played.asked[1]
    (part,) = message.parts
    assert part.part_kind == "user-prompt"
    assert not message.instructions
    for shown in ('"many"', '"people"', '"minimum":0', "$.people"):
        assert shown in part.content
    for hidden in ("SECRET", "PROMPT", "CONTEXT", "DEPS", "Go on."):
        assert hidden not in part.content
    assert "PROMPT CONTEXT" in played.prompts[0]
    assert not played.infos[1].output_tools


@pytest.mark.trio
async def test_repairs_are_tried_as_often_as_the_settings_say():
    """Two by default, none at zero or when they are switched off; then the stricter retry comes."""
    for settings, repairs in (({}, 2), ({"max_attempts": 4}, 4), ({"max_attempts": 0}, 0), ({"enable_llm": False}, 0)):
        played = Played(*[Call(LACKING)] + [PROSE] * repairs, Call(LIMA_JSON))
        result = await run(agent_step(played), **aros(repair=settings))
        assert result.output == City(**LIMA)
        assert len(played.asked) == repairs + 2
        assert "Return only JSON. No extra text." in played.prompts[-1]
        assert "SECRET" in played.prompts[-1]


@pytest.mark.trio
async def test_usage_of_repairs_is_the_steps_usage():
    """Every call counts: the first, the repairs, the retry."""
    played = Played(*[Call(LACKING), PROSE, PROSE, Call(LIMA_JSON)] * 2, tokens=7)
    for result in await both(agent_step(played)):
        (step,) = result.step_history
        assert step.success
        assert step.usage.requests == 4
        assert step.token_counts == result.total_tokens > 3 * 14


@pytest.mark.trio
@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_a_usage_limit_passes_through_every_stage(calls):
    """Whichever call would pass the limit: the error reaches the caller, and nothing else is tried."""
    played = Played(Call(LACKING), PROSE, PROSE, PROSE, tokens=10)
    with pytest.raises(UsageLimitExceededError) as caught:
        await run(agent_step(played), usage_limits=UsageLimits(total_tokens_limit=calls * 20 - 5))
    assert 1 <= len(played.asked) <= calls
    assert caught.value.result.total_tokens == len(played.asked) * 20


@pytest.mark.trio
async def test_a_long_output_is_not_given_to_the_repairing_model():
    """Shown only in part, it would come back without the rest."""
    played = Played(f"{PROSE * 1000} {LACKING}", Call(LIMA_JSON))
    assert (await run(agent_step(played))).output == City(**LIMA)
    assert "Return only JSON. No extra text." in played.prompts[1]


@pytest.mark.trio
async def test_the_model_that_answered_is_the_one_that_repairs():
    """An agent under `override`, as in tests, never calls its real model for a repair."""
    real, played = Played(LIMA_JSON), Played(Call(LACKING), LIMA_JSON)
    agent = Agent(real.model, output_type=City)
    with agent.override(model=played.model):
        assert (await run(Step("say", agent))).output == City(**LIMA)
    assert real.asked == []


# --- the fallback stages ------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_stages_come_in_order():
    """Reading, repair, stricter retry, extractor, plain text."""
    heard, played = Heard(), Played(PROSE)
    result = await run(agent_step(played, processing={"degrade": True}), settings={"telemetry": {"sinks": [heard]}})
    assert [stage for kind, stage in heard.stages if kind == "aros.repair.failed"] == [
        "deterministic",
        "llm",
        "llm",
        "retry",
        "extractor",
    ]
    assert heard.stages[-1] == ("aros.fallback.stage", "degrade")
    assert len(played.asked) == 4
    assert result.output == PROSE
    assert noted(result)["degraded"] is True
    assert "no labelled values" in noted(result)["structured_output_error"]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("fallback", "stages"),
    [
        ({"max_stages": 0}, []),
        ({"max_stages": 1}, ["retry"]),
        ({"max_stages": 2}, ["retry", "extractor"]),
        ({"max_stages": 3}, ["retry", "extractor", "degrade"]),
        ({"enable_extractor": False}, ["retry", "degrade"]),
        ({"degrade_to_string": False}, ["retry", "extractor"]),
    ],
)
async def test_each_setting_leaves_out_its_stage(fallback, stages):
    """What is switched off is not tried; without the last one the step fails, and names where."""
    heard = Heard()
    config = {"aros": {"fallback": fallback}, "telemetry": {"sinks": [heard]}}
    result = await run(agent_step(Played(PROSE), processing={"degrade": True}), settings=config)
    assert [stage for kind, stage in heard.stages if kind == "aros.fallback.stage"] == stages
    assert result.success is ("degrade" in stages)
    if not result.success:
        last = {"retry": "strict_retry", "extractor": "extractor"}.get(stages[-1] if stages else "", "llm")
        assert f"at stage {last!r}" in result.feedback


@pytest.mark.trio
async def test_the_stricter_retry_tells_what_was_wrong():
    """The agent gets its own prompt, the instruction and the flaws."""
    played = Played(Call(LACKING), Call(LIMA_JSON))
    await run(agent_step(played), **aros(repair={"enable_llm": False}))
    assert "Go on." in played.prompts[1]
    assert '"people" is a required property' in played.prompts[1]


@pytest.mark.trio
async def test_a_plain_agent_is_asked_again_through_its_text_or_its_feedback():
    """The instruction reaches a function at the end of its text, or as `feedback` if it names that."""
    told = []

    async def by_text(data: str) -> str:
        told.append(data)
        return PROSE if len(told) == 1 else LIMA_JSON

    async def by_feedback(data: int, feedback: str | None = None) -> str:
        told.append(feedback)
        return PROSE if feedback is None else LIMA_JSON

    assert (await run(Step("say", by_text, processing={"schema": City}), "Hello")).output == City(**LIMA)
    assert told[0] == "Hello"
    assert told[1].startswith("Hello\n\nReturn only JSON. No extra text.")
    assert (await run(Step("say", by_feedback, processing={"schema": City}), 5)).output == City(**LIMA)
    assert told[2] is None
    assert told[3].startswith("Return only JSON. No extra text.")


@pytest.mark.trio
async def test_an_agent_that_could_not_be_told_is_not_called_again():
    """Without a text to add to and without `feedback`, a second call would be the same call."""
    calls = []

    async def count(data: int) -> str:
        calls.append(data)
        return PROSE

    result = await run(Step("say", count, processing={"schema": City}), 5)
    assert calls == [5]
    assert noted(result)["degraded"]


@pytest.mark.trio
async def test_the_extractor_finds_labelled_values():
    """What a text says in words is a value, if all of it is there."""
    result = await run(says("**Name:** Lima\n**People:** 10\n"))
    assert result.output == City(**LIMA)
    assert noted(result)["structured"]["stage"] in ("deterministic", "extractor")


@pytest.mark.trio
async def test_nothing_is_ever_invented():
    """A required value that nobody gave is missing, whatever the stage."""
    result = await run(says(LACKING), **aros(fallback={"degrade_to_string": False}))
    assert not result.success
    assert "people" in result.feedback


# --- retries of the step -------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_retry_of_the_step_tells_the_agent_why(autojump_clock):
    """After all stages the next attempt begins with the reason as feedback."""
    played = Played(*[Call(LACKING)] * 4, Call(LIMA_JSON))
    step = agent_step(played, max_retries=1, backoff=Backoff.none())
    result = await run(step, **aros(repair={"enable_llm": False}, fallback={"max_stages": 0}))
    assert result.status == "failed"
    assert "Your previous answer was not accepted: Structured output failed" in played.prompts[1]


# --- errors of the provider ---------------------------------------------------------------------------------


def refused(text):
    body = {"error": {"message": "Failed to generate JSON", "failed_generation": text}}
    return ModelHTTPError(400, "played", body)


@pytest.mark.trio
@pytest.mark.parametrize(
    "error",
    [
        UnexpectedModelBehavior("not what was asked for", body=NOISY),
        refused(NOISY),
        ModelHTTPError(422, "played", {"failed_generation": NOISY, "code": "json_validate_failed"}),
    ],
)
async def test_the_text_inside_an_error_is_read(error):
    """Errors about content bring their raw text along: no second call is needed."""
    heard, played = Heard(), Played(error)
    for result in await both(agent_step(played, NativeOutput(City)), settings={"telemetry": {"sinks": [heard]}}):
        assert result.output == City(**LIMA)
    assert len(played.asked) == 2
    tags = {event.provider_error for event in heard.events if event.kind == "aros.repair.success"}
    assert tags <= {"UnexpectedModelBehavior", "ModelHTTPError", type(error).__name__}


@pytest.mark.trio
@pytest.mark.parametrize(
    "error",
    [
        UnexpectedModelBehavior("nothing at all"),
        ContentFilterError("filtered", body='{"name": "Lima", "people": 10}'),
        ModelRetry("no"),
        ModelHTTPError(400, "played", {"message": "invalid JSON"}),
    ],
)
async def test_an_error_without_text_leads_to_the_stricter_retry(error):
    """There is nothing to repair, so the agent is asked again."""
    quito = Call('{"name": "Quito", "people": 3}')
    played = Played(error, quito, error, quito)
    for result in await both(agent_step(played)):
        assert result.output == City(name="Quito", people=3)
    assert "Return only JSON" in played.prompts[1]
    assert "Return only JSON" in played.prompts[3]


@pytest.mark.trio
async def test_a_connection_that_broke_before_the_answer_is_tried_again_with_the_same_words():
    """The model said nothing that could be wrong."""
    played = Played(ModelAPIError("played", "connection lost"), Call(LIMA_JSON))
    assert (await run(agent_step(played))).output == City(**LIMA)
    assert played.prompts[1] == played.prompts[0]


@pytest.mark.trio
@pytest.mark.parametrize("error", [ModelHTTPError(500, "m", "json"), ModelHTTPError(401, "m"), KeyError("x")])
async def test_other_errors_are_failures_at_once(error):
    """Where asking again does not help, nothing is asked again, and the error is the error."""
    played = Played(error)
    result = await run(agent_step(played))
    assert not result.success
    assert f"Agent execution failed with {type(error).__name__}" in result.feedback
    assert len(played.asked) == 1


@pytest.mark.trio
async def test_the_settings_can_send_refused_answers_straight_to_failure():
    """With `degrade_on_unexpected_behavior` off there is repair, but no fallback stage."""
    played = Played(UnexpectedModelBehavior("no", body=PROSE))
    result = await run(agent_step(played), **aros(degrade_on_unexpected_behavior=False))
    assert not result.success
    assert "at stage 'llm'" in result.feedback


@pytest.mark.trio
async def test_plain_agents_errors_about_content_are_read_too():
    """A function that calls a model by itself may raise what pydantic-ai or pydantic raise."""
    assert (await run(says(UnexpectedModelBehavior("x", body=NOISY)))).output == City(**LIMA)
    for given in (NOISY, '{"name": "Lima"}'):
        with pytest.raises(ValidationError) as caught:
            City.model_validate_json(given)
        result = await run(says(caught.value), **aros(fallback={"max_stages": 0}))
        assert result.success is (given == NOISY)


@pytest.mark.trio
async def test_a_failure_names_the_original_error():
    """What the provider said is in the feedback, and the cause of the error."""
    error = UnexpectedModelBehavior("the model was struck by lightning")
    for degrade, stage in ((None, "strict_retry"), (True, "degrade")):
        result = await run(agent_step(Played(error), processing={"degrade": degrade}))
        assert "struck by lightning" in result.feedback
        assert f"at stage {stage!r}" in result.feedback


# --- the agent's own validators -----------------------------------------------------------------------------


def judged(played, output_type=City):
    agent = Agent(played.model, output_type=output_type)

    @agent.output_validator
    def only_small(city: City) -> City:
        if city.people > 50:
            raise ModelRetry(f"{city.people} are too many")
        return city.model_copy(update={"name": city.name.upper()})

    return Step("say", agent)


@pytest.mark.trio
@pytest.mark.parametrize("output_type", [City, NativeOutput(City), [City, CityData]])
async def test_an_agents_validators_judge_repaired_values(output_type):
    """What was read from a noisy text passes the validators, which may change it, like any answer."""
    for result in await both(judged(Played("So: {name: 'lima', people: 10}"), output_type)):
        assert result.output == City(name="LIMA", people=10)


@pytest.mark.trio
async def test_what_an_agents_validator_refuses_is_not_accepted():
    """The reason goes to the repairing model and to the stricter retry."""
    too_many = '{"name": "lima", "people": 99}'
    played = Played(Call(too_many), too_many, too_many, Call('{"name": "lima", "people": 9}'))
    result = await run(judged(played))
    assert result.output == City(name="LIMA", people=9)
    assert all("99 are too many" in prompt for prompt in played.prompts[1:])


# --- cut off ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_cut_text_is_asked_for_again_and_never_repaired():
    """A model that repairs would have to invent what is missing."""
    played = Played('{"people": 10, "name": "Li', Call(LIMA_JSON))
    assert (await run(agent_step(played))).output == City(**LIMA)
    assert "cut off before its end" in played.prompts[1]
    assert "Go on." in played.prompts[1]


@pytest.mark.trio
async def test_a_cut_text_that_nobody_can_complete_is_marked():
    """Where there is no second answer, the value is what there is, and says so."""
    calls = []

    async def cut(data: int) -> str:
        calls.append(data)
        return '{"people": 10, "name": "Li'

    result = await run(Step("say", cut, processing={"schema": City}), 1)
    assert result.output == City(name="Li", people=10)
    assert noted(result)["structured"]["truncated"] is True


# --- the simplifier -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Report:
    city: CityData
    tags: list[str]


@pytest.mark.trio
async def test_after_repeated_failures_a_flat_object_is_asked_for():
    """The flat strings are mapped back and validated against the real schema."""
    flat = '{"city.name": "Lima", "city.people": "10", "tags": "- old\\n- large"}'
    played = Played(PROSE, PROSE, flat)
    step = Step("say", Agent(played.model), processing={"schema": Report})
    result = await run(step, **aros(schema_simplify=True, repair={"enable_llm": False}))
    assert "one flat JSON object whose values are all strings" in played.prompts[2]
    assert result.output == Report(city=CityData(**LIMA), tags=["old", "large"])


@pytest.mark.trio
async def test_an_agent_with_an_output_type_answers_the_flat_question_in_text():
    """Its output tool would ask for the nested shape again."""
    played = Played(PROSE, PROSE, '{"name": "Lima", "people": "10"}')
    result = await run(agent_step(played), **aros(schema_simplify=True, repair={"enable_llm": False}))
    assert result.output == City(**LIMA)
    assert played.infos[2].output_tools == []


@pytest.mark.trio
async def test_a_test_model_is_just_another_model():
    """pydantic-ai's own test double answers as the schema says."""
    result = await run(Step("say", Agent(TestModel(), output_type=City)))
    assert isinstance(result.output, City)
    chunks, result = await watch(Step("say", Agent(TestModel(), output_type=City)))
    assert isinstance(result.output, City)
    assert chunks
