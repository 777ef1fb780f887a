"""The guide to evaluations and its example, which need the extra `evals`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flujo_actors import Flujo

pytest.importorskip("pydantic_evals", reason="needs the extra `evals`: make test-evals")

from examples.test_documents import snippets

ROOT = Path(__file__).parents[2]


def test_every_snippet_of_the_guide_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From top to bottom, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    found = list(snippets(ROOT / "docs" / "evaluate.md"))
    assert len(found) == 2
    for snippet in found:
        exec(compile(snippet.code, "evaluate.md", "exec"), names)
    flujo, short = names["flujo"], names["Short"]
    assert isinstance(flujo, Flujo)
    assert isinstance(short, type)
    text = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    Path("cases.yaml").write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    evaluated = flujo.evaluate("cases.yaml", evaluators=[short], run_id="of a file")
    assert (evaluated.passed, len(evaluated.cases), evaluated.average("score.length")) == (True, 2, 9.5)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_example_compares_two_versions() -> None:
    """The second passes, and is released."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "dataset_evaluation.py")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "v1: 40% of the cases pass" in done.stdout
    assert done.stdout.endswith("release it\n")
