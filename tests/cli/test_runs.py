"""`flujo-actors runs`: stored runs, looked at and handled from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, RunClient, Step
from flujo_actors._cli.entry import main
from flujo_actors._cli.values import answers, moment, seconds
from flujo_actors.errors import DeclarationError


async def shout(text: str) -> str:
    return text.upper()


async def fail(_: object) -> None:
    raise ValueError("no\x1b[2J way")


ASKING = Step("shout", shout) >> Step.human_in_the_loop("approve", "Publish?", input_schema=bool)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of runs that the environment names."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("FLUJO_STORE", url)
    return url


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_runs_are_listed_for_people_and_programs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Latest change first, by status, pipeline, time and text; nothing but the list on stdout."""
    Flujo(Step("shout", shout), store=store).run("a", run_id="tea-1")
    Flujo(ASKING, store=store).run("a", run_id="tea-2")
    code, out, _ = called(capsys, "runs", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["RUN", "tea-2", "tea-1"]
    for wanted, found in (
        (["--status", "paused"], ["tea-2"]),
        (["--pipeline", "shout"], ["tea-1"]),
        (["--search", "APPROVE"], ["tea-2"]),
        (["--limit", "1"], ["tea-2"]),
        (["--since", "1h"], ["tea-2", "tea-1"]),
    ):
        code, out, _ = called(capsys, "runs", "list", "--json", *wanted)
        data = json.loads(out)
        assert (code, data["schema_version"], [run["run_id"] for run in data["runs"]]) == (0, 1, found)
    page = json.loads(called(capsys, "runs", "list", "--json", "--limit", "1")[1])
    rest = json.loads(called(capsys, "runs", "list", "--json", "--cursor", page["cursor"])[1])
    assert [run["run_id"] for run in rest["runs"]] == ["tea-1"]


def test_a_run_is_shown_as_a_tree_now_and_at_a_record(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed and why, without what a terminal would obey; and as one document."""
    Flujo(Step("shout", shout) >> Step("fail", fail), store=store).run("a", run_id="r")
    code, out, _ = called(capsys, "runs", "show", "r")
    assert code == 0
    assert "✓ shout" in out
    assert "✗ fail" in out
    assert "no\\x1b[2J way" in out
    assert "\x1b" not in out
    code, out, _ = called(capsys, "runs", "show", "r", "--at", "2")
    assert "✗" not in out
    data = json.loads(called(capsys, "runs", "show", "r", "--json")[1])
    assert (data["schema_version"], data["status"], data["run"]["run_id"]) == (1, "failed", "r")
    assert [(step["path"], step["status"]) for step in data["steps"]] == [("shout", "success"), ("fail", "failure")]


def test_a_question_is_listed_and_answered_once(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong answer is 2 and the question stays, a right one 0, a second one 4; then the run goes on."""
    flujo = Flujo(ASKING, store=store)
    token = str(flujo.run("a", run_id="r").state_token)
    assert called(capsys, "runs", "questions")[1] == f"{token}  Publish?\n"
    [asked] = json.loads(called(capsys, "runs", "questions", "--json")[1])["questions"]
    assert (asked["run_id"], asked["state_token"]) == ("r", token)
    code, out, err = called(capsys, "runs", "answer", token, "maybe")
    assert (code, out) == (2, "")
    assert "approve" in err
    assert called(capsys, "runs", "answer", token, "true")[0] == 0
    assert called(capsys, "runs", "answer", token, "true")[0] == 4
    assert flujo.resume("r").output is True
    assert called(capsys, "runs", "questions")[:2] == (0, "")


@pytest.mark.parametrize("command", [["show"], ["tail"], ["cancel"], ["delete", "--yes"]])
def test_a_run_that_is_not_there_is_5(store: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever was to be done with it."""
    code, out, err = called(capsys, "runs", command[0], "nobody", *command[1:])
    assert (code, out) == (5, "")
    assert "nobody" in err


def test_an_answer_to_a_run_that_is_gone_is_5(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its token was right once; what is missing is the run."""
    token = str(Flujo(ASKING, store=store).run("a", run_id="r").state_token)
    assert called(capsys, "runs", "cancel", "r")[0] == 0
    assert called(capsys, "runs", "delete", "r", "--yes")[0] == 0
    code, out, err = called(capsys, "runs", "answer", token, "true")
    assert (code, out) == (5, "")
    assert "'r'" in err


def test_a_run_that_has_ended_is_tailed_with_its_own_code(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """0 completed, 1 failed, 3 paused; as JSON lines they are the journal."""
    Flujo(Step("shout", shout), store=store).run("a", run_id="good")
    Flujo(Step("fail", fail), store=store).run("a", run_id="bad")
    token = Flujo(ASKING, store=store).run("a", run_id="asks").state_token
    assert called(capsys, "runs", "tail", "good")[0] == 0
    assert called(capsys, "runs", "tail", "bad")[0] == 1
    code, out, err = called(capsys, "runs", "tail", "asks")
    assert (code, out) == (3, "")
    assert str(token) in err
    rows = [json.loads(line) for line in called(capsys, "runs", "tail", "good", "--json")[1].splitlines()]
    records = RunClient(store).records("good")
    assert [(row["seq"], row["kind"], row["path"], row["at"]) for row in rows] == [
        (record.seq, record.kind, record.path, record.at) for record in records
    ]


def test_runs_are_cancelled_and_deleted(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Deleting asks first, and where nobody can be asked it has to be said; a dry run changes nothing."""
    Flujo(ASKING, store=store).run("a", run_id="r")
    assert called(capsys, "runs", "cancel", "r", "--reason", "too late")[0] == 0
    assert RunClient(store).state("r").feedback == "too late"
    assert called(capsys, "runs", "delete", "r")[0] == 2
    assert called(capsys, "runs", "delete", "r", "--dry-run")[0] == 0
    assert RunClient(store).get("r").status == "aborted"
    assert called(capsys, "runs", "delete", "r", "--yes")[0] == 0
    assert RunClient(store).list() == []


def test_old_runs_are_pruned(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that have ended, and not those that wait for somebody."""
    Flujo(Step("shout", shout), store=store).run("a", run_id="done")
    Flujo(ASKING, store=store).run("a", run_id="asks")
    assert called(capsys, "runs", "prune", "--older-than", "30d", "--yes")[0] == 0
    assert len(RunClient(store).list()) == 2
    assert "1 runs" in called(capsys, "runs", "prune", "--older-than", "0s", "--dry-run")[2]
    assert called(capsys, "runs", "prune", "--older-than", "0s", "--yes")[0] == 0
    assert [run.run_id for run in RunClient(store).list()] == ["asks"]


def test_a_store_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the option, the environment or the settings; a wrong one is refused without its password."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLUJO_STORE", raising=False)
    code, _, err = called(capsys, "runs", "list")
    assert code == 2
    assert "--store" in err
    code, _, err = called(capsys, "runs", "list", "--store", "mysql://me:hush@host/db")
    assert code == 2
    assert "hush" not in err
    (tmp_path / "flujo.toml").write_text('store = "sqlite:///other.db"\n')
    assert called(capsys, "runs", "list")[0] == 0


@pytest.mark.parametrize(("text", "span"), [("90s", 90), ("15m", 900), ("2h", 7200), ("30d", 2592000), ("1w", 604800)])
def test_spans_of_time_are_read(text: str, span: float) -> None:
    """As people write them."""
    assert seconds(text) == span
    assert moment(text, now=1e9) == 1e9 - span


@pytest.mark.parametrize("text", ["", "soon", "-3", "3 years", "inf", "nan", "1e999"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    """With examples."""
    with pytest.raises(DeclarationError, match="30d"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "schema", "meant"),
    [
        ("true", {"type": "boolean"}, [True, "true"]),
        ("yes", {"type": "boolean"}, [True, "yes"]),
        ("5", {"type": "string"}, ["5", 5]),
        ("5", {"type": "integer"}, [5, "5"]),
        ("five", None, ["five"]),
        ('{"a": 1}', None, [{"a": 1}, '{"a": 1}']),
    ],
)
def test_an_answer_means_what_the_question_wants(text: str, schema: Any, meant: list[Any]) -> None:
    """JSON first, or text first where text is wanted."""
    assert answers(text, schema) == meant
