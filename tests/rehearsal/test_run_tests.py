"""Run files as pytest tests, and the commands that replay and rehearse."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from rehearsed_agents import untyped

from flujo_actors import CorruptRecord, DeclarationError, Flujo, RunClient, RunExists, Step, StoreVersionError, testing
from flujo_actors._api.cli.entry import main
from flujo_actors.stores import MemoryStore

APP = """
from flujo_actors import Flujo, Step
from pathlib import Path

def more(n):
    with open(Path(__file__).parent / "effects", "a") as file:
        file.write("more\\\\n")
    return int(n) + 1

def flow(add=1):
    return Step("more", more) >> Step("total", lambda n: n + add, rehearse="live")

flujo = Flujo(flow())
changed = Flujo(flow(2))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an application, a store and two run files."""
    app = tmp_path / f"app_{tmp_path.name}.py"  # modules are imported once in a process
    app.write_text(APP, encoding="utf-8")
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    for number in (1, 2):
        command("run", f"{app}:flujo", "--input", str(number), "--store", store, "--run-id", f"r{number}")
    (tmp_path / "runs").mkdir()
    for number in (1, 2):
        RunClient(store).export(f"r{number}", tmp_path / "runs" / f"r{number}.flujo.jsonl")
    return tmp_path


def target(folder: Path, name: str) -> str:
    return f"{folder / f'app_{folder.name}.py'}:{name}"


def command(*arguments: str) -> int:
    return main(list(arguments))


def flow(add: int = 1) -> Flujo[Any, Any]:
    total: Any = lambda n: n + add  # noqa: E731
    return Flujo(Step("total", total, rehearse="live"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of one run."""
    store = MemoryStore()
    Flujo(flow().pipeline, store=store).run(1, run_id="r")
    return Path(RunClient(store).export("r", tmp_path / "r.flujo.jsonl"))


def test_a_run_file_is_a_test(file: Path) -> None:
    """It fails with the sentence of the difference; `flujo` may be a function."""
    testing.test_from_run(file, flow())()
    testing.test_from_run(file, flow)()
    with pytest.raises(pytest.fail.Exception, match=r"r.flujo.jsonl: different: step 'total' gave 3, recorded 2"):
        testing.test_from_run(file, flow(2))()


def test_a_folder_is_one_parametrized_test(file: Path) -> None:
    """By file name; an empty folder is refused, and pytest collects neither function."""
    made = testing.tests_from_runs(file.parent, flow())
    [mark] = made.pytestmark  # type: ignore[attr-defined]
    assert mark.kwargs["ids"] == ["r.flujo.jsonl"]
    made(file)
    with pytest.raises(pytest.fail.Exception):
        testing.tests_from_runs(file.parent, flow(2))(file)
    with pytest.raises(DeclarationError, match=r"there is no \*.flujo.jsonl"):
        testing.tests_from_runs("nothing", flow())
    assert not testing.test_from_run.__test__  # type: ignore[attr-defined]
    assert not testing.tests_from_runs.__test__  # type: ignore[attr-defined]


# --- run files --------------------------------------------------------------------------------------------


def test_a_run_file_has_a_header_records_and_a_checksum(file: Path) -> None:
    """Lines of JSON; bodies are objects."""
    header, *records, end = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert (header["flujo_run"], header["run_id"], header["records"]) == (1, "r", len(records))
    assert {"pipeline", "library"} <= header.keys()
    kinds = [header["kinds"][kind] for kind, *_ in records]
    assert (kinds, records[0][4]["input"]) == (["admitted", "settled", "ended"], 1)
    assert (end["end"], len(end["sha256"])) == (3, 64)


def test_an_imported_run_is_exported_with_equal_bytes(file: Path, tmp_path: Path) -> None:
    """It belongs to no process, and its id may be used once."""
    client = RunClient(f"sqlite:///{tmp_path / 'other.db'}")
    assert client.import_run(file) == "r"
    again = client.export("r", tmp_path / "again.flujo.jsonl")
    assert Path(again).read_bytes() == file.read_bytes()
    with pytest.raises(RunExists):
        client.import_run(file)
    assert client.import_run(file, "copy") == "copy"
    assert client.get("copy").status == "completed"


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda data: data[:-20], CorruptRecord, r"line 5 of r.flujo.jsonl: the file ends here"),
        (lambda data: data.replace(b'"input":1', b'"input":7'), CorruptRecord, "line 5 of r.flujo.jsonl: the checksum"),
        (lambda data: data.replace(b'"flujo_run":1', b'"flujo_run":9'), StoreVersionError, "upgrade it"),
        (lambda data: b"{}\n", CorruptRecord, "line 1 of r.flujo.jsonl: this is no header of a run file"),
    ],
)
def test_a_cut_changed_or_newer_file_is_refused(file: Path, change: Any, error: Any, reason: str) -> None:
    """Nothing is written then."""
    file.write_bytes(change(file.read_bytes()))
    client = RunClient(MemoryStore())
    with pytest.raises(error, match=reason):
        client.import_run(file)
    assert client.list() == []
    with pytest.raises(error, match=reason):
        flow().replay(file)


def signed(lines: list[str]) -> bytes:
    """Return a file of these lines with its end."""
    data = "".join(f"{line}\n" for line in lines).encode()
    end = {"end": len(lines) - 1, "sha256": hashlib.sha256(data).hexdigest()}
    return data + json.dumps(end).encode() + b"\n"


@pytest.mark.parametrize(
    ("number", "old", "new", "reason"),
    [
        (1, '"run_id":"r"', '"run_id":"s"', "its run_id is 's', that of its run 'r'"),
        (1, '"records":3,"lib', '"records":4,"lib', "its records is 4, that of its run 3"),
        (1, '"kinds":["', '"kinds":[7,"', "kinds must be a list of texts"),
        (1, '"settled"', '"pickled"', "its kind 'pickled' is not known"),
        (2, '"input":1', '"input":1e999', "Out of range float"),
        (3, "[4,0,", "[99,0,", "there is no kind 99"),
        (3, "[4,0,", "[4,5,", "the path before has no 5 characters"),
        (3, '"total",', '"total",1.5,', "a whole number, not 1.5"),
        (4, "{", "[4]{", "Expecting"),
        (4, "[", "[[],", "a record has five or six parts|kind must be a whole number"),
    ],
)
def test_a_well_signed_file_with_wrong_parts_is_refused(
    file: Path, number: int, old: str, new: str, reason: str
) -> None:
    """Nothing is written, whatever the file names."""
    *lines, _ = file.read_text(encoding="utf-8").splitlines()
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    file.write_bytes(signed(lines))
    client = RunClient(MemoryStore())
    with pytest.raises(CorruptRecord, match=rf"line \d of r.flujo.jsonl: .*({reason})"):
        client.import_run(file)
    assert client.list() == []


def test_a_file_with_named_fields_is_imported(file: Path) -> None:
    """The first form of record lines."""
    header, *records, _ = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    at_us, lines = header["run"]["created_us"], [json.dumps(header)]
    for seq, (kind, _, path, after, body) in enumerate(records, 1):
        at_us += after
        named = {"seq": seq, "kind": header["kinds"][kind], "path": path, "at_us": at_us, "body": {"v": 2, **body}}
        lines.append(json.dumps(named))
    old, client = file.with_name("old.flujo.jsonl"), RunClient(MemoryStore())
    old.write_bytes(signed(lines))
    client.import_run(old)
    assert Path(client.export("r", old)).read_bytes() == file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_a_file_is_hardly_longer_than_its_bodies(tmp_path: Path, steps: int) -> None:
    """2.19: also with thousands of short records, at most 1.2 times and 64 kB; times are as long as the run is slow."""
    store, one = MemoryStore(wall=lambda: 1_800_000_000.0), Step("first", str)
    inner: Any = one if steps == 1 else Step.sequence("part", one >> Step("second", str))
    Flujo(Step.map_over("each", inner), store=store).run(list(range(600)), run_id="r")
    bodies = sum(len(record.body.encode()) for record in store.read(untyped("r")))
    length = Path(RunClient(store).export("r", tmp_path / "r.flujo.jsonl")).stat().st_size
    assert length <= 1.2 * bodies + 2_000


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("new_id", [None, "copy"])
def test_a_paused_run_is_replayed_imported_and_answered(redact: bool, new_id: str | None, tmp_path: Path) -> None:
    """Its question has a token of the new run; the token is no secret."""
    ask: Any = Step.human_in_the_loop("ask", "How many?") >> Step("total", lambda n: int(n) + 1)
    store = MemoryStore()
    Flujo(ask, store=store).run("x", run_id="r")
    file = RunClient(store).export("r", tmp_path / "r.flujo.jsonl", redact=redact)
    assert Flujo(ask).replay(file).verdict == "same"
    other = Flujo(ask, store=f"sqlite:///{tmp_path / 'other.db'}")
    client = RunClient(f"sqlite:///{tmp_path / 'other.db'}")
    assert client.import_run(file, new_id) == (new_id or "r")
    [question] = client.prompts()
    assert other.resume(question.state_token, 5).output == 6
    again = RunClient(MemoryStore())
    again.import_run(file)
    assert Path(again.export("r", tmp_path / "r2.flujo.jsonl", redact=redact)).read_bytes() == Path(file).read_bytes()


@pytest.mark.parametrize(
    ("pauses", "reason"),
    [(5, "pauses must be a list of objects"), ([5], "pauses must be a list of objects"), ([{}], "'path' is missing")],
)
def test_wrong_pauses_are_refused_before_anything_is_written(file: Path, pauses: Any, reason: str) -> None:
    """Also in a file with a right checksum."""
    header, *records, end = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    header["run"]["pauses"] = pauses
    lines = [json.dumps(each) + "\n" for each in (header, *records)]
    end["sha256"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    file.write_text("".join(lines) + json.dumps(end) + "\n", encoding="utf-8")
    with pytest.raises(CorruptRecord, match=f"line 1 of r.flujo.jsonl: {reason}"):
        RunClient(MemoryStore()).import_run(file)


def test_the_size_of_a_file_is_bounded(file: Path) -> None:
    """By bytes and by records."""
    with pytest.raises(CorruptRecord, match="longer than 100 bytes"):
        RunClient(MemoryStore()).import_run(file, max_bytes=100)
    with pytest.raises(CorruptRecord, match="more than 2 records"):
        RunClient(MemoryStore()).import_run(file, max_records=2)


def test_a_file_is_redacted_unless_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redacted file is replayed, imported and compared after the same redactor."""
    monkeypatch.setenv("SHOP_API_KEY", "hunter2-hunter2")
    store = MemoryStore()
    echo: Any = lambda text: text  # noqa: E731
    flujo = Flujo(Step("echo", echo, rehearse="live") >> Step("last", str), store=store)
    flujo.run("the key is hunter2-hunter2", run_id="r")
    client = RunClient(store)
    assert b"hunter2" not in Path(client.export("r", tmp_path / "a.flujo.jsonl")).read_bytes()
    assert b"hunter2" in Path(client.export("r", tmp_path / "b.flujo.jsonl", redact=False)).read_bytes()
    assert flujo.replay(tmp_path / "a.flujo.jsonl").verdict == "same"
    assert flujo.replay(tmp_path / "b.flujo.jsonl").verdict == "same"


# --- commands ---------------------------------------------------------------------------------------------


def test_the_command_replays_runs_files_and_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes: 0 same, 1 not, 2 an empty folder, 5 no such run."""
    app, store = target(folder, "flujo"), f"sqlite:///{folder / 'runs.db'}"
    executed = (folder / "effects").read_text(encoding="utf-8")
    assert command("replay", app, "r1", "--store", store) == 0
    assert command("replay", app, str(folder / "runs")) == 0
    capsys.readouterr()
    assert command("replay", target(folder, "changed"), str(folder / "runs" / "r1.flujo.jsonl")) == 1
    assert "different: step 'total' gave 4, recorded 3" in capsys.readouterr().out
    (folder / "empty").mkdir()
    assert command("replay", app, str(folder / "empty")) == 2
    capsys.readouterr()
    assert command("replay", app, "r1", "gone", "--store", store) == 5
    assert capsys.readouterr().out == "r1: same\n"
    assert (folder / "effects").read_text(encoding="utf-8") == executed


def test_the_command_rehearses_the_ended_runs_of_a_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports are files; the text goes to standard output."""
    store, junit, markdown = f"sqlite:///{folder / 'runs.db'}", folder / "j.xml", folder / "m.md"
    options = ["--store", store, "--models", "recorded", "--at", "total"]
    reports = ["--junit", str(junit), "--markdown", str(markdown)]
    assert command("rehearse", target(folder, "flujo"), *options, *reports) == 0
    assert "2 same" in capsys.readouterr().out
    assert "<testcase" in junit.read_text(encoding="utf-8")
    assert markdown.read_text(encoding="utf-8").startswith("## Rehearsal: passed")
    assert command("rehearse", target(folder, "changed"), "r1", *options, "--json") == 1
    assert json.loads(capsys.readouterr().out)["counts"]["different"] == 1
    assert command("rehearse", target(folder, "changed"), "r1", *options, "--gate", "different<=1") == 0
    assert command("rehearse", target(folder, "flujo"), "r1", "--store", store) == 2
    assert command("rehearse", target(folder, "flujo"), "r1", "gone", *options) == 5
    assert command("rehearse", target(folder, "flujo"), "gone", *options, "--gate", "skipped==1") == 0
    assert command("rehearse", target(folder, "flujo"), "r1", "--models", "recorded", "--at", "gone") == 2


@pytest.mark.parametrize("verb", ["replay", "rehearse"])
def test_a_missing_file_or_an_empty_folder_cannot_start(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing runs, also of files that exist: the exit code is 2, and the error names the file."""
    app, empty, gone = target(folder, "flujo"), folder / "empty", folder / "runs" / "gone.flujo.jsonl"
    empty.mkdir()
    options = ["--models", "recorded"] if verb == "rehearse" else []
    assert command(verb, app, str(folder / "runs"), str(gone), *options) == 2
    assert capsys.readouterr() == ("", f"flujo-actors: there is no file {gone}\n")
    assert command(verb, app, str(empty), *options) == 2
    assert capsys.readouterr() == ("", f"flujo-actors: there is no *.flujo.jsonl in {empty}\n")


def test_a_rehearsal_without_any_run_cannot_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter that selects nothing must not pass a pipeline of CI."""
    options = ["--store", f"sqlite:///{folder / 'runs.db'}", "--models", "recorded", "--status", "failed"]
    assert command("rehearse", target(folder, "flujo"), *options) == 2
    assert capsys.readouterr() == ("", "flujo-actors: no ended run of the store is selected\n")


def test_one_run_is_exported_and_imported_by_command(folder: Path) -> None:
    """`runs export RUN -o FILE` and `runs import FILE`."""
    store, file = f"sqlite:///{folder / 'runs.db'}", folder / "one.flujo.jsonl"
    assert command("runs", "export", "r1", "-o", str(file), "--store", store) == 0
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["flujo_run"] == 1
    assert command("runs", "import", str(file), "--store", f"sqlite:///{folder / 'other.db'}") == 0
    assert RunClient(f"sqlite:///{folder / 'other.db'}").get("r1").status == "completed"
