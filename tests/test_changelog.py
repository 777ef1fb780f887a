"""The changelog says what the next release brings, in the form of Keep a Changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
RELEASE = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<said>\S+))?$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """What stands below each kind of change of the first, unreleased part."""
    unreleased = text.split("\n## ")[1]
    parts = unreleased.split("\n### ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def wrong_entries(section: str) -> list[str]:
    """The entries that are no sentences, and lines that belong to none."""
    entries = re.split(r"\n(?! {2}\S)", section)
    return [entry for entry in entries if not re.fullmatch(r"- [^a-z\s].*[.:]( \(#\d+\))?", entry, re.DOTALL)]


def test_the_first_part_is_the_version_of_the_project() -> None:
    """Either it is not released and names that version, or it has that version and a date."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    releases = [(found["name"], found["said"]) for found in RELEASE.finditer(CHANGELOG)]
    name, said = releases[0]
    assert (name, said) == ("Unreleased", version) or (name == version and re.fullmatch(r"\d{4}-\d\d-\d\d", said))
    assert "Unreleased" not in [name for name, _ in releases[1:]]
    assert len(releases) == CHANGELOG.count("\n## ")


def test_a_new_section_goes_below_the_title() -> None:
    """`make changelog` writes it after a mark, which is between the introduction and the first section."""
    mark = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]["start_string"]
    before, found, after = CHANGELOG.partition(mark)
    assert found
    assert before.startswith("# Release notes\n")
    assert after.lstrip().startswith("## [")


def test_changes_are_sorted_by_kind() -> None:
    """Every kind is one of the six, stands once, and holds something."""
    kinds = re.findall(r"^### (.+)$", CHANGELOG.split("\n## ")[1], re.MULTILINE)
    assert kinds
    assert set(kinds) <= set(KINDS)
    assert len(kinds) == len(set(kinds))
    assert all(sections(CHANGELOG).values())


@pytest.mark.parametrize("kind", sections(CHANGELOG))
def test_every_entry_is_a_sentence(kind: str) -> None:
    """An entry is a bullet that begins with no small letter and ends with a full stop; its other lines are indented."""
    assert wrong_entries(sections(CHANGELOG)[kind]) == []


def test_an_entry_may_end_with_its_issue() -> None:
    """`make changelog` adds the number of `12.fixed.md`."""
    assert wrong_entries("- A right one. (#12)\n- Another one.") == []


@pytest.mark.parametrize("entry", ["- no capital.", "- No stop", "* Another bullet.", "- Two lines\nout of line."])
def test_what_is_no_entry_is_noticed(entry: str) -> None:
    """The check itself tells the slips that people make."""
    assert wrong_entries(f"- A right one.\n{entry}") != []
