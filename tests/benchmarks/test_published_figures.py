"""Figures in README are those of the newest published benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

SENTENCES = {
    "chain": r"step costs ([\d.]+) times a bare trio task with one message",
    "fan_out": r"a parallel branch ([\d.]+) times",
    "runs": r"a thousand runs of three steps at once ([\d.]+) times",
}


def newest() -> dict[str, Any]:
    path = max((ROOT / "benchmarks" / "results").glob("20*.json"))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def ratio(published: dict[str, Any], work: str) -> float:
    """What ours costs next to raw trio, best by best; of the smallest size that was measured."""
    figures = [each for each in published["figures"] if each["work"] == work]
    size = min(each["size"] for each in figures)
    best = {each["contender"]: each["best"] for each in figures if each["size"] == size and "best" in each}
    ours: float = best["flujo-actors"] / best["raw trio"]
    return ours


@pytest.mark.parametrize("work", sorted(SENTENCES))
def test_a_figure_in_readme_is_the_newest_that_was_published(work: str) -> None:
    """A figure that was measured before the last change is no figure."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(SENTENCES[work], text)
    assert found is not None
    assert found[1] == f"{ratio(newest(), work):.1f}"


def test_the_chart_beside_the_tables_with_peers_has_their_figures() -> None:
    """Text and chart of the page are of one run."""
    page = (ROOT / "docs" / "benchmarks" / "runtime.md").read_text(encoding="utf-8")
    chart = (ROOT / "docs" / "images" / "benchmarks.svg").read_text(encoding="utf-8")
    drawn = re.findall(r">([\d.,]+ µs)<", chart)
    assert len(drawn) > 20
    assert [figure for figure in drawn if f"| {figure} |" not in page] == []
