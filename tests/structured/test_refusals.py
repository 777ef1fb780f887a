"""Reading never raises anything but the documented error, whatever the schema's class does."""

import dataclasses
import datetime
import decimal
from typing import Any, TypedDict

import attrs
import pytest
from pydantic import BaseModel, field_validator

from flujo_actors.errors import DeclarationError, StructuredOutputError, UsageLimitExceededError
from flujo_actors.structured import compile_schema, extract_from_text, parse_and_validate, simplify


class Release(BaseModel):
    version: str
    score: float | None = None


class Mute(Exception):
    """An error that cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Raising(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look(cls, name: str) -> str:
        raise ERRORS[name]


@attrs.frozen
class RaisingAttrs:
    name: str = attrs.field()

    @name.validator
    def _look(self, attribute: Any, name: str) -> None:
        raise ERRORS[name]


@dataclasses.dataclass
class RaisingDataclass:
    name: str

    def __post_init__(self) -> None:
        raise ERRORS[self.name]


ERRORS: dict[str, Exception] = {
    "attribute": AttributeError("no such thing"),
    "zero": ZeroDivisionError("nothing to divide by"),
    "recursion": RecursionError("too deep"),
    "group": ExceptionGroup("many", [OSError("disk")]),
    "mute": Mute(),
}


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1.10, "score": 0.5}',
        '{"result": {"version": 1.10, "score": 0.5}}',
        '[{"version": 1.10, "score": 0.5}]',
        '{"version": 1.10, "score": "0.5"}',
    ],
)
def test_a_number_for_a_text_keeps_its_spelling_beside_an_optional_number(text: str) -> None:
    """`1.10` is a version, whatever the other members are."""
    assert parse_and_validate(text, Release) == Release(version="1.10", score=0.5)
    assert extract_from_text(text, Release) == Release(version="1.10", score=0.5)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("tomorrow", datetime.date),
        ("about 5 dollars", decimal.Decimal),
        ("soon", datetime.timedelta),
        ("neither", {"enum": [[1], {"a": 1}, "one"]}),
        ("1", {"enum": [[1], {"a": 1}]}),
        ("anything", {"const": {"a": [1]}}),
        ("anything", {"const": ""}),
        ('{"version": 1.5, "score": NaN}', Release),
    ],
)
def test_what_a_schema_cannot_take_is_refused(text: str, schema: Any) -> None:
    """A single value of a class, a list of containers, a number that is none: the error is the documented one."""
    with pytest.raises(StructuredOutputError):
        parse_and_validate(text, schema)
    with pytest.raises(StructuredOutputError):
        extract_from_text(text, schema)


@pytest.mark.parametrize("schema", [Raising, RaisingAttrs, RaisingDataclass, list[Raising]])
@pytest.mark.parametrize("name", ERRORS)
def test_whatever_a_class_raises_is_a_refusal_that_tells_it(schema: Any, name: str) -> None:
    """The error of the user's code is in the message, and the stage is that of validation."""
    with pytest.raises(StructuredOutputError) as caught:
        parse_and_validate(f'{{"name": "{name}"}}', schema)
    assert caught.value.stage == "validate"
    told = {"group": "OSError: disk", "mute": "Mute"}.get(name, type(ERRORS[name]).__name__)
    assert told in str(caught.value)


def test_the_extractor_and_the_flat_schema_refuse_what_the_class_refuses() -> None:
    """Their stages are named, too."""
    with pytest.raises(StructuredOutputError) as caught:
        extract_from_text("Name: zero", Raising)
    assert caught.value.stage == "extract"
    with pytest.raises(StructuredOutputError) as caught:
        simplify(Raising).read('{"name": "attribute"}')
    assert caught.value.stage == "simplify"


@pytest.mark.parametrize("schema", [Raising, RaisingAttrs, RaisingDataclass])
def test_a_control_error_passes_the_guard(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that stops a run stops it from within a validator, too."""
    monkeypatch.setitem(ERRORS, "stop", UsageLimitExceededError("enough"))
    with pytest.raises(UsageLimitExceededError):
        parse_and_validate('{"name": "stop"}', schema)


class Unknown:
    """A class that nobody can make a schema of."""


class WithUnknown(TypedDict):
    thing: Unknown


@attrs.frozen
class Forward:
    thing: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Boom:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("boom")


@pytest.mark.parametrize("schema", [WithUnknown, Forward, Boom, Unknown, {"type": object()}, {"title": "\ud800"}, 5])
def test_what_cannot_serve_as_a_schema_is_a_declaration_error(schema: Any) -> None:
    """It is the program that is wrong, not the text."""
    with pytest.raises(DeclarationError):
        compile_schema(schema)
