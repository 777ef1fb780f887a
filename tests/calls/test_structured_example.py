"""The example of a structured step does what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "structured_step.py"


def test_the_example_shows_four_endings(capsys):
    """Two repaired texts, one asked for again, one failure."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    fenced, odd, cut, chat = capsys.readouterr().out.splitlines()
    assert fenced.endswith("Dal, 40 minutes, ['soak', 'boil'] (by deterministic)")
    assert odd.endswith("Dal, 40 minutes, ['boil'] (by deterministic)")
    assert cut.endswith("Dal, 40 minutes, ['soak', 'boil'] (by deterministic)")
    assert "no recipe (5 requests): Structured output failed at stage 'extractor'" in chat
