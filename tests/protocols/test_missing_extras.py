"""Modules of an extra that is not installed name the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

IMPORTS = {
    "page": ("starlette", "from flujo_actors import run_page; import flujo_actors.protocols.sse"),
    "ag-ui": ("ag_ui", "import flujo_actors.protocols.ag_ui"),
    "mcp": ("mcp", "import flujo_actors.protocols.mcp"),
}

MODEL = """
import sys
sys.modules["openai"] = None
from flujo_actors import Flujo, Step, make_agent_async
print(Flujo(Step("ask", make_agent_async("openai-chat:gpt-4o", "Ask."))).run("x").feedback)
"""


def output_of(script: str) -> str:
    """Both streams of a program."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("extra", IMPORTS)
def test_an_import_without_its_extra_says_what_to_install(extra: str):
    """The missing package is named, too."""
    package, statement = IMPORTS[extra]
    told = output_of(f"import sys; sys.modules[{package!r}] = None; {statement}")
    assert f"`pip install 'flujo-actors[{extra}]'`" in told
    assert f"needs the package '{package}" in told


def test_a_model_without_its_extra_says_what_to_install():
    """In the feedback of the step that calls it."""
    assert "run `pip install 'flujo-actors[openai]'`" in output_of(MODEL)
