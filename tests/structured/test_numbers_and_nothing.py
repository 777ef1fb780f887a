"""What says no value: half a character, numbers that are none, words for nothing, and numbers that say two things."""

import time
from typing import Any

import pytest
from pydantic import BaseModel

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import extract_from_text, normalize_json_text, parse_and_validate, read_structured

ID = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


class City(BaseModel):
    name: str
    people: int | None = None


def refused(text: str, schema: Any = None) -> bool:
    try:
        parse_and_validate(text, schema)
    except StructuredOutputError:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    [
        r'{"text": "cut \ud83d", "author": {"id": 7}}',
        r'[{"id": 1, "t": "\ud83d"}, {"id": 2}]',
        '{"text": "cut \ud83d", "author": {"id": 7}}',
        '{"n": ' + "9" * 5_000 + ', "author": {"id": 7}}',
        '{"n": 1e400, "author": {"id": 7}}',
        '{"n": ' + "9" * 400 + '.5, "author": {"id": 7}}',
        '{"n": NaN, "author": {"id": 7}}',
        '{"n": -Infinity, "author": {"id": 7}}',
        'Draft: {"id": 7}\nFinal: {"id": 1e400}',
    ],
)
def test_json_that_no_value_can_hold_is_refused_and_so_is_every_part_of_it(text: str) -> None:
    """Neither something from its inside nor what was said before it is the answer."""
    assert refused(text)
    assert refused(text, ID)
    with pytest.raises(StructuredOutputError, match="NaN, infinity, too many digits"):
        normalize_json_text(text)


def test_what_comes_behind_such_json_is_read() -> None:
    """The last complete value is the answer."""
    assert parse_and_validate('{"id": NaN}\nCorrected: {"id": 7}', ID) == {"id": 7}
    assert parse_and_validate("[1e308, 1.5e-400]") == [1e308, 0.0]


@pytest.mark.parametrize("word", ["undefined", "NaN", "nil", "None", "null", "NULL", "Infinity", "nan", "Undefined"])
def test_a_word_for_nothing_is_no_text(word: str) -> None:
    """A required text is not filled in with it; the same word in quotes is one."""
    assert refused(f'{{"name": {word}}}', City)
    assert parse_and_validate(f'{{"name": "{word}"}}', City) == City(name=word)


@pytest.mark.parametrize("word", ["undefined", "nil", "nan", "None"])
def test_a_label_with_a_word_for_nothing_has_no_value(word: str) -> None:
    """The extractor invents nothing, either."""
    with pytest.raises(StructuredOutputError):
        extract_from_text(f"Name: {word}\nPeople: 7", City)


@pytest.mark.parametrize("text", ["1.000", "10.000", "-1.000", "$2.000", "100.000 €", "12.345"])
def test_a_point_and_three_digits_say_two_whole_numbers(text: str) -> None:
    """One or a thousand: nobody knows."""
    assert refused(f'{{"name": "Lima", "people": "{text}"}}', City)
    assert refused(f"People: {text}", int)


@pytest.mark.parametrize(
    ("text", "number"), [("1,000", 1000), ("1.234,00", 1234), ("5.00", 5), ("1,234.000", 1234), ("1.0", 1)]
)
def test_a_number_with_one_reading_is_read(text: str, number: int) -> None:
    """Separators and empty decimals change nothing."""
    assert parse_and_validate(f'{{"name": "Lima", "people": "{text}"}}', City) == City(name="Lima", people=number)


@pytest.mark.parametrize("text", ['{"a": tru', '{"a": ', "[nul", '{"a": "', '{"na'])
def test_a_text_cut_off_before_it_says_anything_is_refused(text: str) -> None:
    """An empty object would say that there is nothing; only a reading can say that it was cut."""
    assert read_structured(text).truncated
    if read_structured(text).data in ({}, []):
        assert refused(text)
        with pytest.raises(StructuredOutputError, match="cut off"):
            normalize_json_text(text)


@pytest.mark.parametrize(
    "text", ['```json\n"beta"\n```', '<think>hm</think>"beta"', '"beta"', "```\nbeta\n```", "beta"]
)
def test_a_text_says_itself_without_the_quotes_of_json(text: str) -> None:
    """In a fence or behind thinking as elsewhere."""
    assert parse_and_validate(text, str) == "beta"


@pytest.mark.parametrize("piece", ["[]", "{}"])
def test_a_long_text_of_brackets_takes_no_longer_than_others(piece: str) -> None:
    """What cannot be read is measured once, and only so far."""
    rows = {"type": "array", "items": ID}
    began = time.thread_time()
    assert refused('{"name": "x", "age": 1, "sub":' + piece * 3_500_000, rows)
    assert time.thread_time() - began < 20
