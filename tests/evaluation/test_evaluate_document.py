"""The pages about evaluations and their example, which need the extra `evals`."""

from __future__ import annotations

import shlex
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


def test_every_snippet_of_the_rules_runs() -> None:
    """Its gates hold, and show what they measured."""
    [snippet] = snippets(ROOT / "docs" / "reference" / "evaluation-rules.md")
    exec(compile(snippet.code, "evaluation-rules.md", "exec"), {"__name__": "snippet"})


def test_the_command_in_ci_has_only_known_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with 0 and writes its reports; the baseline of the page is made by its second command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMMIT", "4f2c91")
    (tmp_path / "ci_app.py").write_text("from flujo_actors import Step\npipeline = Step('a', str)\n", encoding="utf-8")
    cases = "".join(f"- {{name: c{i}, inputs: {i}, expected_output: '{i}'}}\n" for i in range(10))
    (tmp_path / "cases.yaml").write_text(f"cases:\n{cases}evaluators: [EqualsExpected]\n", encoding="utf-8")
    text = (ROOT / "docs" / "how-to" / "evaluate-in-ci.md").read_text(encoding="utf-8")
    gated, baseline = (part.split("```")[0].replace("app:", "ci_app:") for part in text.split("```bash\n")[1:3])
    for command in (baseline, gated):
        script = command.replace("flujo-actors", f"{shlex.quote(sys.executable)} -m flujo_actors", 1)
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert 'ok   gate "cost<=1.1x" holds: 0' in done.stdout
    assert (tmp_path / "evals.xml").exists()
    assert "| cost\\<=1.1x | yes | 0 |" in (tmp_path / "evals.md").read_text(encoding="utf-8")


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
