"""Schemas of every kind against texts of every kind: a value that fits, or the documented error with its stage."""

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator, model_validator

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import (
    Preview,
    StreamBuffer,
    compile_schema,
    extract_from_text,
    normalize_json_text,
    parse_and_validate,
    partial_value,
    read_structured,
    simplify,
)


class Color(enum.Enum):
    RED = "red"
    TWO = 2
    NOTHING = None


class Model(BaseModel):
    name: str
    score: float | None = None
    when: datetime.date | None = None
    price: decimal.Decimal | int | None = None
    color: Color = Color.RED
    sub: "Model | None" = None


class Careless(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def look(cls, name: str) -> Any:
        return 1 / (len(name) % 3) and name.nonsense()  # type: ignore[attr-defined]


class Hasty(BaseModel):
    a: int | str | list[int] | dict[str, int]

    @model_validator(mode="before")
    @classmethod
    def first(cls, data: Any) -> Any:
        return {"a": data["a"][0]}


@attrs.frozen
class Node:
    a: int | str
    nodes: "list[Node] | None" = None
    at: datetime.datetime | None = None


@attrs.frozen
class Picky:
    a: tuple[int, str] = attrs.field()

    @a.validator
    def _look(self, attribute: Any, value: Any) -> None:
        raise KeyError(value[0])


@dataclasses.dataclass
class Record:
    a: dict[str, list[int]]
    took: datetime.timedelta | None = None

    def __post_init__(self) -> None:
        raise SystemError("no")


class Keys(TypedDict, total=False):
    a: int
    c: Literal["x", 1, True, None]


CLASSES: tuple[Any, ...] = (Model, Careless, Hasty, Node, Picky, Record, Keys, list[Model], Model | int, Color)
TYPES: tuple[Any, ...] = (
    *(datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal, uuid.UUID, bytes, int, float, str, bool),
    *(dict[str, int], tuple[int, str], set[int], int | None, list[int | str], Literal["a", 1, None, True], Any),
)
JSON_SCHEMAS: tuple[Any, ...] = (
    {},
    {"enum": [[1], {"a": 1}, "one", 1, True, None, 1.5]},
    {"const": {"a": [1]}},
    {"const": ""},
    {"type": ["string", "null", "array"]},
    {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"enum": [[1], "x"]}}]},
    {"oneOf": [{"required": ["a"], "type": "object"}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "object", "properties": {"a": {"anyOf": [True, {"type": "null"}]}, "b": False}},
    {"$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}, "v": {"type": "number"}}}}, "$ref": "#/$defs/n"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"properties": {"a": {"$ref": "#/properties/b/prefixItems/0"}, "b": {"prefixItems": [{"type": "integer"}]}}},
    {"definitions": {"x y": {"type": "string"}}, "properties": {"a": {"$ref": "#/definitions/x%20y"}}},
    {"type": "string", "format": "date"},
    {"type": "number", "multipleOf": 0.1},
)
SCHEMAS = (*CLASSES, *TYPES, *JSON_SCHEMAS)
PIECES = (
    *('{"a": 1}', '{"name": "x1"}', '{"a": ["1.000", 2.50]}', "[1, 2", '{"a": {"b": [1, {"d": 2}]}}', '{"a": NaN}'),
    *("tomorrow", "about 5 dollars", "NaN", "1e400", '{"a": [1e999]}', r'"\ud83d"', "\ud83d", "```json\n", "```"),
    *("<think>", "</think>", "name: x\n", "a: 1\n", "| a | b |\n|--|--|\n| 1 | 2 |\n", "null", "undefined", "Yes"),
    *('"', "{", "}", "[", "]", ":", ",", "\\", "\\u12", "“x”", "'a': 'b'", "{a: b}", "// c\n", "/* */", "...", "1,000"),
    *("2024-01-01", "P1D", "\x00", "\ufeff", "é", '{"name": 1.10, "score": 0.5}', '("a", 1)', "f(a=1)", "[[1],[2]]"),
    *('{"result": {"a": 3}}', "{&quot;a&quot;: 1}", '{\\"a\\": 1}', '> {"a": 1}', "9" * 4_400, '{"a": ' * 30, "red"),
    *('{"color": "2", "name": "q"}', "Answer: 42", '{"a": "x", "c": "X"}', '{"price": "1.5", "name": "q", "sub": {}}'),
)
JSON_TEXTS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "name", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
).map(json.dumps)
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).flatmap(
        lambda pieces: st.sampled_from(["", " ", "\n"]).map(lambda between: between.join(pieces))
    ),
    st.text(alphabet="{}[]\",:\\ \nab1.-`<>/'eE+tfn\ud83d\udc00|*#=()", max_size=40),
    st.tuples(JSON_TEXTS, st.integers(0, 60), st.sampled_from(["", *'{}[],:"\\'])).map(
        lambda drawn: drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] + 1 :]
    ),
)


def streamed(text: str, size: int) -> str:
    buffer, preview = StreamBuffer(), Preview(first_at=1)
    for at in range(0, len(text), size):
        buffer.feed(text[at : at + size])
        preview.partial_value(buffer)
    return buffer.finish()


def outcome_of(read: Callable[[], Any]) -> Any:
    """What was read, or None for a refusal that names its stage; everything else is a defect."""
    try:
        return read()
    except StructuredOutputError as error:
        stage = error.stage
    assert stage in ("limits", "parse", "validate", "extract", "simplify")
    return None


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=TEXTS, schema=st.sampled_from(SCHEMAS))
def test_reading_ends_in_a_value_or_the_documented_error(text: str, schema: Any) -> None:
    """Neither a class of the user nor a damaged text brings anything else out, by whichever door."""
    outcome_of(lambda: parse_and_validate(text, schema))
    outcome_of(lambda: extract_from_text(text, schema))
    outcome_of(lambda: simplify(schema).read(text))
    outcome_of(lambda: streamed(text, 3))
    partial_value(text)
    if normalized := outcome_of(lambda: normalize_json_text(text)):
        json.loads(normalized)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=TEXTS, schema=st.sampled_from(JSON_SCHEMAS))
def test_what_is_read_fits_its_schema(text: str, schema: Any) -> None:
    """The schema has the last word, whatever was mended or coerced."""
    reading = outcome_of(lambda: read_structured(text, schema))
    assert reading is None or compile_schema(schema).is_valid(reading.data)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=JSON_TEXTS)
def test_valid_json_says_what_it_says(text: str) -> None:
    """Nothing is mended where nothing is broken."""
    assert parse_and_validate(text) == json.loads(text)
    assert json.loads(normalize_json_text(text)) == json.loads(text)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_takes_its_part_in_the_fuzz(schema: Any) -> None:
    """None of them is refused as a declaration."""
    assert compile_schema(schema).schema_hash
