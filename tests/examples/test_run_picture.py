"""The picture of a run shows what runs do today."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script that draws it."""
    return runpy.run_path(str(DOCS / "run_picture.py"))


def test_the_picture_is_that_of_a_run_made_now(script: dict[str, Any]) -> None:
    """If this fails, look at what has changed, and run `make docs`."""
    assert (DOCS / "images" / "run.svg").read_text(encoding="utf-8") == script["drawn"]()


def test_every_step_is_written_before_it_is_told(script: dict[str, Any]) -> None:
    """What the page says of the picture is in it: each success comes after the record of its step."""
    noticed = [(notice.what, notice.path) for notice in script["noticed"]()]
    told = [path for what, path in noticed if what == "Success"]
    assert told == ["plan", "gather/search", "gather/read", "gather", "write"]
    assert all(noticed.index(("settled", path)) < noticed.index(("Success", path)) for path in told)


def test_diagrams_are_drawn_from_their_tables() -> None:
    """If this fails, run `make docs`."""
    diagrams = runpy.run_path(str(DOCS / "diagrams.py"))
    drawn = {name: diagrams["drawn"](diagram) for name, diagram in diagrams["DIAGRAMS"].items()}
    assert {"durable-crash", "pause-and-resume", "fleet", "structured-stages"} < drawn.keys()
    assert {name: (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8") for name in drawn} == drawn
