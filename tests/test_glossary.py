"""The glossary names things that are there, and whoever greps for a standard word finds the module that does it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flujo_actors"
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

PLACE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py)?)` *(?:,|\|$)", re.MULTILINE)
"""A file or a room in the last column of a table."""


@pytest.mark.parametrize("place", sorted(set(PLACE.findall(GLOSSARY))))
def test_what_the_glossary_points_at_is_there(place: str) -> None:
    """Files move, and the glossary with them."""
    assert (PACKAGE / place).exists()


@cache
def first_lines() -> str:
    """What each module says of itself first."""
    docs = (ast.get_docstring(ast.parse(each.read_text(encoding="utf-8"))) for each in sorted(PACKAGE.rglob("*.py")))
    return "\n".join(str(text).split("\n", 1)[0].lower() for text in docs)


@pytest.mark.parametrize(
    "word",
    ["dependency injection", "event loop", "executor", "failover", "fencing", "guest mode", "lease", "serialization"],
)
def test_a_standard_word_stands_in_the_first_line_of_the_module_that_does_it(word: str) -> None:
    """Engineers look for the words that they know."""
    assert word in first_lines()
