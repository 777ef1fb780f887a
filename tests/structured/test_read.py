"""Reading: which value of a text is taken, what is said about it, and what is refused."""

import json
from typing import Any

import pytest

from flujo_actors._core.settings_model import Settings
from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import Limits, normalize_json_text, parse_and_validate, read_structured

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "mood": {"type": "string", "enum": ["partly_cloudy", "clear"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
BOB = {"name": "Bob", "age": 5}


def rules(text: str, schema: Any = PERSON) -> list[str]:
    return [coercion.rule for coercion in read_structured(text, schema).coercions]


def test_strict_json_goes_straight_through() -> None:
    """A valid text is read by the strict parser, and the reading says that nothing was done."""
    reading = read_structured('{"name": "Bob", "age": 5}', PERSON)
    assert (reading.value, reading.engine, reading.passes, reading.coercions) == (BOB, "strict", (), ())
    assert reading.span == (0, 25)
    assert not reading.truncated


def test_the_reading_names_every_pass() -> None:
    """What was mended and coerced is on record, with the place."""
    reading = read_structured("Sure! {'Name': 'Bob', 'age': '5',}", PERSON)
    assert reading.value == BOB
    assert (reading.engine, reading.passes) == ("mended", ("quotes", "trailing_comma"))
    assert [(c.path, c.rule) for c in reading.coercions] == [("$.name", "key_case"), ("$.age", "number_from_text")]
    assert reading.span[0] == 6


def test_a_library_repairs_what_the_parser_refuses() -> None:
    """A faithful repair of a short text counts, and the reading names the library."""
    reading = read_structured('{"a":]2},')
    assert (reading.value, reading.engine, reading.passes) == ({"a": 2}, "json_repair", ("json_repair",))
    with pytest.raises(StructuredOutputError):
        read_structured('{"a":]2},', limits=Limits(max_repair_chars=7))
    with pytest.raises(StructuredOutputError):
        read_structured("{2{:}")


def test_normalizing_returns_strict_json() -> None:
    """What comes out is JSON for any parser."""
    assert json.loads(normalize_json_text("Answer:\n```json\n{a: [1, 2,], 'b': None} // done\n```")) == {
        "a": [1, 2],
        "b": None,
    }


def test_the_last_complete_value_wins() -> None:
    """A correction follows what it corrects; a cut value does not replace a complete one."""
    assert parse_and_validate('{"a": 1} no, sorry: {"a": 2}') == {"a": 2}
    assert parse_and_validate('{"a": 1} and then {"a": 2') == {"a": 1}


def test_a_schema_chooses_among_several() -> None:
    """The last value that fits is taken, not the last value."""
    assert parse_and_validate('{"name": "Bob", "age": 5} see {"source": [1]}', PERSON) == BOB


def test_strings_hide_what_is_in_them() -> None:
    """Fences, tags and brackets inside a string are content."""
    value = {"name": "```json {x} <think>[1]</think> ```", "age": 5}
    assert parse_and_validate(f"Here: {json.dumps(value)}", PERSON) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>{1}</think>{'a': 1}", {"a": 1}),
        ('reasoning {"a": 1}</think>{"a": 2}', {"a": 2}),
        ('<answer>{"a": 1</answer> ok', {"a": 1}),
        ('```json\n{"a": "x"\n```\nThat is all.', {"a": "x"}),
        ('{"a": "x"\n\nHope this helps!', {"a": "x"}),
        ('{"a": "He said "hi", then left", "b": 1}', {"a": 'He said "hi", then left', "b": 1}),
        ('{"a": "see {"b": 1} here"}', {"a": 'see {"b": 1} here'}),
        ('{"a": "C:\\Users\\new"}', {"a": "C:\\Users\\new"}),
        ('{"a": 1,234, "b": 1_000}', {"a": 1234, "b": 1000}),
        ('{"a": "first, "b": 2}', {"a": "first", "b": 2}),
        ('{"a": [1, 2}, "b": 3}', {"a": [1, 2], "b": 3}),
        ("(1, 2)", [1, 2]),
        ('{"a": 007}', {"a": "007"}),
    ],
)
def test_damage_is_undone(text: str, value: Any) -> None:
    """One example for each kind of damage that has a rule of its own."""
    assert parse_and_validate(text) == value


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"Name": "Bob", "AGE": 5}', "key_case"),
        ('{"name": "Bob", "age": "5"}', "number_from_text"),
        ('{"name": "Bob", "age": "1,005"}', "number_from_text"),
        ('{"name": "Bob", "age": 5, "mood": "Partly Cloudy"}', "enum_case"),
        ('{"name": "Bob", "age": 5, "ok": "Yes"}', "boolean_from_text"),
        ('{"name": "Bob", "age": 5, "tags": "x"}', "list_of_one"),
        ('{"name": ["Bob"], "age": 5}', "element_from_list"),
        ('{"name": "Bob", "age": 5, "ok": null}', "null_is_absent"),
        ('{"name": "Bob", "age": 5, "extra": 1}', "extra_key"),
        ('{"name": 7, "age": 5}', "text_from_number"),
        ('{"data": {"name": "Bob", "age": 5}}', "envelope"),
        ('{"name": "f", "arguments": {"name": "Bob", "age": 5}}', "tool_call"),
        ('{"status": "ok", "result": {"name": "Bob", "age": 5}}', "status_envelope"),
        ('"{\\"name\\": \\"Bob\\", \\"age\\": 5}"', "double_encoded"),
    ],
)
def test_each_coercion_has_a_name(text: str, rule: str) -> None:
    """The pass that was needed is the one on record."""
    assert rule in rules(text)


def test_a_number_as_text_keeps_its_spelling() -> None:
    """`12.50` where text is wanted is "12.50", not "12.5"."""
    assert parse_and_validate('{"name": 12.50, "age": 5}', PERSON) == {"name": "12.50", "age": 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "The answer is 42.",
        '{"age": 5}',
        '{"name": null, "age": 5}',
        '{"name": "Bob", "age": "about five"}',
        '{"name": "Bob", "age": 5.5}',
        '{"name": "Bob", "age": -1}',
        '{"name": "Bob", "age": NaN}',
        '{"name": "Bob", "age": 5%}',
        '{"name": "Bob", "age": 5, "mood": "clear or partly_cloudy"}',
        '[{"name": "Bob", "age": 5}, {"name": "Al", "age": 6}]',
        '{"name": "\\ud83d", "age": 5}',
    ],
)
def test_what_the_schema_refuses_is_refused(text: str) -> None:
    """No value is filled in, rounded, guessed or picked at random."""
    with pytest.raises(StructuredOutputError):
        parse_and_validate(text, PERSON)


def test_the_error_says_where_and_why() -> None:
    """Stage, JSON path, reason and excerpt are attributes and in the message."""
    with pytest.raises(StructuredOutputError, match=r"\$\.age.*integer") as caught:
        parse_and_validate('{"name": "Bob", "age": "five"}', PERSON)
    assert caught.value.stage == "validate"
    assert [flaw.path for flaw in caught.value.errors] == ["$.age"]
    assert "five" in caught.value.text_excerpt
    assert caught.value.schema_hash


def test_a_text_too_long_to_be_searched_is_read_if_it_is_json_as_it_stands() -> None:
    """As much of it as a stream may bring; what is refused says why."""
    limits = Limits(max_chars=100, max_searched_chars=10, max_commas_beyond=2)
    assert read_structured('{"text": "a long, long text"}', None, limits).value == {"text": "a long, long text"}
    for text, reason in (
        ("Here you are: [1, 2]", "of more than 10, only strict JSON"),
        ("[1, 2, 3, 4, 5]", "of more than 10, only JSON of up to 2 values"),
        (f'"{"x" * 100}"', "102 characters, more than 100"),
    ):
        with pytest.raises(StructuredOutputError, match=reason) as caught:
            read_structured(text, None, limits)
        assert caught.value.stage == "limits"
    assert read_structured("[1, 2,]", None, limits).value == [1, 2]


def test_the_reader_takes_as_much_as_a_stream_may_bring() -> None:
    """The two bounds agree, unless somebody changes the setting."""
    assert Limits().max_chars == Settings().aros.streaming.max_bytes


def test_limits_refuse_and_never_cut() -> None:
    """A text over the length or the depth is refused as a whole."""
    with pytest.raises(StructuredOutputError) as caught:
        read_structured("[1]" * 10, None, Limits(max_chars=5, max_searched_chars=5))
    assert caught.value.stage == "limits"
    with pytest.raises(StructuredOutputError, match="deeper"):
        read_structured("[1,] " + "[" * 300)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("TWO is the answer", {"enum": ["ONE", "TWO"]}, "TWO"),
        ("Answer: **True**", {"type": "boolean"}, True),
        ("12,111", {"type": "integer"}, 12111),
        ("Answer: 42", {"type": "integer"}, 42),
        ("hello", {"type": "string"}, "hello"),
        ('{"a": 1} {"a": 2}', {"type": "array", "items": {"type": "object"}}, [{"a": 1}, {"a": 2}]),
    ],
)
def test_schemas_that_are_no_objects(text: str, schema: Any, value: Any) -> None:
    """A single word or number can be an answer where the schema asks for one."""
    assert parse_and_validate(text, schema) == value


@pytest.mark.parametrize(
    ("text", "schema"),
    [("ONE, not TWO", {"enum": ["ONE", "TWO"]}), ("I found 3 problems", {"type": "integer"})],
)
def test_ambiguous_words_are_refused(text: str, schema: Any) -> None:
    """Two members named, or a number in passing, are no answer."""
    with pytest.raises(StructuredOutputError):
        parse_and_validate(text, schema)


def test_an_object_of_strangers_is_no_value_of_an_all_optional_schema() -> None:
    """If every key is optional, an envelope is opened and a foreign object refused."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert parse_and_validate('{"result": {"a": 5}}', schema) == {"a": 5}
    with pytest.raises(StructuredOutputError, match="known"):
        parse_and_validate('{"x": 1, "y": 2}', schema)
