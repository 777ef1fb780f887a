"""Five ways to say what a value must look like, one compiled schema."""

import dataclasses
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import attrs
import pydantic
import pytest

from flujo_actors.errors import DeclarationError, StructuredOutputError
from flujo_actors.structured import compile_schema, parse_and_validate


class Color(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    name: str
    age: int
    born: date | None = None

    @pydantic.field_validator("name")
    @classmethod
    def not_admin(cls, name: str) -> str:
        if name == "admin":
            raise ValueError("nobody is called admin")
        return name


@attrs.frozen
class Part:
    label: str
    parts: "list[Part]" = attrs.field(factory=list)


@attrs.frozen
class Thing:
    name: str
    age: int
    part: Part | None = None
    colors: tuple[Color, ...] = ()
    kind: Annotated[Literal["a", "b"], "kind"] = "a"
    sizes: dict[str, float] = attrs.field(factory=dict)


@dataclasses.dataclass
class Record:
    name: str
    age: int


class Row(TypedDict):
    name: str
    age: NotRequired[int]


TEXT = "Sure: {'Name': 'Bob', 'age': '5'}"
JSON_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Model, Model(name="Bob", age=5)),
        (Thing, Thing(name="Bob", age=5)),
        (Record, Record(name="Bob", age=5)),
        (Row, {"name": "Bob", "age": 5}),
        (JSON_SCHEMA, {"name": "Bob", "age": 5}),
        (list[Model], [Model(name="Bob", age=5)]),
    ],
)
def test_each_kind_of_schema_reads_the_same_text(schema: Any, value: Any) -> None:
    """Classes give instances, TypedDict and JSON Schema give plain data."""
    assert parse_and_validate(TEXT, schema) == value


def test_an_attrs_class_with_everything_in_it() -> None:
    """Nested, recursive, optional, enumerated and mapped fields come back as the right types."""
    part_text = "{label: 'p', parts: [{label: 'q'}]}"
    text = f"{{name: 'x', age: 1, part: {part_text}, colors: ['RED'], kind: 'B', sizes: {{s: '1.5'}}}}"
    part = Part("p", [Part("q")])
    assert parse_and_validate(text, Thing) == Thing("x", 1, part, (Color.RED,), "b", {"s": 1.5})


def test_a_class_may_refuse_what_its_json_schema_accepts() -> None:
    """A pydantic validator has the last word, and its reason is in the error."""
    with pytest.raises(StructuredOutputError, match="nobody is called admin") as caught:
        parse_and_validate('{"name": "admin", "age": 5}', Model)
    assert caught.value.errors[0].path == "$.name"


def test_a_missing_field_of_a_class_is_never_filled_in() -> None:
    """Required means required, for every kind."""
    for schema in (Model, Thing, Record, Row):
        with pytest.raises(StructuredOutputError):
            parse_and_validate('{"height": 5}', schema)


def test_compiling_is_cached_and_the_hash_ignores_key_order() -> None:
    """Equal schemas compile to one object; the hash identifies the content."""
    assert compile_schema(Model) is compile_schema(Model)
    assert compile_schema(dict(JSON_SCHEMA)) is compile_schema(dict(JSON_SCHEMA))
    turned = {key: JSON_SCHEMA[key] for key in reversed(JSON_SCHEMA)}
    assert compile_schema(turned).schema_hash == compile_schema(JSON_SCHEMA).schema_hash
    assert compile_schema(compile_schema(Model)) is compile_schema(Model)


def test_a_schema_that_is_none_is_a_declaration_error() -> None:
    """Wrong declarations are found when the schema is compiled, and no reference is ever fetched."""
    for schema in ({"type": "objekt"}, {"$ref": "https://example.com/schema.json"}, object()):
        with pytest.raises(DeclarationError):
            compile_schema(schema)


@pytest.mark.parametrize("schema", [42, "City", object(), [int]])
def test_what_is_no_schema_is_told_in_one_sentence(schema: Any) -> None:
    """Whoever reads a text by it learns what would be one, not how to write pydantic's core schemas."""
    with pytest.raises(DeclarationError, match=r"not a JSON Schema .*, a pydantic model, an attrs class") as refused:
        parse_and_validate("{}", schema)
    assert "\n" not in str(refused.value)
    assert "arbitrary_types_allowed" not in str(refused.value)


def test_validation_errors_have_paths() -> None:
    """Every flaw is found, with its place."""
    flaws = compile_schema(JSON_SCHEMA).validate({"name": 1, "age": "x"})
    assert sorted(flaw.path for flaw in flaws) == ["$.age", "$.name"]


def test_unions_keep_the_order_in_which_they_are_written():
    """Equal types of another order are other schemas: the first member that fits is taken."""
    assert [each["type"] for each in compile_schema(int | str).json_schema["anyOf"]] == ["integer", "string"]
    assert [each["type"] for each in compile_schema(str | int).json_schema["anyOf"]] == ["string", "integer"]
