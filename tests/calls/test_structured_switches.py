"""The switches of a step: structured output, enforcement, schema; and the settings they stand under."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from said_by_models import CITY_SCHEMA, LIMA, LIMA_JSON, NOISY, PROSE, Call, City, CityAttrs, Played, noted, run, says

from flujo_actors import DeclarationError, Settings, Step, load_settings, make_agent_async
from flujo_actors._dsl.output_options import Processing


@pytest.mark.trio
@pytest.mark.parametrize("switches", [{"structured_output": "off"}, {"enforcement": "off"}])
@pytest.mark.parametrize("text", [LIMA_JSON, NOISY, PROSE])
async def test_a_step_can_opt_out(switches, text):
    """Switched off, the output is what the agent returned."""
    result = await run(says(text, **switches))
    assert result.output == text
    assert noted(result) == {}


@pytest.mark.trio
async def test_a_step_can_opt_out_of_its_agents_schema():
    """Then pydantic-ai alone sees to the output, with its own retries."""
    played = Played(Call("{'name': 'Lima'}"), Call(LIMA_JSON))
    step = Step("say", Agent(played.model, output_type=City, retries=1), processing={"structured_output": "off"})
    assert (await run(step)).output == City(**LIMA)
    assert len(played.asked) == 2
    assert "Return only JSON" not in played.prompts[1]


@pytest.mark.trio
async def test_all_of_it_can_be_switched_off():
    """`aros.enabled` is the switch for everybody."""
    assert (await run(says(NOISY), settings={"aros": {"enabled": False}})).output == NOISY


@pytest.mark.trio
async def test_validate_reads_and_mends_but_never_asks_again():
    """With `validate` a noisy text is read, and what cannot be read fails at once."""
    assert (await run(says(NOISY, enforcement="validate"))).output == City(**LIMA)
    played = Played(PROSE)
    step = Step("say", Agent(played.model, output_type=City), processing={"enforcement": "validate"})
    result = await run(step)
    assert not result.success
    assert "at stage 'deterministic'" in result.feedback
    assert len(played.asked) == 1


@pytest.mark.trio
@pytest.mark.parametrize("schema", [City, CITY_SCHEMA, CityAttrs])
async def test_openai_json_asks_the_provider_for_the_schema(schema):
    """A text agent's provider is told the step's schema, and the answer is of the schema's kind."""
    played = Played(LIMA_JSON)
    step = Step("say", Agent(played.model), processing={"schema": schema, "structured_output": "openai_json"})
    result = await run(step)
    assert result.output == (LIMA if isinstance(schema, dict) else schema(**LIMA))
    parameters = played.infos[0].model_request_parameters
    assert parameters.output_mode == "native"
    assert set(parameters.output_object.json_schema["properties"]) == {"name", "people"}


@pytest.mark.trio
async def test_openai_json_asks_for_an_agents_own_schema_too():
    """An agent that would use a tool is asked for native JSON instead."""
    played = Played(LIMA_JSON)
    step = Step("say", Agent(played.model, output_type=City), processing={"structured_output": "openai_json"})
    assert (await run(step)).output == City(**LIMA)
    assert played.infos[0].output_tools == []


@pytest.mark.trio
async def test_openai_json_leaves_alone_what_cannot_be_changed():
    """An agent with validators keeps its own way of answering: pydantic-ai takes no other there."""
    played = Played(Call(LIMA_JSON))
    agent = Agent(played.model, output_type=City)

    @agent.output_validator
    def accept(city: City) -> City:
        return city

    step = Step("say", agent, processing={"structured_output": "openai_json"})
    assert (await run(step)).output == City(**LIMA)
    assert len(played.infos[0].output_tools) == 1


@pytest.mark.trio
async def test_openai_json_without_a_schema_is_any_json():
    """Where nobody gave a schema, an object or a list is wanted."""
    step = says("So: {a: 1}", schema=None, structured_output="openai_json")
    assert (await run(step)).output == {"a": 1}


@pytest.mark.trio
async def test_a_steps_schema_goes_before_its_agents():
    """The step's own word counts: what the agent returns must fit it."""
    agent = Agent(Played(Call(LIMA_JSON)).model, output_type=City)
    result = await run(Step("say", agent, processing={"schema": CityAttrs}))
    assert result.output == CityAttrs(**LIMA)


@pytest.mark.trio
async def test_an_empty_schema_is_a_schema():
    """`{}` accepts any JSON, so the text is read as JSON."""
    assert (await run(says("[1, 2]", schema={}))).output == [1, 2]


def test_wrong_switches_are_refused_when_the_step_is_declared():
    """A typo in a switch, its value or the schema is found before anything runs."""
    with pytest.raises(DeclarationError, match="did you mean 'structured_output'"):
        says("x", structured_outputs="auto")
    with pytest.raises(DeclarationError, match="off, validate, repair"):
        says("x", enforcement="strict")
    with pytest.raises(DeclarationError, match="off, auto, openai_json"):
        says("x", structured_output="json")
    with pytest.raises(DeclarationError, match="schema"):
        says("x", schema={"type": "strange"})
    with pytest.raises(DeclarationError, match="schema"):
        says("x", schema=object())
    with pytest.raises(DeclarationError, match="must be Processing"):
        Step("say", print, processing="auto")


def test_switches_have_defaults_and_a_value():
    """A dict and a `Processing` say the same."""
    assert says("x").processing == Processing(schema=City)
    assert Processing().enforcement == "repair"
    assert Step("say", print, mergeable_output=True).mergeable_output


def test_an_agent_is_declared_without_touching_its_model():
    """No key is needed to declare a structured step."""
    step = Step("say", make_agent_async("openai:gpt-4o", "x", City), processing={"structured_output": "openai_json"})
    assert step.processing.schema is None


def test_every_setting_has_a_place_in_file_and_environment(tmp_path):
    """The keys of the document are all there; unknown ones are refused with a suggestion."""
    file = tmp_path / "flujo.toml"
    file.write_text("[aros.repair]\nmax_attempts = 5\n[aros.fallback]\nenable_extractor = false\n")
    environ = {"FLUJO_AROS__STREAMING__AGGREGATE_STRUCTURED": "off", "FLUJO_AROS__TELEMETRY__VERBOSE": "true"}
    aros = load_settings(environ=environ, file=file).aros
    assert aros.repair.max_attempts == 5
    assert not aros.fallback.enable_extractor
    assert not aros.streaming.aggregate_structured
    assert aros.telemetry.verbose
    with pytest.warns(UserWarning, match="did you mean FLUJO_AROS__REPAIR__MAX_ATTEMPTS"):
        load_settings(environ={"FLUJO_AROS__REPAIR__MAX_ATTEMPT": "1"}, file=file)


def test_the_defaults_are_those_of_the_document():
    """What the settings are when nobody says anything."""
    aros = Settings().aros
    assert (aros.enabled, aros.degrade_on_unexpected_behavior, aros.schema_simplify) == (True, True, False)
    assert (aros.repair.max_attempts, aros.repair.enable_llm) == (2, True)
    assert (aros.fallback.max_stages, aros.fallback.enable_extractor, aros.fallback.degrade_to_string) == (
        3,
        True,
        True,
    )
    assert (aros.streaming.aggregate_structured, aros.telemetry.verbose) == (True, False)
