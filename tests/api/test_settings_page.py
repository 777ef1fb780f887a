"""The page of settings: written from the settings, and never behind them."""

from __future__ import annotations

import runpy
from pathlib import Path

import attrs
import pytest

from flujo_actors import Settings

DOCS = Path(__file__).parents[2] / "docs"


def keys(cls, path=""):
    """Every key that holds a value."""
    for field in attrs.fields(attrs.resolve_types(cls)):
        inside = attrs.has(field.type)
        yield from keys(field.type, f"{path}{field.name}.") if inside else [path + field.name]


def test_the_page_of_settings_is_what_the_settings_say():
    """If this fails, run `make docs`."""
    written = runpy.run_path(str(DOCS / "settings_page.py"))["page"]()
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == written


@pytest.mark.parametrize("key", list(keys(Settings)))
def test_every_setting_is_on_the_page_with_its_meaning(key):
    """A row of its key, its default and a sentence."""
    [row] = [line for line in (DOCS / "settings.md").read_text("utf-8").splitlines() if line.startswith(f"| `{key}` |")]
    assert len(row.strip("| ").split(" | ")[2]) > 10
