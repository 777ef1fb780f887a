"""One run as it grows: stored bytes follow its changes, and a resume does not load its items."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import runs

pytestmark = pytest.mark.slow


def test_stored_bytes_follow_the_changes_of_a_context(tmp_path: Path) -> None:
    """Each turn adds 1 KB: stored bytes grow no faster than the turns."""
    found = {}
    for turns in (50, 300):
        path = tmp_path / f"{turns}.db"
        found[turns] = runs.context_growth(f"sqlite:///{path}", lambda path=path: runs.sqlite_bytes(path), turns)
    assert runs.exponent([(turns, found[turns]["stored KB"]) for turns in found]) <= 1.1


def test_steps_that_read_a_context_store_it_once(tmp_path: Path) -> None:
    """A context of 1 MB that 100 steps read takes at most 2 MB."""
    path = tmp_path / "reads.db"
    assert runs.context_reads(f"sqlite:///{path}", lambda: runs.sqlite_bytes(path)) <= 2_000_000


def test_an_interrupted_map_is_resumed_in_another_process(tmp_path: Path) -> None:
    """The measure itself: its first process dies in the last item, the second one ends the run."""
    found = runs.map_growth(f"sqlite:///{tmp_path}/map.db", 300)
    assert set(found) == {"resume CPU ms", "resume memory MB"}


def test_a_report_has_a_row_for_each_measure(tmp_path: Path) -> None:
    """With the figures of all sizes, and the exponent of the last two."""
    found = {10: {"time": 1.0}, 100: {"time": 10.0}}
    assert runs.report("growth", "items", found).splitlines()[-1] == "| time | 1 | 10 | 1.00 |"
    runs.draw("test", "Growth of a test", "items", found, tmp_path)
    assert "Growth of a test" in (tmp_path / "growth-test.svg").read_text()
