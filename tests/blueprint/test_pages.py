"""The pages that are made from tables are current."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["lint", "blueprints", "cli"])
def test_a_page_is_what_its_table_says(name: str) -> None:
    """Whoever changes the table runs `make docs`."""
    written = runpy.run_path(str(DOCS / f"{name}_page.py"))["page"]()
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == written
