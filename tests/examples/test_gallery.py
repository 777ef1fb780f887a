"""The examples with a page: each program prints the output that its page shows."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs" / "examples").glob("*.md")) if TEXT.search(page.read_text("utf-8"))]
"""Pages with an exact output. Other outputs have times, ids or no fixed order: test_scripts.py has their programs."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_program_prints_the_output_of_its_page(page: Path, tmp_path: Path) -> None:
    """The text block of a page is the output of its program, without a warning."""
    program = ROOT / "examples" / f"{page.stem.replace('-', '_')}.py"
    command = [sys.executable, "-W", "error", str(program)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, env=environment, timeout=250)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [ended.stdout] == TEXT.findall(page.read_text(encoding="utf-8"))


BOTS = {"here": "flujo_actors", "with_langgraph": "langgraph.checkpoint.sqlite", "with_dbos": "dbos"}
"""Programs of one bot with the module that each needs; the one with Temporal needs a server."""


@pytest.mark.slow
@pytest.mark.parametrize("program", BOTS)
def test_one_bot_prints_the_same_with_every_library(program: str, tmp_path: Path) -> None:
    """The page shows the output once. A library that is not installed is skipped."""
    pytest.importorskip(BOTS[program])
    command = [sys.executable, str(ROOT / "examples" / "one_bot" / f"{program}.py")]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=250)
    assert ended.returncode == 0, ended.stderr
    page = (ROOT / "docs" / "examples" / "one-bot.md").read_text(encoding="utf-8")
    assert f"$ python examples/one_bot/here.py\n{ended.stdout}" in page


@pytest.mark.parametrize("program", [*BOTS, "with_temporal"])
def test_the_page_of_the_bot_shows_its_programs(program: str) -> None:
    """The tabs have the files as they are."""
    page = (ROOT / "docs" / "examples" / "one-bot.md").read_text(encoding="utf-8")
    text = (ROOT / "examples" / "one_bot" / f"{program}.py").read_text(encoding="utf-8")
    assert textwrap.indent(text, "    ", lambda line: bool(line.strip())) in page


def test_the_notebook_runs_in_a_running_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells run in order, with `await` at the top level, as Jupyter runs them."""
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {"__name__": "notebook"}

    async def run_cells() -> None:
        for cell in cells:
            ran = eval(compile("".join(cell["source"]), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(ran):
                await ran

    asyncio.run(run_cells())
    assert [run.status for run in names["runs"]] == ["completed", "completed"]  # type: ignore[attr-defined]
