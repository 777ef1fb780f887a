"""The example of a granular agent, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "granular_agent.py"


def test_the_example_dies_and_goes_on() -> None:
    """The second process asks only for what is missing, and tells the tool that it may be the second time."""
    done = subprocess.run([sys.executable, "-W", "error", EXAMPLE], capture_output=True, encoding="utf-8", timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    begun, _, resumed = done.stdout.partition("it was killed: True\n")
    assert sorted(begun.splitlines()) == [
        "  a room in Bergen",
        "  a room in Lima",
        "  a room in Oslo",
        "  the model is asked for turn 1",
        "  the model is asked for turn 2",
        "one process begins:",
    ]
    assert resumed.splitlines() == [
        "another one goes on:",
        "  a room in Lima, perhaps for the second time",
        "  the model is asked for turn 3",
        "=> completed: Your journey is booked. (45 tokens)",
    ]
