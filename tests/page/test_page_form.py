"""From the schema of a question to the form that asks it."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from flujo_actors.page import answer_form


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Address(BaseModel):
    street: str


class Order(BaseModel):
    name: str
    pieces: int = 1
    express: bool = False
    color: Color
    until: dt.date | None = None
    tags: list[str] = []


class Nested(BaseModel):
    address: Address


def form_of(kind: Any) -> dict[str, Any]:
    return answer_form(TypeAdapter(kind).json_schema())


def kinds(form: dict[str, Any]) -> dict[str, str]:
    return {field["name"]: field["kind"] for field in form["fields"]}


def test_a_yes_or_no_is_two_buttons():
    """One click answers."""
    assert [each["value"] for each in form_of(bool)["buttons"]] == [True, False]


def test_up_to_four_options_are_buttons_and_more_are_a_choice():
    """Thirty buttons would be a wall."""
    assert [each["label"] for each in form_of(Color)["buttons"]] == ["red", "green", "blue"]
    many = form_of(enum.Enum("Many", {f"n{i}": f"n{i}" for i in range(30)}))
    assert many["buttons"] is None
    assert [(field["kind"], len(field["options"])) for field in many["fields"]] == [("choice", 30)]


def test_a_number_keeps_its_bounds():
    """The field refuses what the schema would."""
    (field,) = form_of(Annotated[int, Field(ge=1, le=9)])["fields"]
    assert (field["kind"], field["min"], field["max"], field["required"]) == ("integer", 1, 9, True)


def test_what_may_be_nothing_is_not_required():
    """An empty field is `null` then."""
    form = form_of(dt.date | None)
    (field,) = form["fields"]
    assert (form["whole"], field["kind"], field["nullable"], field["required"]) == (True, "date", True, False)


def test_a_flat_model_is_a_field_for_each_of_its_own():
    """With the kinds, defaults and options of its schema."""
    form = form_of(Order)
    assert form["whole"] is False
    assert kinds(form) == {
        "name": "text",
        "pieces": "integer",
        "express": "boolean",
        "color": "choice",
        "until": "date",
        "tags": "list",
    }
    assert {field["name"]: field["required"] for field in form["fields"]}["name"] is True


class Claim(BaseModel):
    amount: Decimal
    least: Decimal | None = None
    address: Address
    second: Address | None = None
    extras: dict[str, int] = {}
    itself: Claim | None = None


def named(fields: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in fields}


def test_one_value_that_no_field_can_hold_leaves_the_others_their_fields():
    """Decimals are texts, nested objects have fields of their own, and only the rest is JSON."""
    form = form_of(Claim)
    assert form["whole"] is False
    fields = named(form["fields"])
    assert [fields[name]["kind"] for name in ("amount", "least", "extras")] == ["decimal", "decimal", "json"]
    address, second = fields["address"], fields["second"]
    assert (address["kind"], address["required"], second["kind"], second["required"]) == (
        "object",
        True,
        "object",
        False,
    )
    assert named(address["fields"])["street"]["required"] is True
    assert second["nullable"] is True


def test_a_model_that_contains_itself_ends_in_a_box_for_json():
    """A few levels are fields."""
    field = named(form_of(Claim)["fields"])["itself"]
    kinds_inside = []
    while field["kind"] == "object":
        kinds_inside.append(field["kind"])
        field = named(field["fields"])["itself"]
    assert (kinds_inside, field["kind"]) == (["object"] * 3, "json")


def test_a_list_has_a_field_for_its_rows():
    """Rows of an object have its fields, rows of a value one."""
    (rows,) = form_of(list[Address])["fields"]
    assert (rows["kind"], rows["item"]["kind"], list(named(rows["item"]["fields"]))) == ("list", "object", ["street"])
    (flags,) = form_of(list[bool])["fields"]
    assert (flags["kind"], flags["item"]["kind"]) == ("list", "boolean")


class Cash(BaseModel):
    cents: int


class Transfer(BaseModel):
    account: str


def test_a_union_has_a_field_for_each_alternative():
    """Each is named by its title or type."""
    (value,) = form_of(int | str)["fields"]
    assert (value["kind"], [each["kind"] for each in value["choices"]]) == ("union", ["integer", "text"])
    (payment,) = form_of(Cash | Transfer)["fields"]
    assert [(each["label"], each["kind"]) for each in payment["choices"]] == [
        ("Cash", "object"),
        ("Transfer", "object"),
    ]


@pytest.mark.parametrize("kind", [dict[str, int], tuple[int, str]])
def test_a_value_without_fields_is_a_box_for_json(kind: Any):
    """With the schema next to it."""
    form = form_of(kind)
    assert (form["whole"], kinds(form)) == (True, {"answer": "json"})
    assert form["schema"]


def test_a_question_without_a_schema_takes_a_text():
    """Whoever asks without saying more, asks a person."""
    assert kinds(answer_form(None)) == {"answer": "long"}


def test_references_in_a_circle_end_in_a_box_for_json():
    """The form comes whatever the schema says."""
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert kinds(answer_form(circle)) == {"answer": "json"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "anyOf", "oneOf", "properties", "items", "$ref", "const", "required", "format"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "enum", "anyOf", "oneOf", "properties", "items", "$ref"]), json_values))
def test_no_schema_is_too_strange_for_a_form(schema: dict[str, Any]):
    """A form is made of anything that calls itself a schema."""
    form = answer_form(schema)
    assert form["buttons"] is not None or form["fields"]
