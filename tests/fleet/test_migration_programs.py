"""Programs of the migration pages: both sides print the output of the page, where the peer is installed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from temporal_server import temporal_server

from kit import preloaded

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    ("langgraph", 0, "langgraph.checkpoint.sqlite"),
    ("langgraph", 1, "flujo_actors"),
    ("temporal-dbos", 0, "temporalio"),
    ("temporal-dbos", 1, "dbos"),
    ("temporal-dbos", 2, "flujo_actors"),
    ("pydantic-ai", 0, "dbos"),
    ("pydantic-ai", 1, "flujo_actors"),
    ("flujo", 0, "flujo"),
    ("flujo", 1, "flujo_actors"),
]
"""Page, number of the program on it, and the module that it needs."""


def output_of(program: str, folder: Path) -> str:
    """Return the output of a program; a client of Temporal may crash after it, when its interpreter ends."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "program.py"]
    return preloaded.run(command, capture_output=True, encoding="utf-8", cwd=folder, timeout=250).stdout


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.engines
@pytest.mark.parametrize(("page", "number", "needs"), PROGRAMS, ids=[f"{page} {needs}" for page, _, needs in PROGRAMS])
def test_both_programs_of_a_migration_print_the_same(page: str, number: int, needs: str, tmp_path: Path) -> None:
    """A reader who runs both sides sees the text of the page twice."""
    if not is_installed(needs):
        pytest.skip(f"{needs} is not installed: its program in docs/migrate/{page}.md is NOT run here")
    text = (ROOT / "docs" / "migrate" / f"{page}.md").read_text(encoding="utf-8")
    program = PYTHON.findall(text)[number]
    if needs == "temporalio":
        program = program.replace("localhost:7233", temporal_server().address)
    [shown] = TEXT.findall(text)
    assert output_of(program, tmp_path) == shown


@pytest.mark.engines
def test_the_bot_on_temporal_prints_the_same_as_here(tmp_path: Path) -> None:
    """The page of one bot shows one output for all libraries; this one needs a server."""
    program = ROOT / "examples" / "one_bot" / "with_temporal.py"
    command = [sys.executable, str(program), temporal_server().address]
    ended = preloaded.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=250)
    page = (ROOT / "docs" / "examples" / "one-bot.md").read_text(encoding="utf-8")
    assert f"$ python examples/one_bot/here.py\n{ended.stdout}" in page
