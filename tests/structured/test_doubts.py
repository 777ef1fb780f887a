"""A text with one mark missing, doubled or wrong: what it says if that is one thing, a refusal if it may be several."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import normalize_json_text, parse_and_validate, read_structured

MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
MARKS = '{}[],:"'
WRAPPERS = ("%s", "```json\n%s\n```", "Here it is:\n%s\nHope it helps.", "Sure!\n```json\n%s\n```\nAnything else?")


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ('{"a": :[1,2],[],[7]]}', {"type": "object", "properties": {"a": MATRIX}}, {"a": [[1, 2], [], [7]]}),
        ('["a", ""]", "b"]', None, ["a", "]", "b"]),
        ('{"id": "3.50", "qty"} 0}', None, {"id": "3.50", "qty": 0}),
        ('"age": [1, 42], "b": {"c": 1}}', None, {"age": [1, 42], "b": {"c": 1}}),
        ('{"b": true: "age": true}', None, {"b": True, "age": True}),
        ("[1000,-3]7]", None, [1000, -3, 7]),
        ("[[1,2]],[3,4]]", MATRIX, [[1, 2], [3, 4]]),
        ('Here:\n```json\n"age": [1, 42], "b": 2}\n```\nBye.', None, {"age": [1, 42], "b": 2}),
    ],
)
def test_a_text_that_is_one_mark_away_from_one_value_says_that(text: str, schema: Any, value: Any) -> None:
    """Not a part of it, not a regrouped one, not one with members of two levels in one."""
    assert parse_and_validate(text, schema) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Lima", [age": {"id": 42}, "qty": 1}',
        '{"qty]: {"tags": 1.5}, "name": ["j"]}',
        "[1,2],[3,4]]",
        '{"city": [["a"], "amount": true}',
        '{"age":  12", "b": 1}',
        "[truefalse, true]",
    ],
)
def test_a_text_with_several_readings_is_refused(text: str) -> None:
    """However likely one of them is."""
    with pytest.raises(StructuredOutputError):
        parse_and_validate(text)
    with pytest.raises(StructuredOutputError):
        normalize_json_text(text)


NAMES = st.sampled_from(["name", "age", "tags", "items", "full_name", "is_ok"])
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["alpha", "a, b", "it's fine", "Ratio 3:1", "see [1]", "ok {y}", 'said "hi"', "北京"]),
    "integer": st.sampled_from([0, 7, 42, -3, 1000]),
    "number": st.sampled_from([0.5, -2.75, 1999.75]),
    "boolean": st.booleans(),
}


def objects_of(fields: dict[str, Any]) -> Any:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


SCHEMAS = st.recursive(
    st.sampled_from(sorted(LEAVES)).map(lambda kind: {"type": kind}),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(objects_of),
    ),
    max_leaves=6,
).filter(lambda schema: schema["type"] in ("object", "array"))


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    match schema["type"]:
        case "array":
            return st.lists(values_of(schema["items"]), min_size=1, max_size=3)
        case "object":
            return st.fixed_dictionaries({key: values_of(part) for key, part in schema["properties"].items()})
    return LEAVES[schema["type"]]


def marks_of(text: str) -> list[int]:
    found, inside, at = [], False, 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == '"' or (not inside and text[at] in MARKS):
            found.append(at)
            inside ^= text[at] == '"'
        at += 1
    return found


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(schema=SCHEMAS, data=st.data())
def test_one_damaged_mark_never_gives_another_value(schema: Any, data: st.DataObject) -> None:
    """Dropped, doubled or replaced, bare or in a fence: the value, a refusal, or what is marked as cut off."""
    value = data.draw(values_of(schema))
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 2])))
    at = data.draw(st.sampled_from(marks_of(text)))
    instead = data.draw(st.sampled_from(["", text[at] * 2, *MARKS]))
    wrapped = data.draw(st.sampled_from(WRAPPERS)) % (text[:at] + instead + text[at + 1 :])
    try:
        reading = read_structured(wrapped, schema)
    except StructuredOutputError:
        return
    assert reading.truncated or reading.value == value
