"""Whatever an answer's text or its class does, the run ends in a result: reading never ends one with an exception."""

from __future__ import annotations

import datetime
import decimal

import pytest
from pydantic import BaseModel, field_validator
from pydantic_ai import Agent
from said_by_models import Played, run

from flujo_actors import Flujo, Step, UsageLimitExceededError


class Release(BaseModel):
    version: str
    score: float | None = None


class Broken(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look(cls, name: str) -> str:
        raise AttributeError("a defect of the user's own")


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def refuse(cls, name: str) -> str:
        raise ValueError("no name is good enough")


class Stopping(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def stop(cls, name: str) -> str:
        raise UsageLimitExceededError("enough")


REFUSED = [
    ("tomorrow", datetime.date),
    ("about 5 dollars", decimal.Decimal),
    ("soon", datetime.timedelta),
    ('{"name": "x"}', Broken),
    ('{"name": "x"}', Picky),
    ('{"name": ', Broken),
    ('{"version": 1.5, "score": NaN}', Release),
]
STRICT = {"aros": {"fallback": {"degrade_to_string": False}, "schema_simplify": True}}


def says(text: str):
    async def say(question: str, *, feedback: str | None = None) -> str:
        return text

    return say


@pytest.mark.trio
@pytest.mark.parametrize(("text", "schema"), REFUSED)
async def test_a_text_that_its_class_refuses_is_a_failure_that_names_the_stage(text, schema):
    """A function's answer goes through every stage, the flat schema among them, and fails as a step fails."""
    result = await run(Step("say", says(text), processing={"schema": schema}), settings=STRICT)
    assert result.status == "failed"
    assert "Structured output failed at stage " in result.feedback


@pytest.mark.trio
@pytest.mark.parametrize(("text", "schema"), REFUSED)
async def test_an_agents_answer_that_its_type_refuses_is_a_failure_too(text, schema):
    """The type of an agent's output is no other than a step's schema."""
    result = await run(Step("say", Agent(Played(text).model, output_type=schema)), settings=STRICT)
    assert result.status == "failed"


@pytest.mark.trio
@pytest.mark.parametrize("schema", [{"enum": [[1], {"a": 1}, "one"]}, {"const": [1]}])
async def test_a_word_for_a_list_of_containers_is_a_failure(schema):
    """Members that are lists or objects are compared, not hashed."""
    result = await run(Step("say", says("neither"), processing={"schema": schema}), settings=STRICT)
    assert result.status == "failed"


@pytest.mark.trio
async def test_a_text_field_beside_an_optional_number_is_read():
    """The spelling of a number is kept where its schema wants a text."""
    step = Step("say", says('{"version": 1.10, "score": 0.5}'), processing={"schema": Release})
    assert (await run(step)).output == Release(version="1.10", score=0.5)


class Secretive:
    """An output whose attributes cannot be looked at."""

    @property
    def __dict__(self):
        raise RuntimeError("nothing to see")


def test_a_returned_value_that_cannot_be_looked_at_is_a_failure():
    """A value is read as the JSON it is; one that has none is told as such."""
    result = Flujo(Step("say", lambda question: Secretive(), processing={"schema": Release}), settings=STRICT).run("?")
    assert result.status == "failed"


def test_a_control_error_of_a_validator_reaches_the_caller():
    """What stops a run stops it from within the reading of an answer."""
    with pytest.raises(UsageLimitExceededError):
        Flujo(Step("say", says('{"name": "x"}'), processing={"schema": Stopping})).run("?")
