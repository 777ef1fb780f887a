"""Every kind of structured step ends in a value of the shape that was declared."""

from __future__ import annotations

import datetime
import json
from typing import Literal

import attrs
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart
from said_by_models import (
    CITY_SCHEMA,
    LIMA,
    LIMA_JSON,
    NOISY,
    PROSE,
    Call,
    City,
    CityAttrs,
    CityData,
    CityDict,
    CityDictForAgents,
    Played,
    Size,
    both,
    noted,
    run,
    says,
    watch,
)

from flujo_actors import Flujo, Step, StructuredOutputError, Success

SCHEMAS = [City, CityData, CityAttrs, CityDict, CityDictForAgents, CITY_SCHEMA]
VALUES = [City(**LIMA), CityData(**LIMA), CityAttrs(**LIMA), LIMA, LIMA, LIMA]


# --- text for a schema --------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize(("schema", "value"), list(zip(SCHEMAS, VALUES, strict=True)))
@pytest.mark.parametrize("text", [LIMA_JSON, NOISY, LIMA_JSON.encode(), f"[{LIMA_JSON}]"])
async def test_text_becomes_a_value_of_the_declared_kind(schema, value, text):
    """A function's text is read by a step schema of every kind."""
    result = await run(says(text, schema=schema))
    assert result.success
    assert result.output == value
    assert type(result.output) is type(value)


@pytest.mark.trio
@pytest.mark.parametrize(("schema", "value"), list(zip(SCHEMAS, VALUES, strict=True)))
async def test_a_text_agents_answer_becomes_a_value(schema, value):
    """So is what a model agent without an output type writes, streamed or not."""
    for result in await both(Step("say", Agent(Played(NOISY).model), processing={"schema": schema})):
        assert result.output == value


@pytest.mark.trio
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (list[City], f"[{LIMA_JSON}]", [City(**LIMA)]),
        (list[CityDict], f"Here: [{LIMA_JSON},]", [LIMA]),
        (City | Size, LIMA_JSON, City(**LIMA)),
        (Size, '"LARGE"', Size.LARGE),
        (int, "The answer is 42.", 42),
        (float, "3.5", 3.5),
        (bool, "true", True),
        (str, '"quoted"', "quoted"),
        (dict[str, int], "{'a': 1,}", {"a": 1}),
    ],
)
async def test_other_types_serve_as_schemas_too(schema, text, value):
    """Lists, unions, enumerations, scalars and mappings."""
    assert (await run(says(text, schema=schema))).output == value


@pytest.mark.trio
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("given", VALUES[:4])
async def test_a_value_that_fits_is_taken_for_what_it_is(schema, given):
    """A function may return the value itself, as plain data or as any class with these fields."""
    result = await run(says(given, schema=schema))
    assert result.success
    if isinstance(schema, type) and schema not in (CityDict, CityDictForAgents):
        assert isinstance(result.output, schema)


@pytest.mark.trio
async def test_an_instance_of_the_declared_class_stays_the_same_object():
    """What needs no reading is not rebuilt."""
    lima = City(**LIMA)
    assert (await run(says(lima))).output is lima


@pytest.mark.trio
async def test_a_value_that_almost_fits_is_coerced_like_text():
    """A number as text in a returned dict is the number."""
    assert (await run(says({"name": "Lima", "people": "10"}))).output == City(**LIMA)


@attrs.frozen
class Trip:
    day: datetime.date
    cities: list[CityAttrs]


@pytest.mark.trio
async def test_nested_classes_and_dates_are_looked_at_as_json():
    """An attrs instance with others inside fits its own schema."""
    trip = Trip(datetime.date(2024, 2, 29), [CityAttrs(**LIMA)])
    assert (await run(says(trip, schema=Trip))).output is trip
    text = '{"day": "2024-02-29", "cities": [{"name": "Lima", "people": 10}]}'
    assert (await run(says(text, schema=Trip))).output == trip


@pytest.mark.trio
@pytest.mark.parametrize("given", [object(), {"name": object()}, [lambda: None], None, b"\xff\xfe", 1j])
async def test_what_is_no_json_data_fails_and_says_so(given):
    """An output that no schema can look at is a failure of the step, never a crash of the run."""
    result = await run(says(given), settings={"aros": {"fallback": {"max_stages": 0}}})
    assert not result.success
    assert "Structured output failed at stage 'deterministic'" in result.feedback


class Even(BaseModel):
    n: int

    def model_post_init(self, context):
        if self.n % 2:
            raise ValueError(f"{self.n} is odd")


@pytest.mark.trio
@pytest.mark.parametrize("given", [{"n": 3}, '{"n": 3}'])
async def test_what_the_class_itself_refuses_is_refused(given):
    """A check that no JSON Schema shows holds for values and for texts."""
    result = await run(says(given, schema=Even, enforcement="validate"))
    assert isinstance(result.step_history[-1].metadata, dict)
    assert "3 is odd" in result.feedback


@pytest.mark.trio
async def test_numbers_json_does_not_have_are_refused():
    """NaN fits no schema, as a value or as text."""
    for given in (float("nan"), "NaN", '{"x": NaN}'):
        result = await run(says(given, schema=float, enforcement="validate"))
        assert not result.success


# --- agents with an output type -----------------------------------------------------------------------------

KINDS = [
    (City, City(**LIMA)),
    (CityData, CityData(**LIMA)),
    (CityDictForAgents, LIMA),
    (ToolOutput(City, name="report"), City(**LIMA)),
    (NativeOutput(City), City(**LIMA)),
    (PromptedOutput(City), City(**LIMA)),
    (City | CityDictForAgents, City(**LIMA)),
    ([City, Even], City(**LIMA)),
]


def said(output_type, text):
    """A tool call where pydantic-ai asks for one, else text."""
    return text if isinstance(output_type, NativeOutput | PromptedOutput) else Call(text)


@pytest.mark.trio
@pytest.mark.parametrize(("output_type", "value"), KINDS)
@pytest.mark.parametrize("text", [LIMA_JSON, NOISY])
async def test_an_agents_output_type_is_its_steps_schema(output_type, value, text):
    """The schema is promoted by itself, whichever way the agent asks for it, and no second request is needed."""
    played = Played(said(output_type, text))
    for result in await both(Step("say", Agent(played.model, output_type=output_type))):
        assert result.output == value
    assert len(played.asked) == 2


@pytest.mark.trio
@pytest.mark.parametrize(("output_type", "value"), KINDS)
async def test_text_instead_of_a_tool_call_is_read_all_the_same(output_type, value):
    """A model that ignores the output tool has answered nevertheless."""
    for result in await both(Step("say", Agent(Played(NOISY).model, output_type=output_type))):
        assert result.output == value


@pytest.mark.trio
@pytest.mark.parametrize(
    ("output_type", "arguments", "value"),
    [
        (list[City], f'{{"response": [{LIMA_JSON},]}}', [City(**LIMA)]),
        (int, "{'response': 4}", 4),
        (Literal["a", "b"], "{response: 'b'}", "b"),
        (Size, "{response: 'small',}", Size.SMALL),
    ],
)
async def test_what_is_no_object_comes_out_of_its_envelope(output_type, arguments, value):
    """pydantic-ai asks for lists and scalars under one key; noisy arguments are read the same way."""
    agent = Agent(Played(Call(arguments)).model, output_type=output_type)
    for result in await both(Step("say", agent)):
        assert result.output == value


@pytest.mark.trio
async def test_a_tool_by_a_wrong_name_is_an_answer():
    """A call of a tool that nobody offered can only be meant as the answer."""
    agent = Agent(Played(Call(LIMA_JSON, name="json")).model, output_type=City)
    assert (await run(Step("say", agent))).output == City(**LIMA)


@pytest.mark.trio
async def test_a_call_of_a_real_tool_is_not_an_answer():
    """The arguments of a tool that failed are never read as the output."""

    def report(name: str, people: int) -> str:
        raise RuntimeError("out of order")

    agent = Agent(Played(Call(LIMA_JSON, name="report")).model, output_type=City, tools=[report])
    result = await run(Step("say", agent))
    assert not result.success
    assert "out of order" in result.feedback


@pytest.mark.trio
async def test_the_value_of_a_text_type_is_not_read_twice():
    """An agent whose output is one of some words has validated its word."""
    agent = Agent(Played(Call(json.dumps({"response": "true"}))).model, output_type=Literal["true", "false"])
    assert (await run(Step("say", agent))).output == "true"


# --- not structured -----------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("text", [LIMA_JSON, NOISY, PROSE, ""])
async def test_plain_text_steps_are_untouched(text):
    """Without a schema a text is a text, however much it looks like JSON."""

    async def say(data):
        return text

    assert (await run(Step("say", say))).output == text
    if text:
        assert (await run(Step("say", Agent(Played(text).model)))).output == text
        assert (await run(Step("say", Agent(Played(text).model, output_type=[City, str])))).output == text


@pytest.mark.trio
async def test_a_function_that_makes_the_output_is_the_agents_own_affair():
    """With an output function pydantic-ai alone decides what the output is."""

    def shout(name: str) -> str:
        return name.upper()

    agent = Agent(Played(Call('{"name": "lima"}')).model, output_type=shout)
    assert (await run(Step("say", agent))).output == "LIMA"


@pytest.mark.trio
async def test_results_that_agents_make_themselves_are_read_too():
    """A `StepResult` with a text in it is an answer like any other."""
    from flujo_actors import StepResult

    result = await run(says(Success(step_result=StepResult(name="x", output=NOISY, metadata={"by": "hand"}))))
    assert result.output == City(**LIMA)
    assert noted(result)["by"] == "hand"


@pytest.mark.trio
async def test_a_failure_names_the_stage_and_keeps_the_text():
    """Who gets no value learns where it ended, why, and what there was."""
    result = await run(says(PROSE), settings={"aros": {"fallback": {"degrade_to_string": False}}})
    assert result.status == "failed"
    assert "stage 'extractor'" in result.feedback
    (failed,) = result.step_history
    assert failed.output == PROSE
    chunks, _ = await watch(says(PROSE))
    assert chunks == []


@pytest.mark.trio
async def test_the_error_of_a_failure_holds_its_facts():
    """`StructuredOutputError` has the stage, the flaws and the hash of the schema."""
    flujo = Flujo(says('{"name": "Lima"}', enforcement="validate"))
    outcomes = [outcome async for outcome in flujo.run_async("x")]
    error = outcomes[-1].error
    assert isinstance(error, StructuredOutputError)
    assert error.stage == "deterministic"
    assert error.schema_hash
    assert any("people" in flaw.message for flaw in error.errors)


def test_the_shape_of_a_model_response_is_as_expected():
    """The tests' own assumption: a tool call with text arguments keeps them."""
    part = ToolCallPart("t", "{'a': 1}")
    assert ModelResponse(parts=[part]).parts[0].args == "{'a': 1}"
