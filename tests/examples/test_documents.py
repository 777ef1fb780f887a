"""Every Python snippet of the README and the documents is true: it runs, in order, as a reader would run it.

The snippets of one document share their names, so a later one may use what an earlier one declared. A snippet marked
`compile-only` needs something a test does not have, such as a server that serves for ever; it must still compile.
"""

import logging
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

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
            exec(code, names)


@pytest.mark.parametrize("place", range(len(list(snippets(README)))))
def test_a_snippet_of_the_readme_runs_by_itself(
    place: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever copies one of them into a file sees something, without having copied the others."""
    monkeypatch.chdir(tmp_path)
    exec(list(snippets(README))[place].code, {"__name__": "snippet"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_the_document_leads_somewhere(document: Path) -> None:
    """Links within the project name files that exist."""
    targets = [found["target"] for found in LINK.finditer(document.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_documents_have_snippets() -> None:
    """The README and the guide to steps show code, so that this file tests something."""
    shown = {document.name: len(list(snippets(document))) for document in DOCUMENTS}
    assert shown["README.md"] >= 1
    assert shown["steps.md"] >= 8
