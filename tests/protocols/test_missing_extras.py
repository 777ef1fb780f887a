"""Modules of an extra that is not installed name the command that installs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

IMPORTS = {
    "from flujo_actors import run_page": ("starlette", "'flujo-actors[page]'"),
    "import flujo_actors.protocols.sse": ("sse_starlette", "'flujo-actors[page]'"),
    "import flujo_actors.protocols.ag_ui": ("ag_ui", "'flujo-actors[ag-ui]'"),
    "import flujo_actors.protocols.mcp": ("mcp", "'flujo-actors[mcp]'"),
    "import flujo_actors.testing.fixtures": ("pytest", "pytest"),
    "import flujo_actors.testing.store_conformance": ("pytest", "pytest"),
    "import flujo_actors.testing.engine_conformance": ("pytest", "pytest"),
}
"""Statements, the package that each misses, and what is to be installed; pytest is in no extra."""

EVERY_IMPORT = """
import json, sys
for statement, (package, _) in json.load(sys.stdin).items():
    sys.modules[package] = None
    try:
        exec(statement)
    except ModuleNotFoundError as error:
        print(json.dumps([statement, str(error)]))
"""

MODEL = """
import sys
sys.modules["openai"] = None
from flujo_actors import Flujo, Step, make_agent_async
print(Flujo(Step("ask", make_agent_async("openai-chat:gpt-4o", "Ask."))).run("x").feedback)
"""


def output_of(script: str, given: str = "") -> str:
    """The output of a program."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=240, check=True).stdout


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """What each statement raises, in one process without the packages."""
    return dict(json.loads(line) for line in output_of(EVERY_IMPORT, json.dumps(IMPORTS)).splitlines())


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_without_its_extra_says_what_to_install(statement: str, errors: dict[str, str]) -> None:
    """The missing package is named, too."""
    package, installed = IMPORTS[statement]
    assert f"needs the package '{package}" in errors[statement]
    assert f"which is not installed: run `pip install {installed}`" in errors[statement]


def test_a_model_without_its_extra_says_what_to_install() -> None:
    """In the feedback of the step that calls it."""
    assert "run `pip install 'flujo-actors[openai]'`" in output_of(MODEL)
