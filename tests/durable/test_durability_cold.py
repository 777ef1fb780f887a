"""The runtime's own tests on runs that are rebuilt from their store after every step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TREE = Path(__file__).parent.parent / "tree"
SOME = ("pause", "retries")
"""What says most about resuming; `COLD_RUNS=1 pytest tests/tree` runs all of them."""


def test_the_runtime_keeps_its_promises_on_cold_runs() -> None:
    """Pauses and retries at any depth, each step going on from what the store says."""
    files = [str(TREE / f"test_runtime_{name}.py") for name in SOME]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {
        **inherited,
        "COLD_RUNS": "1",
    }  # options of this session, such as the file of its report, are not its
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=TREE.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
