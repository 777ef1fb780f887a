"""The built-in steps, and finding values in prose."""

import dataclasses
from typing import Any

import attrs
import pydantic
import pytest

from flujo_actors import Flujo, Step
from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import BUILTINS, ensure_object, extract_from_text, wrap_dict

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
    },
    "required": ["full_name", "age"],
    "additionalProperties": False,
}


class Model(pydantic.BaseModel):
    a: int


@attrs.frozen
class Thing:
    a: int


@dataclasses.dataclass
class Record:
    a: int


def test_the_registry_is_read_only() -> None:
    """Built-ins are known by name and nobody can replace one."""
    assert set(BUILTINS) == {"passthrough", "stringify", "wrap_dict", "ensure_object", "extract_from_text"}
    with pytest.raises(TypeError):
        BUILTINS["wrap_dict"] = len  # type: ignore[index]


def test_passthrough_and_stringify_hand_on_what_they_get() -> None:
    """As it is, and as a text: JSON, unless it is one already."""
    thing = object()
    assert BUILTINS["passthrough"](thing) is thing
    assert [BUILTINS["stringify"](each) for each in ("a", None, True, {"a": "ö"}, Model(a=1))] == [
        *("a", "null", "true", '{"a": "ö"}', '{"a": 1}'),
    ]
    assert "object" in BUILTINS["stringify"](thing)


def test_wrap_dict_puts_a_value_under_its_key() -> None:
    """The key is chosen when the pipeline is declared."""
    assert wrap_dict("summary")("text") == {"summary": "text"}
    assert wrap_dict("a") == wrap_dict("a")


@pytest.mark.parametrize("value", [Model(a=1), Thing(1), Record(1), {"a": 1}, '{"a": 1}'])
def test_ensure_object_gives_the_fields(value: Any) -> None:
    """Whatever has fields becomes a dict of them."""
    assert ensure_object(value) == {"a": 1}


@pytest.mark.parametrize(("value", "plain"), [("text", "text"), ([1, 2], [1, 2]), (5, 5), (None, None)])
def test_ensure_object_wraps_what_has_no_fields(value: Any, plain: Any) -> None:
    """Everything else stands under one key."""
    assert ensure_object(value) == {"value": plain}


class Plain:
    def __init__(self) -> None:
        self.a = 1
        self._hidden = 2


class Broken:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not look")

    def __str__(self) -> str:
        raise RuntimeError("nor read")


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Plain(), {"a": 1}),
        (ValueError("e"), {"type": "ValueError", "message": "e"}),
        ({"inside": [Plain(), Thing(2), Model(a=3)]}, {"inside": [{"a": 1}, {"a": 2}, {"a": 3}]}),
        (b"\xff", {"value": "b'\\xff'"}),
        (CIRCLE, {"value": "[[...]]"}),
        (Plain, {"value": str(Plain)}),
        ({1, 2}, {"value": [1, 2]}),
        ((n for n in range(2)), {"value": [0, 1]}),
    ],
)
def test_ensure_object_takes_anything(value: Any, plain: Any) -> None:
    """There is an object for every value, also for one that cannot be looked at."""
    assert ensure_object(value) == plain
    assert ensure_object(Broken()) == {"value": "<Broken>"}


def test_wrap_dict_is_a_step_without_being_called() -> None:
    """The call that names the key may be left out, in a step and in a chain."""
    assert Flujo(Step("wrap", wrap_dict)).run("x").output == {"value": "x"}
    assert Flujo(Step("same", lambda x: x) >> Step("wrap", wrap_dict("city"))).run("x").output == {"city": "x"}
    assert wrap_dict()("x") == {"value": "x"}


@pytest.mark.parametrize(
    "text",
    [
        'The person is {"full_name": "Bob Ray", "age": 5}.',
        "Full name: Bob Ray\nAge: 5",
        "- **Full Name**: Bob Ray\n- **Age**: 5\n",
        "1. full_name = Bob Ray\n2. age = 5",
        "| Field | Value |\n|---|---|\n| full name | Bob Ray |\n| age | 5 |",
        "<full_name>Bob Ray</full_name><age>5</age>",
        '<invoke name="x"><parameter name="full_name">Bob Ray</parameter><parameter name="age">5</parameter></invoke>',
        "<think>age: 9</think>Full name: `Bob Ray`\nage: 5\nnote: N/A",
    ],
)
def test_values_are_found_in_prose(text: str) -> None:
    """Labels, bullets, tables and tags spell out an object."""
    assert extract_from_text(text, SCHEMA) == {"full_name": "Bob Ray", "age": 5}


def test_lists_and_tables_are_found() -> None:
    """Bullets under a label are a list; rows under a header of properties are objects."""
    found = extract_from_text("Full name: Bob\nAge: 5\nTags:\n- x, y\n- z\n", SCHEMA)
    assert found["tags"] == ["x, y", "z"]
    assert extract_from_text("Full name: Bob\nAge: 5\nTags: x, y", SCHEMA)["tags"] == ["x", "y"]
    rows = {"type": "array", "items": SCHEMA}
    table = "Here:\n| Full Name | Age |\n|:--|--:|\n| Bob | 5 |\n| Al | 6 |\n"
    assert extract_from_text(table, rows) == [{"full_name": "Bob", "age": 5}, {"full_name": "Al", "age": 6}]


@pytest.mark.parametrize(
    "text",
    [
        "My name is Bob and I am five.",
        "Full name: Bob",
        "Full name: Bob\nAge: 5\nAge: 6",
        "Full name: Bob\nAge: unknown",
    ],
)
def test_nothing_is_invented(text: str) -> None:
    """Missing, contradictory or vague values are refused, and the error names the stage."""
    with pytest.raises(StructuredOutputError) as caught:
        extract_from_text(text, SCHEMA)
    assert caught.value.stage == "extract"
