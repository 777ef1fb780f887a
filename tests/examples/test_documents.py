"""Every Python snippet of the README and the documents is true: it runs, in order, as a reader would run it.

The snippets of one document share their names, so a later one may use what an earlier one declared. A snippet marked
`compile-only` needs something a test does not have, such as a server that serves for ever; it must still compile.
"""

import functools
import logging
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

from flujo_actors import DeclarationError

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
FENCED = re.compile(
    r"^(?P<indent> *)```python(?P<marks>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#]+)")


class Snippet(NamedTuple):
    code: str
    line: int
    runs: bool


def snippets(document: Path) -> Iterator[Snippet]:
    text = document.read_text(encoding="utf-8")
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        whole = "compile-only" not in found["marks"]
        yield Snippet(textwrap.dedent(found["code"]), line, runs=whole)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_snippet_of_the_document_runs(
    document: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader can copy the snippets from top to bottom, and they work."""
    caplog.set_level(logging.CRITICAL, logger="flujo_actors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets(document):
        code = compile("\n" * snippet.line + snippet.code, str(document), "exec")
        if snippet.runs:
            _run(code, names)


def _run(code: CodeType, names: dict[str, object]) -> None:
    """Run a snippet; skip the rest of its document if it needs a newer pydantic-ai than this one."""
    try:
        exec(code, names)
    except DeclarationError as error:
        if "need pydantic-ai-slim" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
def test_the_program_of_the_readme_is_killed_and_resumed_with_the_output_that_it_shows(tmp_path: Path) -> None:
    """The first process kills itself, the second prints the tokens of the first: no model is asked again."""
    [program] = snippets(README)
    (tmp_path / "tea.py").write_text(program.code, encoding="utf-8")
    run = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=240)
    killed = run([sys.executable, "-W", "error", "tea.py"])
    resumed = run([sys.executable, "-W", "error", "tea.py", "approve"])
    assert (killed.returncode, resumed.returncode, resumed.stderr) == (-signal.SIGKILL, 0, "")
    shown = f"$ python tea.py\n{killed.stdout}Killed\n$ python tea.py approve\n{resumed.stdout}```"
    assert shown in README.read_text(encoding="utf-8")


def test_the_program_of_the_readme_has_fifteen_lines() -> None:
    """Its heading is true, and the README is short."""
    [program] = snippets(README)
    assert len([line for line in program.code.splitlines() if line]) == 15
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_the_document_leads_somewhere(document: Path) -> None:
    """Links within the project name files that exist."""
    targets = [found["target"] for found in LINK.finditer(document.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("place", ["docs", "examples"])
def test_pages_replace_the_live_text_of_a_run(place: str) -> None:
    """A text event has the text so far: a page that appends it would repeat it."""
    files = [path for path in (ROOT / place).rglob("*") if path.suffix in {".md", ".py", ".html"}]
    assert [path.name for path in files if "textContent +=" in path.read_text(encoding="utf-8")] == []


def test_the_documents_have_snippets() -> None:
    """The README and the guide to steps show code, so that this file tests something."""
    shown = {document.name: len(list(snippets(document))) for document in DOCUMENTS}
    assert shown["README.md"] >= 1
    assert shown["steps.md"] >= 8
