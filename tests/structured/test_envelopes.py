"""What may come out of an envelope: containers out of any, scalars where the keys or the schema say so."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import pytest

from flujo_actors import StructuredOutputError, parse_and_validate

OPTIONAL_TEXT = {"type": ["string", "null"]}
MOOD = {"enum": ["happy", "sad"]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ('{"result": "x"}', str, "x"),
        ('{"Final Answer": "x"}', str, "x"),
        ('{"response": {"text": "x"}}', str, "x"),
        ('[{"output": "x"}]', str, "x"),
        ('{"name": "final_result", "arguments": {"response": "x"}}', str, "x"),
        ('{"status": "ok", "data": "x"}', str, "x"),
        ('{"result": 1.50}', str, "1.50"),
        ('{"answer": null}', OPTIONAL_TEXT, None),
        ('{"summary": "x"}', {"title": "Summary", "type": "string"}, "x"),
    ],
)
def test_a_key_that_announces_an_answer_holds_any_scalar(text: str, schema: Any, value: Any) -> None:
    """Usual names for an answer, and the schema's own."""
    assert parse_and_validate(text, schema) == value


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ('{"age": 5}', int, 5),
        ('{"spam": true}', bool, True),
        ('{"mood": "Happy"}', MOOD, "happy"),
        ('{"status": "sad"}', MOOD, "sad"),
        ('{"choice": "b"}', Literal["a", "b"], "b"),
        ('{"due": "2024-01-31"}', datetime.date, datetime.date(2024, 1, 31)),
        ('{"anything": [1, 2]}', list[int], [1, 2]),
    ],
)
def test_any_key_may_label_what_the_schema_knows_among_others(text: str, schema: Any, value: Any) -> None:
    """Numbers, truth values, members, described text; and containers, as ever."""
    assert parse_and_validate(text, schema) == value


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"a": 1}', str),
        ('{"a": "x"}', str),
        ('{"a": ["x"]}', str),
        ('Here you are: {"a": "x"}', str),
        ('{"a": {"result": "x"}}', str),
        ('{"result": {"a": "x"}}', str),
        ('[{"a": "x"}]', str),
        ('{"a": null}', OPTIONAL_TEXT),
        ('{"a": 1}', {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ],
)
def test_an_object_of_one_arbitrary_key_is_neither_text_nor_nothing(text: str, schema: Any) -> None:
    """The text says something else."""
    with pytest.raises(StructuredOutputError, match="does not fit"):
        parse_and_validate(text, schema)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"error": "rate limited"}', str),
        ('{"message": "come back later"}', str),
        ('{"error": 404}', int),
        ('{"error": {"code": 404}}', int),
        ('{"success": false}', bool),
    ],
)
def test_a_status_is_not_the_answer(text: str, schema: Any) -> None:
    """Whatever the schema could make of it."""
    with pytest.raises(StructuredOutputError, match="does not fit"):
        parse_and_validate(text, schema)
