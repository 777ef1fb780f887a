"""The example of a pipeline of agents, run as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_pipeline.py"


def test_the_agent_pipeline_answers_within_its_limits():
    """A plan, a tool, a refusal that is mended, and a bill that adds up; no key, no warning, no waiting."""
    done = subprocess.run([sys.executable, "-W", "error", EXAMPLE], capture_output=True, encoding="utf-8", timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    *said, plan, answer, bill = done.stdout.splitlines()
    assert said[-1] == "=> A light coat."
    assert plan == "plan: 1 attempts, 1 requests, 0 tool calls"
    assert answer == "answer: 2 attempts, 4 requests, 2 tool calls"
    assert bill == "75 tokens, $0.000023"
