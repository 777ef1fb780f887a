"""`flujo-actors eval`: exit codes, reports, and the line that continues it."""

from __future__ import annotations

import json
import os
import signal
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from flujo_actors import RunClient, SqliteStore
from flujo_actors._api.cli.entry import main
from kit import preloaded

pytest.importorskip("pydantic_evals", reason="needs the extra `evals`: make test-evals")

APP = """
import os
from dataclasses import dataclass

import anyio
from pydantic_evals.evaluators import Evaluator

from flujo_actors import Flujo, Pipeline, Step


async def double(data):
    return data * 2


async def hold(data):
    os.write(1, b"held\\n")
    await anyio.sleep_forever()


@dataclass
class Small(Evaluator):
    limit: int = 3

    def evaluate(self, ctx):
        return ctx.output < self.limit


small = Small(limit=100)
pipeline = Pipeline([Step("double", double)], name="doubles")
holding = Step("hold", hold)
"""
SET = """
name: numbers
cases:
- {name: one, inputs: 1, expected_output: 2}
- {name: two, inputs: 2, expected_output: 4}
evaluators: [EqualsExpected]
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an application and a dataset."""
    (tmp_path / "evaluated_app.py").write_text(APP)
    (tmp_path / "set.yaml").write_text(SET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evaluated_app", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def evaluated(*options: str) -> int:
    return main(["eval", "evaluated_app:pipeline", "set.yaml", "--store", "sqlite:///runs.db", *options])


def test_the_report_is_written_to_stdout_and_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress goes to stderr; the JSON is a baseline of the next evaluation."""
    assert evaluated("--run-id", "v1", "--json", "--junit", "r.xml", "--markdown", "r.md") == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert (data["run_id"], data["passed"], len(data["cases"])) == ("v1", True, 2)
    assert "2 of 2 case runs are judged" in said.err
    suite = ElementTree.parse(project / "r.xml").getroot()[0]
    assert [case.get("name") for case in suite] == ["one", "two"]
    assert "| pass | 2 | 1 |" in (project / "r.md").read_text()
    (project / "v1.json").write_text(said.out)
    assert evaluated("--run-id", "v2", "--baseline", "v1.json", "--gate", "pass>=1x") == 0
    assert "compared with v1" in capsys.readouterr().out
    assert RunClient(SqliteStore(project / "runs.db")).evaluation("v2").passed


def test_a_gate_on_an_unknown_score_prints_the_report(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    """The cases ran: their results are printed before the error."""
    assert evaluated("--run-id", "v1", "--gate", "score.tone>=1", "--json", "--junit", "r.xml") == 2
    seen = capsys.readouterr()
    assert "there is no score 'tone' in evaluation 'v1'" in seen.err
    data = json.loads(seen.out)
    assert (len(data["cases"]), data["passed"]) == (2, False)
    assert (project / "r.xml").is_file()


def test_a_report_that_cannot_be_written_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluation is printed and stored all the same, and a report of before is never left empty."""
    assert evaluated("--run-id", "v1", "--junit", "missing/r.xml") == 2
    seen = capsys.readouterr()
    assert "missing/r.xml cannot be written: No such file or directory" in seen.err
    assert "v1" in seen.out


def test_a_gate_that_does_not_hold_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    """And so is a case that did not pass, without gates."""
    assert evaluated("--gate", "pass<0.5") == 1
    assert 'FAIL gate "pass<0.5" does not hold: 1' in capsys.readouterr().out
    assert evaluated("--evaluators", "evaluated_app:Small") == 1
    assert evaluated("--evaluators", "evaluated_app:small") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gate", "pass>0.9 or x"], "'or' is not known here"),
        (["--gate", "cost<=1.1x"], "needs a baseline"),
        (["--baseline", "v0"], "v0"),
        (["--baseline", "evaluated_app.py"], "cannot be read as an evaluation"),
        (["--evaluators", "evaluated_app:double"], "evaluators must be evaluators"),
        (["--only", "none*"], "matches no case"),
        (["--queue", "evals", "--store", ""], "queue needs a store"),
    ],
)
def test_what_cannot_start_is_exit_code_2(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With one line on stderr."""
    code = main(["eval", "evaluated_app:pipeline", "set.yaml", *options])
    assert (code, message in capsys.readouterr().err) == (2, True)


def test_another_dataset_under_the_same_id_is_exit_code_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing runs."""
    assert evaluated("--run-id", "v1") == 0
    (project / "set.yaml").write_text(SET.replace("inputs: 2", "inputs: 3"))
    assert evaluated("--run-id", "v1") == 2
    assert "case 'two' changed. Use another run_id." in capsys.readouterr().err


def test_only_some_cases_can_be_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    """By a glob of their names."""
    assert evaluated("--only", "t*", "--json") == 0
    assert [case["name"] for case in json.loads(capsys.readouterr().out)["cases"]] == ["two"]


def test_without_the_extra_the_command_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    monkeypatch.setitem(sys.modules, "pydantic_evals.evaluators", None)
    assert main(["eval", "set_without:pipeline", "set.yaml"]) == 2
    capsys.readouterr()
    (Path("plain_app.py")).write_text("from flujo_actors import Step\npipeline = Step('a', str)\n")
    assert main(["eval", "plain_app:pipeline", "set.yaml"]) == 2
    assert "flujo.evaluate needs pydantic-evals: pip install 'flujo-actors[evals]'" in capsys.readouterr().err


def test_without_a_store_a_signal_has_no_line_that_continues(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is kept: the line names the option that keeps it."""
    (project / "stopped_app.py").write_text(
        "import os, signal, anyio\nfrom flujo_actors import Step\n\n"
        "async def stopped(data):\n    os.kill(os.getpid(), signal.SIGTERM)\n    await anyio.sleep_forever()\n\n"
        "pipeline = Step('stopped', stopped)\n"
    )
    assert main(["eval", "stopped_app:pipeline", "set.yaml", "--only", "one"]) == 143
    assert capsys.readouterr().err.endswith(
        "nothing is kept without a store: with --store URL, an evaluation can be continued\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_signal_ends_it_with_the_line_that_continues_it(project: Path) -> None:
    """And another process gets exit code 4 meanwhile."""
    arguments = ["eval", "evaluated_app:holding", "set.yaml", "--store", "sqlite:///runs.db"]
    command = [sys.executable, "-m", "flujo_actors", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FLUJO_")}
    with preloaded.Popen(
        [*command, "--run-id", "v1"],
        cwd=project,
        env=environ,
        text=True,
        stdout=preloaded.PIPE,
        stderr=preloaded.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert main([*arguments, "--run-id", "v1"]) == 4
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=300)
    assert child.returncode == 143
    assert "continue it: flujo-actors eval evaluated_app:holding set.yaml" in said
