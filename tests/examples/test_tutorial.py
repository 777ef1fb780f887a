"""The tutorial: each program prints the output that its page shows, and each page shows the whole program."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from starlette.testclient import TestClient

from flujo_actors import RunClient
from kit import preloaded

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "examples" / "tutorial").glob("*.py"))
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVED, KILLED = "07_web_and_workers", "06_durable"


def run(program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a reader does, in a folder of its own."""
    command = [sys.executable, "-W", "error", str(program)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return preloaded.run(command, capture_output=True, encoding="utf-8", cwd=folder, env=environment, timeout=240)


def page_of(program: Path) -> str:
    return PAGES[PROGRAMS.index(program)].read_text(encoding="utf-8")


def first_text(page: str) -> str:
    found = TEXT.search(page)
    assert found is not None
    return found[1]


def test_the_tutorial_has_eight_programs_and_eight_pages() -> None:
    """Programs and pages have the same numbers."""
    assert [int(program.name[:2]) for program in PROGRAMS] == list(range(1, 9))
    assert [int(page.name.split("-")[0]) for page in PAGES] == list(range(1, 9))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_page_shows_the_whole_program(program: Path) -> None:
    """The first Python block of a page is the file below its docstring."""
    shown = PYTHON.search(page_of(program))
    assert shown is not None
    assert shown[1].strip() == program.read_text(encoding="utf-8").split('"""\n', 1)[1].strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if each.stem not in (SERVED, KILLED)], ids=lambda path: path.stem
)
def test_a_program_prints_the_output_of_its_page(program: Path, tmp_path: Path) -> None:
    """The first text block of a page is the output of its program."""
    ended = run(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == first_text(page_of(program))


@pytest.mark.slow
def test_the_durable_program_is_killed_and_does_not_repeat_its_first_step(tmp_path: Path) -> None:
    """The second process continues after the last committed step."""
    [program] = [each for each in PROGRAMS if each.stem == KILLED]
    killed, resumed = run(program, tmp_path), run(program, tmp_path)
    assert (killed.returncode, resumed.returncode) == (-signal.SIGKILL, 0), resumed.stderr
    assert [killed.stdout, resumed.stdout] == TEXT.findall(page_of(program))[:2]


def test_a_worker_executes_the_run_that_the_web_process_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The web process returns 202 and reads the output that a worker committed."""
    [program] = [each for each in PROGRAMS if each.stem == SERVED]
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    with TestClient(names["app"]) as web:
        submitted = web.post("/tickets", params={"message": "a kettle"})
        assert submitted.status_code == 202
        address = f"/tickets/{submitted.json()['run_id']}"
        assert web.get(address).json()["output"] is None
        trio.run(work, names["flujo"], submitted.json()["run_id"])
        assert web.get(address).json() == json.loads(first_text(page_of(program)))


@pytest.mark.parametrize(("page", "blocks"), [("install", 1), ("quickstart", 2), ("concepts", 1)])
def test_a_page_of_the_start_shows_the_output_of_its_snippets(
    page: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snippets of a page, run in order, print its text blocks."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for code in RUN.findall(text):
        exec(code, names)
    assert capsys.readouterr().out == "".join(TEXT.findall(text)[:blocks])


TABS = re.compile(r'^=== "(.*)"$', re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "tabs"),
    [
        ("install", {"OpenAI", "Anthropic", "Google", "Ollama (local)"}),
        ("tutorial/2-model", {"Script", "asyncio, FastAPI", "trio", "Jupyter"}),
        ("tutorial/6-durable", {"SQLite", "Postgres", "Memory"}),
        ("production/reference-architecture", {"Compose", "Kubernetes", "systemd"}),
    ],
)
def test_a_page_has_a_tab_for_each_variant(page: str, tabs: set[str]) -> None:
    """Providers, event loops, stores and platforms are tabs of one page, not pages."""
    assert tabs <= {*TABS.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_tutorial_opens_with_its_use_and_ends_with_next_pages(page: Path) -> None:
    """The first sentence is what a reader can do; code and its result follow, and two or three next pages end it."""
    _, first, *_, last = page.read_text(encoding="utf-8").strip().split("\n\n")
    assert first.startswith("You can ")
    assert last.startswith("Next: ")
    assert last.count("](") in (2, 3)


async def work(flujo: object, run_id: str) -> None:
    async with flujo.worker():  # type: ignore[attr-defined]
        await trio.to_thread.run_sync(RunClient("sqlite:///desk.db").wait, run_id, 30)
