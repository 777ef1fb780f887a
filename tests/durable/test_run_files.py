"""Export and import of runs: the same bytes in every store, and nothing half imported."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, RunClient, RunFilter, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors.errors import CorruptRecord, DeclarationError, RunExists, RunNotFound, StoreVersionError
from flujo_actors.stores import MemoryStore, SqliteStore, Store
from kit.durable_places import Place, PostgresPlace, SqlitePlace
from kit.other_processes import KILLED, in_another_process

HOSTILE = "why? \udc00\0\x1a'\"%\u2028é"


def twice(text: str) -> str:
    return text * 2


def fail(_: object) -> None:
    raise ValueError(HOSTILE)


def asking(store: Store) -> Flujo[Any, Any]:
    return Flujo(Step("twice", twice) >> Step.human_in_the_loop("ask", HOSTILE) >> Step("last", twice), store=store)


def fill(store: Store) -> str:
    """Store a paused, a failed and a completed run with a long body; return the open token."""
    paused = asking(store).run("a" * 70_000, run_id=f"paused {HOSTILE}")
    done = asking(store).run("b", run_id="done")
    asking(store).resume(done.state_token, "c")
    Flujo(Step("fail", fail), store=store).run("d", run_id="failed")
    assert paused.state_token is not None
    return paused.state_token


IDS = ["failed", "done", f"paused {HOSTILE}"]


def exported(store: Store, where: Any = IDS, **options: Any) -> bytes:
    file = io.BytesIO()
    report = RunClient(store).export(where, file, **options)
    assert report.bytes == len(file.getvalue())
    return file.getvalue()


def lines_of(file: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.splitlines()]


def test_an_imported_run_has_the_same_bytes_in_every_store(
    sqlite_place: SqlitePlace, postgres_place: PostgresPlace, tmp_path: Path
) -> None:
    """SQLite to Postgres to memory to SQLite; the open question is answered in the last one."""
    token = fill(sqlite_place.open())
    first = exported(sqlite_place.open())
    last = SqliteStore(tmp_path / "last.db", synchronous="OFF")
    for store in (postgres_place.open(), MemoryStore(), last):
        report = RunClient(store).import_runs(io.BytesIO(first))
        assert (report.runs, report.skipped) == (3, 0)
        assert exported(store) == first
        assert [run.run_id for run in RunClient(store).list(order="created")] == IDS
    result = asking(postgres_place.open()).resume(token, "yes")
    assert (result.status, result.output) == ("completed", "yesyes")
    assert RunClient(last).get(f"paused {HOSTILE}").status == "paused"
    RunClient(last).answer(token, "no")
    assert asking(last).resume(f"paused {HOSTILE}").output == "nono"
    last.close()


def test_a_run_file_is_ascii_json_with_counts_and_a_checksum(place: Place) -> None:
    """Header, runs by creation, records and open pauses; times are whole microseconds."""
    fill(place.open())
    file = exported(place.open())
    assert file.isascii()
    header, *rest, end = lines_of(file)
    assert header == {"flujo_export": 1, "record_format": 3, "redacted": False}
    runs = [line["run"] for line in rest if "run" in line]
    assert [run["id"] for run in runs] == [*reversed(IDS)]
    assert all(isinstance(run["created_us"], int) for run in runs)
    records = [line["record"] for line in rest if "record" in line]
    assert end["end"] == {"runs": 3, "records": len(records)}
    assert len([line for line in rest if "pause" in line]) == 1
    assert json.loads(records[0]["body"])["input"] == "a" * 70_000
    for line in file.splitlines():
        assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() == line


def test_an_exported_run_that_executes_ends_at_its_row(place: Place) -> None:
    """An open run is imported without its lease, and can be recovered."""
    store = place.open()

    def work(text: str) -> str:
        files.append(exported(store, "r"))
        return text

    files: list[bytes] = []
    Flujo(Step("twice", twice) >> Step("work", work), store=store).run("a", run_id="r")
    other = MemoryStore()
    RunClient(other).import_runs(io.BytesIO(files[0]))
    info = RunClient(other).get("r")
    assert (info.status, info.state) == ("running", "blocked")
    [result] = Flujo(Step("twice", twice) >> Step("work", str.upper), store=other).recover(mode="force")
    assert result.output == "AA"


def changed(file: bytes, old: bytes, new: bytes) -> bytes:
    assert old in file
    return file.replace(old, new, 1)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda file: b"", "line 1: the file ends here"),
        (lambda file: file[:-1], "the file ends here"),
        (lambda file: file[: len(file) // 2], "line "),
        (lambda file: b"".join(file.splitlines(keepends=True)[:-1]), "the file ends here; its last line is missing"),
        (
            lambda file: b"".join(file.splitlines(keepends=True)[:2] + file.splitlines(keepends=True)[3:]),
            "record 1 of run 'r' is missing",
        ),
        (lambda file: changed(file, b"VALUE", b"EULAV"), "the checksum does not match"),
        (lambda file: changed(file, b'"tokens":0', b'"tokens":1'), "the checksum does not match"),
        (lambda file: changed(file, b'"tokens":0', b'"tokens":NaN'), "line 2: NaN is no number of JSON"),
        (lambda file: changed(file, b'"tokens":0', b'"tokens":"0"'), "line 2: tokens must be a whole number"),
        (lambda file: changed(file, b'"retries":0', b'"retires":0'), "line 2: 'retries' is missing"),
        (lambda file: changed(file, b'"status":"', b'"status":"un'), "line 2: there is no status"),
        (lambda file: changed(file, b'"parent":null', b'"parent":"other"'), "line 2: the run of its parent 'other'"),
        (lambda file: changed(file, b'"kind":"admitted"', b'"kind":"magic"'), "line 3: its kind 'magic' is not known"),
        (lambda file: file + b"\n", "nothing may follow the end"),
        (lambda file: b"[" * 100_000 + b"\n", "line 1: "),
        (lambda file: b"{}\n", "line 1: this is no header of a run file"),
        (lambda file: b"\xff\xfe\n", "line 1: "),
    ],
)
def test_a_cut_or_changed_file_is_refused_before_anything_is_written(
    break_it: Any, reason: str, sqlite_place: SqlitePlace
) -> None:
    """The error names the line, and the store is unchanged."""
    store = MemoryStore()
    Flujo(Step("twice", twice), store=store).run("VALUE", run_id="r")
    broken = break_it(exported(store, "r"))
    client = RunClient(sqlite_place.open())
    with pytest.raises(DeclarationError, match=reason):
        client.import_runs(io.BytesIO(broken))
    with pytest.raises(CorruptRecord, match=reason):
        client.import_run(io.BytesIO(broken))
    assert client.list() == []


@pytest.mark.parametrize(("old", "new"), [(b'"flujo_export":1', b'"flujo_export":2'), (b'format":3', b'format":4')])
def test_a_newer_file_is_a_version_error(old: bytes, new: bytes) -> None:
    """Of the file or of its records."""
    store = MemoryStore()
    Flujo(Step("twice", twice), store=store).run("a", run_id="r")
    with pytest.raises(StoreVersionError, match="upgrade it"):
        RunClient(MemoryStore()).import_runs(io.BytesIO(changed(exported(store, "r"), old, new)))


def test_a_used_id_is_refused_or_skipped(place: Place) -> None:
    """Before anything is written; an interrupted import is repeated with skip."""
    fill(place.open())
    file, other = exported(place.open()), RunClient(MemoryStore())
    other.import_runs(io.BytesIO(exported(place.open(), "done")))
    with pytest.raises(RunExists, match="done"):
        other.import_runs(io.BytesIO(file))
    assert [run.run_id for run in other.list()] == ["done"]
    report = other.import_runs(io.BytesIO(file), if_exists="skip")
    assert (report.runs, report.skipped) == (2, 1)
    with pytest.raises(DeclarationError, match="if_exists must be 'raise' or 'skip', not 'replace'"):
        other.import_runs(io.BytesIO(file), if_exists="replace")  # type: ignore[arg-type]


def test_a_redacted_file_has_no_secrets_and_cannot_be_imported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies pass the redactor, and without content only types and sizes remain."""
    monkeypatch.setenv("SHOP_API_KEY", "hunter2-hunter2")
    store = place.open()
    done = asking(store).run("the key is hunter2-hunter2", run_id="r")
    assert b"hunter2" in exported(store, "r")
    redacted, bare = exported(store, "r", redact=True), exported(store, "r", content=False)
    assert b"hunter2" not in redacted
    assert b"the key is" in redacted
    assert b"the key is" not in bare
    assert b"why?" not in bare
    assert lines_of(bare)[0]["content"] is False
    body = json.loads(lines_of(bare)[2]["record"]["body"])
    assert body["input"] == {"type": "text", "size": len("the key is hunter2-hunter2")}
    for file in (redacted, bare):
        with pytest.raises(DeclarationError, match=r"^a redacted export cannot be imported$"):
            RunClient(MemoryStore()).import_runs(io.BytesIO(file))
    assert done.state_token is not None


def test_a_path_is_replaced_when_the_file_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed export leaves the old file; the report is a path."""
    monkeypatch.chdir(tmp_path)
    client = RunClient(store := MemoryStore())
    Flujo(Step("twice", twice), store=store).run("a", run_id="a/b")
    report = client.export("a/b")
    assert os.fspath(report) == str(report) == "a%2Fb.flujo.jsonl"
    before = Path(report).read_bytes()
    with pytest.raises(RunNotFound):
        client.export(["a/b", "gone"], report)
    assert [Path(report).read_bytes(), len(os.listdir(tmp_path))] == [before, 1]
    other = RunClient(MemoryStore())
    assert other.import_run(report) == "a/b"
    with pytest.raises(DeclarationError, match="cannot be written: No such file"):
        client.export("a/b", tmp_path / "none" / "x")
    with pytest.raises(DeclarationError, match="cannot be read: No such file"):
        other.import_runs(tmp_path / "none")


def test_a_run_can_be_imported_under_another_id(place: Place) -> None:
    """Its open question has a token of the new run."""
    token = fill(place.open())
    client = RunClient(place.open())
    file = exported(place.open(), f"paused {HOSTILE}")
    assert client.import_run(io.BytesIO(file), "copy") == "copy"
    [question] = [each for each in client.prompts() if each.run_id == "copy"]
    assert question.state_token not in (token, None)
    assert asking(place.open()).resume(question.state_token, "x").output == "xx"
    with pytest.raises(CorruptRecord, match="the file has 3 runs, not one"):
        client.import_run(io.BytesIO(exported(place.open())))


def test_an_import_reads_a_pipe(tmp_path: Path) -> None:
    """A file that cannot be read twice is copied first."""
    store = MemoryStore()
    Flujo(Step("twice", twice), store=store).run("a", run_id="r")
    reader, writer = os.pipe()
    os.write(writer, exported(store, "r"))
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert RunClient(MemoryStore()).import_runs(pipe).runs == 1
    with pytest.raises(DeclarationError, match="binary mode"), open(__file__, encoding="utf-8") as text:
        RunClient(MemoryStore()).import_runs(text)  # type: ignore[arg-type]


class Killing(io.BytesIO):
    """A file whose reader dies at a position of its second pass."""

    dies_at = 0
    passes = 0

    def seek(self, *where: int) -> int:
        self.passes += 1
        return super().seek(*where)

    def readline(self, size: int | None = -1, /) -> bytes:
        if self.passes and self.tell() >= self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().readline(size)


def test_a_killed_import_leaves_whole_runs(place: Place) -> None:
    """The run in flight is not there; a repeated import adds the rest."""
    source = MemoryStore()
    fill(source)
    whole = exported(source)
    half = Killing(whole)
    half.dies_at = whole.index(b'"id":"failed"')
    target = place.open()
    RunClient(target).list()
    place.close()
    assert in_another_process(lambda: RunClient(place.open()).import_runs(half)) == KILLED
    client = RunClient(place.open())
    there = {run.run_id for run in client.list()}
    assert there < set(IDS)
    report = client.import_runs(io.BytesIO(whole), if_exists="skip")
    assert (report.runs, report.skipped) == (3 - len(there), len(there))
    assert exported(place.open()) == whole


_EXPORT = """
import resource, sys
from flujo_actors import RunClient
client = RunClient(sys.argv[1])
client.list(limit=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
client.export("big", sys.argv[2])
other = RunClient(sys.argv[3])
other.import_runs(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """30,000 records of 2 kB add less than 30 MB to a process that exports and imports them."""
    store = SqliteStore(tmp_path / "a.db", synchronous="OFF")
    Flujo(Step("twice", twice), store=store).run("a", run_id="big")
    with store.transaction() as transaction:
        body = json.dumps({"v": 2, "text": "x" * 2_000})
        transaction.connection.execute(
            """WITH RECURSIVE n (i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
            INSERT INTO flujo_records (id, after_us, kind, path, body)
            SELECT (1 << 32) + i, 0, 'rewarded', 'x', ? FROM n""",
            (body,),
        )
        transaction.connection.execute("UPDATE flujo_runs SET records = 30000")
    store.close()
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("a", "b")]
    command = [sys.executable, "-c", _EXPORT, urls[0], str(tmp_path / "f.jsonl"), urls[1]]
    grown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    assert int(grown.stdout) < 30_000
    assert (tmp_path / "f.jsonl").stat().st_size > 60_000_000


def test_runs_are_exported_by_a_filter(place: Place) -> None:
    """All that match, in order of creation; an empty filter is refused."""
    fill(place.open())
    client = RunClient(place.open())
    file = io.BytesIO()
    assert client.export(RunFilter(state=["failed", "completed"]), file).runs == 2
    assert [line["run"]["id"] for line in lines_of(file.getvalue()) if "run" in line] == ["done", "failed"]
    with pytest.raises(DeclarationError, match="export: this filter matches every run"):
        client.export(RunFilter(), io.BytesIO())


@pytest.mark.skipif(sys.platform == "win32", reason="needs links and modes")
def test_an_export_keeps_a_link_and_the_mode_of_its_file(tmp_path: Path) -> None:
    """What was private stays private, and a link leads to the new content."""
    store = MemoryStore()
    Flujo(Step("twice", twice), store=store).run("a", run_id="r")
    private, link = tmp_path / "private.jsonl", tmp_path / "link.jsonl"
    private.write_text("old")
    private.chmod(0o600)
    link.symlink_to(private)
    RunClient(store).export("r", link)
    assert link.is_symlink()
    assert private.stat().st_mode & 0o777 == 0o600
    assert b'"run"' in private.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "private.jsonl"]


@pytest.mark.parametrize("items", [1, 2_000])
def test_a_run_file_is_little_larger_than_its_records(items: int, tmp_path: Path) -> None:
    """At most 1.2 times the bytes of the record bodies and 64 kB, with quotes, line breaks and accents in them."""
    store = MemoryStore()
    Flujo(Step.map_over("items", Step("twice", twice)), store=store).run(['say "é"\n' * 20] * items, run_id="r")
    bodies = sum(len(record.body.encode()) for record in store.read(RunId("r")))
    path = RunClient(store).export("r", tmp_path / "r.flujo.jsonl")
    assert Path(path).stat().st_size <= 1.2 * bodies + 64_000
