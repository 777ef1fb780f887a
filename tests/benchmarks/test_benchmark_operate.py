"""Benchmark of listings and totals: a small run of all queries."""

from __future__ import annotations

import pytest

from benchmarks import operate


def test_every_query_is_measured_in_both_stores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table with one line for each query."""
    monkeypatch.setattr(operate, "SMALL", 300)
    assert operate.main(["--runs", "600"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| query | 300 runs | 600 runs |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(operate.QUERIES)
