"""The page about performance shows the newest published benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evaluate" / "performance.md").read_text(encoding="utf-8")
ROWS = {
    ("chain", 100): "chain of 100 steps, per step",
    ("fan_out", 1_000): "1,000 parallel branches, per branch",
    ("fan_out", 10_000): "10,000 parallel branches, per branch",
    ("runs", 1_000): "1,000 concurrent runs of 3 steps, per run",
    ("durable_chain", 100): "durable chain of 100 steps on SQLite, per step",
}


def best(work: str, size: int, contender: str) -> float:
    """Seconds of the best repetition in the newest results."""
    path = max((ROOT / "benchmarks" / "results").glob("20*.json"))
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    [samples] = [
        each["each"] for each in figures if (each["work"], each["size"], each["contender"]) == (work, size, contender)
    ]
    return min(float(sample) for sample in samples)


@pytest.mark.parametrize(("work", "size"), ROWS)
def test_a_row_of_the_performance_page_is_the_newest_measurement(work: str, size: int) -> None:
    """Readers of the page see the figures of the last published benchmark."""
    ours, raw = (best(work, size, contender) for contender in ("flujo-actors", "raw trio"))
    row = f"| {ROWS[work, size]} | {ours * 1e6:.1f} µs | {raw * 1e6:.1f} µs | {ours / raw:.2f} |"
    assert row in PAGE


def test_the_figure_of_asyncio_is_the_newest_measurement() -> None:
    """The sentence below the table is compared as well."""
    each = best("chain", 100, "flujo-actors in asyncio") * 1e6
    assert f"a step of a chain takes {each:.1f} µs" in PAGE
