"""`flujo-actors runs`: stored runs, looked at and handled from the command line."""

from __future__ import annotations

import getpass
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from flujo_actors import Flujo, RunClient, Step, make_agent_async
from flujo_actors._api.cli import runs_command
from flujo_actors._api.cli.entry import main
from flujo_actors._api.cli.run_filters import answers, epoch_seconds, seconds
from flujo_actors.errors import DeclarationError
from flujo_actors.testing import Billed, CallTool, scripted_model


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


def test_a_command_without_a_store_or_a_run_names_the_option_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is an instruction: options by name, no questions to the reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLUJO_STORE", raising=False)
    for arguments in (["runs", "list"], ["page"]):
        assert "no store is named: pass --store URL, or set FLUJO_STORE" in called(capsys, *arguments)[2]
    assert "no run is selected: pass run ids" in called(capsys, "runs", "export", "--store", "sqlite:///r.db")[2]


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


def test_a_waiting_run_is_shown_with_usage_question_options_and_deadline(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The facts of the page's inbox, and the command that answers."""
    prices = {"usage": {"prices": {"scripted": {"input_usd": 3.0, "output_usd": 15.0}}}}
    model = scripted_model(Billed("tea", input_tokens=1_000, output_tokens=200))
    asks = Step.approval("approve", "Publish?", to="editors", timeout_s=3600)
    Flujo(Step("write", make_agent_async(model)) >> asks, store=store, settings=prices).run("a", run_id="r")
    _, out, _ = called(capsys, "runs", "show", "r")
    lines = out.splitlines()
    assert any("write" in line and "1,200 tok" in line and "0.0060 $" in line for line in lines)
    assert "asks editors: Publish?" in lines
    assert "options: approve, reject, defer" in lines
    assert lines[-2].startswith("due ")
    assert lines[-1].startswith("answer with: flujo-actors runs answer r:")


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


def test_questions_are_filtered_and_answered_by_option(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a comment and the name of the answering person; the login name is the default."""
    flujo = Flujo(Step.approval("boss", "Pay?", to="ada"), store=store)
    for run_id in ("r", "s"):
        flujo.run(1, run_id=run_id)
    Flujo(ASKING, store=store).run("a", run_id="t")
    listed = json.loads(called(capsys, "runs", "questions", "--to", "ada", "--limit", "1", "--json")[1])["questions"]
    assert [(each["run_id"], each["kind"]) for each in listed] == [("s", "approval")]
    [asked] = json.loads(called(capsys, "runs", "questions", "--run", "r", "--json")[1])["questions"]
    token = asked["state_token"]
    assert asked["schema"]["required"] == ["option"]
    assert called(capsys, "runs", "questions", "--label", "tenant=7")[1] == ""
    assert called(capsys, "runs", "answer", token)[0] == 2
    code, _, err = called(capsys, "runs", "answer", token, "--json", "{")
    assert (code, "--json is not JSON" in err) == (2, True)
    assert called(capsys, "runs", "answer", token, "reject", "--comment", "no money", "--by", "ada")[0] == 0
    error: Any = flujo.resume("r").error
    assert (error.decision.by, error.decision.comment) == ("ada", "no money")
    assert called(capsys, "runs", "answer", listed[0]["state_token"], "approve")[0] == 0
    assert flujo.resume("s").step_history[0].metadata["decision"].by == getpass.getuser()


def test_arguments_of_a_tool_call_are_changed_one_by_one(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The others stay as the model requested them."""
    done: list[Any] = []
    agent: Agent[None, str] = Agent(scripted_model(CallTool("refund", {"to": "ada", "amount": 900}), "ok"))

    @agent.tool_plain(requires_approval=True)
    async def refund(to: str, amount: int) -> str:
        done.append((to, amount))
        return "refunded"

    flujo = Flujo(Step("help", agent), store=store)
    token = str(flujo.run("money back", run_id="r").state_token)
    code, _, err = called(capsys, "runs", "answer", token, "approve", "--set", "amount=x")
    assert (code, "arguments.amount" in err) == (2, True)
    assert called(capsys, "runs", "answer", token, "approve", "--set", "amount=100")[0] == 0
    flujo.resume("r")
    assert done == [("ada", 100)]


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


def test_a_tailed_run_is_answered_in_the_terminal(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer is refused with its reason and asked again; a right one continues the run."""
    flujo = Flujo(ASKING, store=store)
    flujo.run("a", run_id="asks")
    following = runs_command.follow

    def follow(*given: Any, **named: Any) -> int:
        if RunClient(store).get("asks").state != "waiting":
            flujo.resume("asks")
        return following(*given, **named)

    monkeypatch.setattr(runs_command, "follow", follow)
    monkeypatch.setattr("sys.stdin", io.StringIO("perhaps\nyes\n"))
    code, _, err = called(capsys, "runs", "tail", "asks", "--answer")
    assert code == 0
    assert "perhaps" in err
    assert RunClient(store).get("asks").state == "completed"


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
    assert "would delete 1 run\n" in called(capsys, "runs", "prune", "--older-than", "0s", "--dry-run")[2]
    assert called(capsys, "runs", "prune", "--older-than", "0s", "--yes")[0] == 0
    assert [run.run_id for run in RunClient(store).list()] == ["asks"]


@pytest.mark.parametrize("span", ["30", "0", "1.5"])
def test_a_span_needs_its_unit(store: str, capsys: pytest.CaptureFixture[str], span: str) -> None:
    """`prune --older-than 30` deletes nothing: days may be meant."""
    Flujo(Step("shout", shout), store=store).run("a", run_id="done")
    for arguments in (["runs", "prune", "--yes", "--older-than", span], ["runs", "list", "--since", span]):
        code, _, told = called(capsys, *arguments)
        assert (code, f"'{span}' has no unit: write 30d, 12h or 90s ({span}s are seconds)" in told) == (2, True)
    assert len(RunClient(store).list()) == 1


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "1e9", "5 minutes"])
@pytest.mark.parametrize("option", ["--grace", "--every"])
def test_seconds_of_a_worker_are_numbers_or_spans(
    store: str, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    """Anything else ends with code 2 before the target is loaded."""
    code, _, told = called(capsys, "worker", "nowhere:flujo", option, value)
    assert (code, "is no number of seconds: write 30, 30s or 5m" in told) == (2, True)
    assert "is no number of seconds" not in called(capsys, "worker", "nowhere:flujo", option, "5m")[2]


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
    assert epoch_seconds(text, now=1e9) == 1e9 - span


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


def test_runs_are_exported_and_imported(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To a file or standard output, and into another store once."""
    Flujo(ASKING, store=store).run("a", run_id="r")
    assert called(capsys, "runs", "export", "r", "-o", "r.jsonl")[0] == 0
    assert called(capsys, "runs", "export", "r")[1] == Path("r.jsonl").read_text()
    other = f"sqlite:///{tmp_path}/other.db"
    code, _, err = called(capsys, "runs", "import", "r.jsonl", "--store", other)
    assert (code, "imported 1 run, 0 existed already" in err) == (0, True)
    assert RunClient(other).get("r").status == "paused"
    assert called(capsys, "runs", "import", "r.jsonl", "--store", other)[0] == 4
    assert called(capsys, "runs", "import", "r.jsonl", "--store", other, "--if-exists", "skip")[0] == 0
    Path("r.jsonl").write_text("{")
    code, _, err = called(capsys, "runs", "import", "r.jsonl", "--store", other)
    assert (code, "line 1: " in err) == (2, True)


def test_runs_are_pruned_by_the_settings_or_a_label(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an age the retention settings decide; without both it is refused."""
    flujo = Flujo(Step("shout", shout), store=store)
    for name in ("a", "b", "c"):
        flujo.run("a", run_id=name, labels={"user": name})
    code, _, err = called(capsys, "runs", "prune", "--yes")
    assert (code, "pass --older-than 30d" in err) == (2, True)
    assert called(capsys, "runs", "prune", "--older-than", "0s", "--label", "user=b", "--yes")[0] == 0
    assert [run.run_id for run in RunClient(store).list()] == ["c", "a"]
    Path("flujo.toml").write_text('[retention]\ncompleted = "0s"\nkeep_last = 1\n')
    assert "would delete 1 run\n" in called(capsys, "runs", "prune", "--dry-run")[2]
    assert called(capsys, "runs", "prune", "--yes")[0] == 0
    assert [run.run_id for run in RunClient(store).list()] == ["c"]


def test_runs_are_labelled_and_found_by_labels(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Several labels must all match; a name alone matches any value."""
    Path("app.py").write_text(
        "from flujo_actors import Step\nasync def same(data):\n    return data\nstep = Step('s', same)\n"
    )
    for run_id, *labels in (("one", "tenant=7", "env=a=b"), ("two", "tenant=8")):
        given = [part for label in labels for part in ("--label", label)]
        assert called(capsys, "run", "app.py:step", "--input", "x", "--run-id", run_id, *given)[0] == 0
    for labels, found in (
        (["tenant=7"], ["one"]),
        (["tenant"], ["two", "one"]),
        (["tenant=7", "env=a=b"], ["one"]),
        (["tenant=8", "env"], []),
    ):
        given = [part for label in labels for part in ("--label", label)]
        runs = json.loads(called(capsys, "runs", "list", "--json", *given)[1])["runs"]
        assert [run["run_id"] for run in runs] == found
    assert runs == []
    assert json.loads(called(capsys, "runs", "list", "--json", "--limit", "1")[1])["runs"][0]["labels"] == {
        "tenant": "8"
    }
    assert "labels env=a=b tenant=7" in called(capsys, "runs", "show", "one")[1]
    code, _, told = called(capsys, "run", "app.py:step", "--label", "tenant")
    assert (code, "--label takes name=value" in told) == (2, True)
    assert called(capsys, "run", "app.py:step", "--label", "a b=c")[0] == 2


def filled(store: str) -> RunClient:
    """Two runs of each of two users: one failed, one that asks."""
    for user in ("ada", "bob"):
        Flujo(Step("fail", fail), store=store).run("a", run_id=f"{user}-failed", labels={"user": user})
        Flujo(ASKING, store=store).run("a", run_id=f"{user}-asks", labels={"user": user})
    return RunClient(store)


@pytest.mark.parametrize(
    ("command", "states"),
    [
        (["cancel"], {"ada-asks": "aborted", "ada-failed": "failed"}),
        (["retry"], {"ada-asks": "waiting", "ada-failed": "blocked"}),
        (["delete"], {}),
        (["delete", "--status", "failed"], {"ada-asks": "waiting"}),
        (["answer", "true"], {"ada-asks": "blocked", "ada-failed": "failed"}),
        (["answer", "--json", "true"], {"ada-asks": "blocked", "ada-failed": "failed"}),
    ],
)
def test_an_action_is_for_all_runs_of_a_filter(
    store: str, capsys: pytest.CaptureFixture[str], command: list[str], states: dict[str, str]
) -> None:
    """Its first line is the number of runs; a dry run ends there."""
    client = filled(store)
    found = 1 if "--status" in command else 2
    arguments = ["runs", *command, "--where", "--label", "user=ada"]
    code, out, _ = called(capsys, *arguments, "--dry-run")
    assert (code, out.splitlines()) == (0, [f"would {command[0]} {found} runs"])
    assert client.get("ada-asks").state == "waiting"
    code, out, err = called(capsys, *arguments)
    assert (code, out.splitlines()[0]) == (2, f"would {command[0]} {found} runs")
    assert "Pass --yes without a terminal" in err
    code, out, _ = called(capsys, *arguments, "--yes")
    assert (code, out.splitlines()) == (0, [f"would {command[0]} {found} runs"])
    after = {info.run_id: info.state for info in client.list(labels={"user": "ada"})}
    assert after == states
    assert client.get("bob-asks").state == "waiting"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["cancel", "--where", "--yes"], "this filter matches every run"),
        (["cancel", "ada-asks", "--where", "--label", "user=ada"], "pass one of both"),
        (["cancel", "--label", "user=ada"], "pass --where, or no filter"),
        (["delete"], "name a run, or pass --where and a filter"),
        (["delete", "--where", "--since", "7"], "has no unit"),
    ],
)
def test_an_unclear_selection_changes_nothing(
    store: str, capsys: pytest.CaptureFixture[str], command: list[str], told: str
) -> None:
    """Exit code 2, with the remedy."""
    client = filled(store)
    before = client.list()
    code, _, err = called(capsys, "runs", *command)
    assert (code, told in " ".join(err.split())) == (2, True)
    assert client.list() == before


def test_all_runs_are_selected_by_a_flag(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And a limit bounds them."""
    client = filled(store)
    assert called(capsys, "runs", "delete", "--where", "--all", "--limit", "3", "--yes")[1] == "would delete 3 runs\n"
    assert len(client.list()) == 1


def test_totals_are_a_table_or_a_document(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By groups, of a period and of a label."""
    filled(store)
    code, out, _ = called(capsys, "runs", "totals", "--by", "status,label:user", "--since", "7d")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:5] == ["STATUS", "USER", "RUNS", "COMPLETED", "FAILED"]
    assert [line[:3] for line in lines[1:]] == [
        *(["failed", user, "1"] for user in ("ada", "bob")),
        *(["paused", user, "1"] for user in ("ada", "bob")),
    ]
    data = json.loads(called(capsys, "runs", "totals", "--by", "pipeline", "--label", "user=ada", "--json")[1])
    assert [(row["key"], row["runs"], row["open"]) for row in data["totals"]] == [
        ({"pipeline": "fail"}, 1, 0),
        ({"pipeline": "shout >> approve"}, 1, 1),
    ]
    assert called(capsys, "runs", "totals", "--by", "week")[0] == 2
    assert called(capsys, "runs", "totals", "--until", "1d")[1] == ""


def test_runs_are_exported_by_a_filter(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --where; run ids and a filter exclude one another."""
    flujo = Flujo(Step("shout", shout), store=store)
    for name in ("a", "b"):
        flujo.run("a", run_id=name, labels={"user": name})
    assert called(capsys, "runs", "export", "--where", "--label", "user=b", "-o", "b.jsonl")[0] == 0
    assert '"id":"b"' in Path("b.jsonl").read_text()
    assert '"id":"a"' not in Path("b.jsonl").read_text()
    assert called(capsys, "runs", "export", "a", "--where", "--label", "user=b")[0] == 2
    assert called(capsys, "runs", "export")[0] == 2


def test_a_run_is_submitted_and_its_id_printed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For workers; a used id or key is handled as the options name it."""
    Path("app.py").write_text("from flujo_actors import Step\nstep = Step('same', lambda data: data)\n")
    submit = ["runs", "submit", "app.py:step", "--input-json", "[1]", "--label", "tenant=7", "--queue", "gpu"]
    assert called(capsys, *submit, "--run-id", "o")[:2] == (0, "o\n")
    info = RunClient(store).get("o")
    assert (info.queue, info.labels, RunClient(store).state("o").input) == ("gpu", {"tenant": "7"}, [1])
    assert called(capsys, *submit, "--run-id", "o")[0] != 0
    assert called(capsys, *submit, "--run-id", "o", "--if-exists", "return")[:2] == (0, "o\n")
    first = called(capsys, *submit, "--singleton", "inbox")[1]
    assert called(capsys, *submit, "--singleton", "inbox")[1] == first
    assert called(capsys, *submit, "--singleton", "inbox", "--when-busy", "raise")[0] != 0
    other = called(capsys, *submit, "--singleton", "inbox", "--when-busy", "replace")[1]
    assert other != first
    assert RunClient(store).get(first.strip()).status == "aborted"
