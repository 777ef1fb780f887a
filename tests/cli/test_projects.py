"""`init`, `show` and `schema`: from an empty directory to a pipeline that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from cli.test_validate import code, run
from flujo_actors import Flujo, lint, load_blueprint
from flujo_actors._api.cli.entry import main


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_new_project_is_clean_and_runs_offline(place: Path) -> None:
    """Not even a note is left to say."""
    result = run("init", "demo")
    assert code(result) == 0
    assert "flujo-actors validate" in result.stderr
    assert (
        (place / "demo" / "pipeline.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=blueprint.schema.json\n")
    )
    assert lint(place / "demo" / "pipeline.yaml") == []
    done = Flujo(load_blueprint(place / "demo" / "pipeline.yaml")).run("the tides")
    assert done.success, done.feedback
    assert done.output.endswith("words)")
    sys.modules.pop("steps", None)


@pytest.mark.slow
def test_the_test_of_a_new_project_passes(place: Path) -> None:
    """As whoever made it would run it."""
    run("init", "demo")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "demo"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=place,
    )
    assert done.returncode == 0, done.stdout


def test_nothing_is_overwritten_unasked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --force it is; --dry-run writes nothing."""
    (place / "steps.py").write_text("mine = 1\n")
    assert main(["init"]) == 2
    assert "steps.py in . would be overwritten" in capsys.readouterr().err
    assert sorted(each.name for each in place.iterdir()) == ["steps.py"]
    assert main(["init", "--dry-run"]) == 0
    assert "would write pipeline.yaml" in capsys.readouterr().out
    assert (place / "steps.py").read_text() == "mine = 1\n"
    assert main(["init", "--force"]) == 0
    assert "count_words" in (place / "steps.py").read_text()


def test_the_schema_is_printed_or_written(place: Path) -> None:
    """It is a JSON Schema, and accepts what init writes."""
    printed = json.loads(run("schema").stdout)
    assert printed["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert main(["schema", "-o", "s.json"]) == 0
    assert json.loads((place / "s.json").read_text()) == printed
    jsonschema_rs.validator_for(printed)


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("tree", "demo\n├─ draft: agents.writer\n"),
        ("mermaid", "flowchart TD\n"),
        ("dot", "digraph "),
        ("svg", "<svg "),
        ("json", "{"),
    ],
)
def test_a_blueprint_is_drawn_without_importing(place: Path, kind: str, begins: str) -> None:
    """steps.py is never loaded."""
    run("init")
    (place / "steps.py").write_text("raise RuntimeError('imported')\n")
    result = run("show", "--format", kind)
    assert result.stdout.startswith(begins)


def test_a_pipeline_of_python_is_drawn_and_exported(place: Path) -> None:
    """By file and name."""
    (place / "mine.py").write_text(
        "from flujo_actors import Step\nasync def same(x): return x\npipeline = Step('a', same) >> Step('b', same)\n"
    )
    assert "├─ a: same" in run("show", "mine.py:pipeline").stdout
    assert "uses: mine:same" in run("show", "mine.py:pipeline", "--format", "yaml").stdout
    sys.modules.pop("mine", None)


def test_resolved_shows_what_was_promoted(place: Path) -> None:
    """The schema of the agent, in its step."""
    (place / "p.yaml").write_text(
        "agents: {clerk: {model: test, output_schema: {type: object, properties: {n: {type: integer}}}}}\n"
        "steps:\n  - {name: read, uses: agents.clerk}\n"
    )
    assert "[auto: " in run("show", "p.yaml", "--resolved").stdout
    (step,) = json.loads(run("show", "p.yaml", "--resolved", "--format", "json").stdout)["steps"]
    assert step["processing"]["schema"] == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert "processing" not in run("show", "p.yaml", "--format", "json").stdout
    shown = run("show", "p.yaml", "--resolved", "--format", "yaml").stdout
    assert "structured_output: auto" in shown
    assert shown.count("type: integer") == 2


def test_what_cannot_be_drawn_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and where it is wrong."""
    (place / "p.yaml").write_text("steps:\n  - {name: one}\n")
    assert main(["show", "p.yaml"]) == 2
    assert "p.yaml:2:6: error V-A1" in capsys.readouterr().err
    assert main(["show", "nothing.py:x"]) == 2
