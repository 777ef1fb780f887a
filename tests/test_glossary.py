"""Terms of the glossary: public, explained once, and found by a search in the sources."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import flujo_actors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

CODE = re.compile(r"`([A-Z]\w+)`")
"""A class that the glossary names."""


@pytest.mark.parametrize("name", sorted(set(CODE.findall(GLOSSARY))))
def test_a_class_in_the_glossary_is_public(name: str) -> None:
    """Users look up what they can import."""
    assert name in flujo_actors.__all__


def test_the_glossary_names_no_private_module() -> None:
    """Files move; users need terms, not locations."""
    assert re.findall(r"`_\w+[/.]|\w+\.py\b", GLOSSARY) == []


def test_the_glossary_explains_a_term_once() -> None:
    """One term has one meaning."""
    terms = [term for row in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE) for term in row.split(", ")]
    columns = {"term"}
    assert sorted({term for term in terms if terms.count(term) > 1} - columns) == []


@cache
def first_lines() -> str:
    """The first line of every module."""
    texts = (each.read_text(encoding="utf-8") for each in sorted(PACKAGE.rglob("*.py")))
    return "\n".join(text.partition("\n")[0].lower() for text in texts)


@pytest.mark.parametrize(
    "word",
    ["dependency injection", "event loop", "executor", "failover", "fencing", "guest mode", "lease", "serialization"],
)
def test_a_standard_word_stands_in_the_first_line_of_the_module_that_does_it(word: str) -> None:
    """Engineers look for the words that they know."""
    assert word in first_lines()
