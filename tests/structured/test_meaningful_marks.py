"""Marks that carry a meaning never disappear: signs, decimal points, comparisons and the like."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from flujo_actors import StructuredOutputError, parse_and_validate


class Row(BaseModel):
    a: int


class Vote(BaseModel):
    vote: Literal[-1, 0]


class Level(IntEnum):
    DOWN = -1
    NONE = 0


def read(text: str, schema: Any) -> Any:
    try:
        return parse_and_validate(text, schema)
    except StructuredOutputError:
        return "refused"


def choice(members: list[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"t": {"enum": members}}, "required": ["t"]}


OTHER_MEMBERS: list[tuple[str, list[Any]]] = [
    ("1", [-1, 0]),
    ("+1", [-1, 0]),
    ("-1", ["1", "2"]),
    ("1.5", [15, 0]),
    ("1.5", ["5"]),
    (".5", ["5"]),
    ("2.0", ["20", "30"]),
    ("1,5", ["15"]),
    ("1 5", ["15"]),
    ("1/2", ["12"]),
    ("5-10", ["510"]),
    ("1e5", [1e-05]),
    ("C", ["C++", "Java"]),
    ("C#", ["C", "C++"]),
    ("A-", ["A", "B"]),
    ("A", ["A+", "B"]),
    ("A", ["A*", "B"]),
    ("A*", ["A", "B"]),
    ("T1", ["T-1"]),
    ("T-1", ["T+1"]),
    ("v1.5", ["v15", "v1"]),
    (">5", ["<5", "=0"]),
    ("> 5", ["5"]),
    ("<=5", ["5"]),
    ("~5", ["5"]),
    ("50%", ["50"]),
    ("5 %", ["5"]),
    ("50", ["50%"]),
    ("#1", ["1"]),
    ("x^2", ["x2"]),
    ("a=b", ["ab"]),
    ("!done", ["done"]),
    ("$5", ["5"]),
]


@pytest.mark.parametrize(("word", "members"), OTHER_MEMBERS)
def test_a_member_with_other_marks_is_refused(word: str, members: list[Any]) -> None:
    """As a member of an object and as the whole answer."""
    assert read(json.dumps({"t": word}), choice(members)) == "refused"
    assert read(word, {"enum": members}) == "refused"


@pytest.mark.parametrize(
    ("word", "member"),
    [
        ("In Progress", "in_progress"),
        ("in-progress", "in_progress"),
        ("INPROGRESS", "in_progress"),
        ("Level 1", "level_1"),
        ("level-1", "level_1"),
        ("level1", "level_1"),
        ("gpt 4", "gpt-4"),
        ("N/A", "na"),
        ("usa", "U.S.A."),
        ("Node JS", "node.js"),
        ("3-day", "3day"),
        ("'high'", "high"),
        ("high.", "high"),
        ("c++", "C++"),
        ("1,000", 1000),
        ("+1", 1),
        ("\u22121", -1),
        ("1e-5", 1e-05),
    ],
)
def test_separators_case_and_spelled_numbers_do_not_matter(word: str, member: Any) -> None:
    """Each of them means the member."""
    assert read(json.dumps({"t": word}), choice([member, "other"])) == {"t": member}
    assert read(word, {"enum": [member, "other"]}) == member


@pytest.mark.parametrize("schema", [Vote, {"type": "object", "properties": {"vote": {"enum": [-1, 0]}}}])
def test_a_sign_is_never_added(schema: Any) -> None:
    """Neither to a number nor to a text."""
    assert read('{"vote": "1"}', schema) == read('{"vote": 1}', schema) == "refused"
    assert read("1", Level) == "refused"
    assert read("2.0", {"const": -2.0}) == "refused"


@pytest.mark.parametrize(("key", "name"), [("C", "C++"), ("-1", "1"), (">5", "<5"), ("a%", "a"), ("1.5", "15")])
def test_a_key_with_other_marks_is_another_key(key: str, name: str) -> None:
    """Buckets and languages are names, too."""
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    assert read(json.dumps({key: 5, "other": 6}), schema) == "refused"


@pytest.mark.parametrize(
    "text",
    ["Answer: >5", "Answer: 5%", "Answer: \u22125", "Answer: - 5", "x >= 5", "Answer: ~5", "Answer: 5/10", "Total: #5"],
)
def test_a_number_with_a_mark_is_no_plain_number(text: str) -> None:
    """At the end of a sentence."""
    assert read(text, int) == "refused"


@pytest.mark.parametrize(
    ("text", "number"), [("Answer: -5", -5), ("x = 5", 5), ("It is 42.", 42), ("**42**", 42), ("Answer: **42**", 42)]
)
def test_a_labelled_number_is_read(text: str, number: int) -> None:
    """With its sign, without emphasis."""
    assert read(text, int) == number


def test_a_number_keeps_its_leading_point() -> None:
    """`.5` is a half."""
    assert read(".5", float) == 0.5
    assert read(".5", int) == "refused"


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ('items: [{"a":1},{"a":2}]\nsummary: {"total":2}', list[dict[str, int]], [{"a": 1}, {"a": 2}]),
        ('[{"a":1},{"a":2}]\n{"total":2}', {"type": "array"}, [{"a": 1}, {"a": 2}]),
        ('[{"a":1},{"a":2}]\n{"a":3}', list[Row], [Row(a=1), Row(a=2)]),
        ('[{"a":1},{"a":2}]\n{"a":3} {"a":4}', list[Row], [Row(a=1), Row(a=2)]),
        ('["x","y"] {}', list[str], ["x", "y"]),
        ('{"a": 1}\n{"result": {"a": 2}}', Row, Row(a=1)),
        ('{"a": 1}\n{"a": "2"}', Row, Row(a=2)),
        ('note: {"b": 1}\n{"result": {"a": 2}}', Row, Row(a=2)),
        ('{"a": 1} {"a": 2}', list[Row], [Row(a=1), Row(a=2)]),
    ],
)
def test_a_value_of_the_right_shape_is_never_dropped_for_one_that_is_not(text: str, schema: Any, value: Any) -> None:
    """The last one of the right shape wins, then the last one that is wrapped."""
    assert read(text, schema) == value


@pytest.mark.parametrize("text", ['{"people": 10}', '{"name": "Lima"}', '{"quux": []}', "10"])
def test_properties_and_required_imply_an_object(text: str) -> None:
    """A schema without a type does not take a value out of an object that lacks a member."""
    schema = {"properties": {"name": {"type": "string"}, "people": {"type": "integer"}}, "required": ["name", "people"]}
    assert read(text, schema) == "refused"
    assert read(text, {"$ref": "#/$defs/x", "$defs": {"x": schema}}) == "refused"
    assert read('{"result": {"name": "Lima", "people": 10}}', schema) == {"name": "Lima", "people": 10}
