"""Valid values, damaged in the ways models damage them: recovered or refused, never something else."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import parse_and_validate, read_structured

SCHEMA = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string"},
        "age": {"type": "integer"},
        "is_ok": {"type": "boolean"},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "price": {"type": "number"}},
                "required": ["id", "price"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["full_name", "age", "is_ok", "score", "tags", "home", "rows"],
    "additionalProperties": False,
}

WORDS = st.sampled_from(
    ["alpha", "beta, gamma", "it's fine", "Ratio 3:1", "see (a)", "北京", "don't", "5 pm; ok", "Mr. Smith", "größer"]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
VALUES = st.fixed_dictionaries(
    {
        "full_name": TEXTS,
        "age": st.integers(0, 130),
        "is_ok": st.booleans(),
        "score": st.sampled_from([0.5, 12.25, 3.0, 1999.75]),
        "tags": st.lists(TEXTS, max_size=3),
        "home": st.fixed_dictionaries({"city": TEXTS, "zip": st.from_regex(r"[1-9]\d{4}", fullmatch=True)}),
        "rows": st.lists(
            st.fixed_dictionaries({"id": st.integers(1, 9), "price": st.sampled_from([1.5, 22.25])}), max_size=3
        ),
    }
)


def dumped(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def outside_strings(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub(r"_(\w)", lambda m: m[1].upper(), key): camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


DAMAGES: dict[str, Callable[[Any], str]] = {
    "a Python repr": repr,
    "fenced between prose": lambda v: f"Here it is:\n```json\n{dumped(v, 2)}\n```\nHope that helps {{friend}} [1]!",
    "an unclosed fence": lambda v: f"Sure: ```json\n{dumped(v)}",
    "thinking with a draft": lambda v: f'<think>Maybe {{"age": 1}}? No.</think>\n{dumped(v)}',
    "an xml tag": lambda v: f'<result format="json">{dumped(v)}</result>',
    "a tool call": lambda v: f'<tool_call>{{"name": "final", "arguments": {dumped(v)}}}</tool_call>',
    "a tool call with text arguments": lambda v: dumped({"name": "final", "arguments": dumped(v)}),
    "an envelope": lambda v: dumped({"result": v}),
    "trailing commas": lambda v: outside_strings(dumped(v), lambda t: re.sub(r"(?<![{\[])([}\]])", r",\1", t)),
    "bare keys": lambda v: re.sub(r'"(\w+)":', r"\1:", dumped(v)),
    "missing commas": lambda v: outside_strings(dumped(v, 1), lambda t: t.replace(",", "")),
    "line comments": lambda v: outside_strings(dumped(v, 1), lambda t: t.replace(",\n", ", // see [a], {b}\n")),
    "hash comments": lambda v: outside_strings(dumped(v, 1), lambda t: t.replace(",\n", ", # note\n")),
    "block comments": lambda v: outside_strings(dumped(v), lambda t: t.replace(",", ", /* x: 1 */")),
    "wide punctuation": lambda v: outside_strings(
        dumped(v), lambda t: t.replace(",", "，").replace(":", "：").replace("{", "｛").replace("}", "｝")
    ),
    "curly quotes": lambda v: re.sub(r'"([^"]*)"', r"“\1”", dumped(v)),
    "odd spaces": lambda v: outside_strings(dumped(v, 2), lambda t: t.replace(" ", "\u00a0\u200b")),
    "a byte order mark": lambda v: "\ufeff" + dumped(v),
    "no closers": lambda v: dumped(v).rstrip("]}") if v["rows"] else dumped(v)[:-1],
    "a second closer": lambda v: dumped(v) + "}",
    "upper-case literals": lambda v: outside_strings(dumped(v), str.upper),
    "camel case": lambda v: dumped(camel(v)),
    "everything as text": lambda v: dumped(as_text(v)),
    "double-encoded": lambda v: dumped(dumped(v)),
    "escaped without quotes": lambda v: dumped(dumped(v))[1:-1],
    "html entities": lambda v: dumped(v).replace('"', "&quot;"),
    "a list of one": lambda v: dumped([v]),
    "a draft before it": lambda v: f"Draft: {dumped({**v, 'age': 1})}\nFinal answer: {dumped(v)}",
    "extra keys": lambda v: dumped({"_note": [1, {"a": 2}], **v, "confidence": None}),
    "semicolons": lambda v: outside_strings(dumped(v), lambda t: t.replace(",", ";")),
    "equals signs": lambda v: outside_strings(dumped(v), lambda t: t.replace(":", " =")),
    "doubled colons": lambda v: outside_strings(dumped(v), lambda t: t.replace(":", "::")),
    "a quotation": lambda v: "\n".join(f"> {line}" for line in dumped(v, 2).split("\n")),
}


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(value=VALUES, damage=st.sampled_from(sorted(DAMAGES)))
def test_a_damaged_value_is_recovered(value: Any, damage: str) -> None:
    """Every kind of damage that leaves the content readable is undone."""
    assert parse_and_validate(DAMAGES[damage](value), SCHEMA) == value


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(value=VALUES, data=st.data())
def test_a_lost_or_doubled_mark_is_recovered_or_refused(value: Any, data: st.DataObject) -> None:
    """Deleting or doubling one structural character never yields a different value."""
    text = dumped(value, data.draw(st.sampled_from([None, 2])))
    marks = [m.start() for m in re.finditer(r'[{}\[\],:"]', text) if is_mark(text, m.start())]
    at = data.draw(st.sampled_from(marks))
    damaged = text[:at] + data.draw(st.sampled_from(["", text[at] * 2])) + text[at + 1 :]
    try:
        found = parse_and_validate(damaged, SCHEMA)
    except StructuredOutputError:
        return
    assert found == value


def is_mark(text: str, at: int) -> bool:
    inside = text[:at].count('"') % 2 == 1
    return text[at] == '"' or not inside


def is_prefix_of(part: Any, whole: Any) -> bool:
    """Whether `part` could be what a cut left of `whole`."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_prefix_of(item, whole[key]) for key, item in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(is_prefix_of, part, whole))
    if isinstance(part, bool) or isinstance(whole, bool):
        return part is whole
    return str(whole).startswith(str(part).removesuffix(".0"))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(value=VALUES, data=st.data())
def test_a_cut_text_yields_what_was_there_and_says_so(value: Any, data: st.DataObject) -> None:
    """A text cut anywhere gives a part of the value, marked as truncated, or nothing."""
    text = dumped(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    reading = read_structured(cut)
    assert reading.truncated
    assert is_prefix_of(reading.value, value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text(alphabet="{}[]\",:\\ \nab1`<>/'", max_size=60))
def test_any_text_ends_in_a_value_or_the_documented_error(text: str) -> None:
    """Nothing but `StructuredOutputError` ever comes out, and what comes out is JSON."""
    try:
        value = parse_and_validate(text)
    except StructuredOutputError:
        return
    assert json.loads(json.dumps(value)) == value
