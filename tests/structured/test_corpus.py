"""The development corpus: 585 damaged answers whose intended value is known."""

import json
import math
from pathlib import Path
from typing import Any

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import parse_and_validate

CORPUS = Path(__file__).with_name("structured_dev.jsonl")
REJECT = {"__reject__": True}


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def raw_text(case: dict[str, Any]) -> str:
    if case.get("raw") is not None:
        return str(case["raw"])
    return "".join(text * count for text, count in case["raw_gen"])


def without_nulls(value: Any) -> Any:
    """For an optional key null equals absent; no expected value of the corpus has a required null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-12)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def verdict(case: dict[str, Any]) -> str:
    try:
        value = parse_and_validate(raw_text(case), case["schema"])
    except StructuredOutputError:
        return "right" if case["expected"] == REJECT else "refused"
    if case["expected"] == REJECT:
        return "accepted"
    return "right" if same(without_nulls(value), without_nulls(case["expected"])) else "wrong"


def test_the_corpus_is_read_right_in_98_percent_and_nothing_invented_is_accepted() -> None:
    """At least 98 % right, every must-reject refused, at most 1 % of the cases with a schema wrong."""
    verdicts = {case["id"]: verdict(case) for case in cases()}
    wrong = [name for name, found in verdicts.items() if found == "wrong"]
    accepted = [name for name, found in verdicts.items() if found == "accepted"]
    right = sum(found == "right" for found in verdicts.values())
    assert accepted == []
    assert right >= 0.98 * len(verdicts), [name for name, found in verdicts.items() if found != "right"]
    assert len(wrong) <= 0.01 * sum(case["schema"] is not None for case in cases()), wrong
