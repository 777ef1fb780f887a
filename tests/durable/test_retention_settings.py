"""Retention settings: which runs are deleted, by workers and on request, and nothing of them remains."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from flujo_actors import Flujo, RunClient, RunFilter, Step, load_settings
from flujo_actors._core.settings_model import RetentionSettings, Settings
from flujo_actors._durable.retention import DUTY, RetentionWorker
from flujo_actors.errors import DeclarationError
from flujo_actors.stores import MemoryStore, SqliteStore, Store
from flujo_actors.telemetry import RetentionDeleted
from kit.durable_places import Place, SqlitePlace

DAY = 86_400.0


def echo(value: object) -> object:
    return value


def fail(value: object) -> None:
    raise ValueError(value)


class Aging:
    """A wall clock in the past, which a test moves."""

    def __init__(self) -> None:
        self.days_ago = 0.0

    def __call__(self) -> float:
        return time.time() - self.days_ago * DAY


@pytest.fixture
def wall() -> Aging:
    """The clock of the stores of a test."""
    return Aging()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, wall: Aging, tmp_path: Path) -> Store:
    """A store whose runs end when the test says."""
    return MemoryStore(wall=wall) if request.param == "memory" else SqliteStore(tmp_path / "r.db", wall=wall)


def run(store: Store, run_id: str, *, name: str = "echo", step: Callable[[Any], Any] = echo, **options: Any) -> None:
    Flujo(Step(name, step), store=store).run("x", run_id=run_id, **options)


def left(store: Store, retention: dict[str, object]) -> list[str]:
    """Return the runs that remain; the same number is announced before."""
    client = RunClient(store)
    before = len(client.list())
    announced = client.prune(retention, dry_run=True)
    assert (announced.dry_run, len(client.list())) == (True, before)
    report = client.prune(retention)
    assert report.runs == announced.runs
    assert (report.bytes > 0) == (report.runs > 0)
    return sorted(each.run_id for each in client.list())


def test_age_counts_from_the_end_by_status(store: Store, wall: Aging) -> None:
    """A status without a span is kept, and so is an open run."""
    for wall.days_ago in (1, 10):
        run(store, f"done {wall.days_ago}")
        run(store, f"failed {wall.days_ago}", step=fail)
        Flujo(Step.human_in_the_loop("ask", "?"), store=store).run("x", run_id=f"open {wall.days_ago}")
    kept = ["failed 1", "failed 10", "open 1", "open 10"]
    assert left(store, {"completed": "7d"}) == ["done 1", *kept]
    assert left(store, {"completed": "20h", "failed": "9d"}) == ["failed 1", "open 1", "open 10"]


def test_the_latest_runs_of_each_pipeline_are_kept(store: Store, wall: Aging) -> None:
    """At any age, counted by pipeline."""
    wall.days_ago = 30
    for number in range(4):
        run(store, f"a{number}", name="a")
        run(store, f"b{number}", name="b")
    assert left(store, {"completed": "1d", "keep_last": 2}) == ["a2", "a3", "b2", "b3"]


def test_the_first_rule_that_matches_decides(store: Store, wall: Aging) -> None:
    """A rule may be stricter or longer than the settings, by label and pipeline."""
    wall.days_ago = 5
    for tenant in ("1", "2", "3"):
        for name in ("a", "b"):
            run(store, f"{tenant}{name}", name=name, labels={"tenant": tenant})
    rules = [
        {"labels": {"tenant": "1"}, "pipeline": "a"},
        {"labels": {"tenant": "1"}, "completed": "2d", "keep_last": 0},
        {"labels": {"tenant": "2"}, "completed": "9d"},
    ]
    assert left(store, {"rules": rules, "completed": "4d"}) == ["1a", "2a", "2b"]


def test_batches_are_as_large_as_the_setting(place: Place) -> None:
    """Every matching run is deleted, in pages of a batch."""
    store = place.open()
    for number in range(7):
        run(store, f"r{number}")
    sizes: list[int] = []
    delete = store.delete_sized
    store.delete_sized = lambda ids: (sizes.append(len(ids)), delete(ids))[1]  # type: ignore[method-assign]
    assert RunClient(store).prune({"completed": "0s", "batch": 3}).runs == 7
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"completed": "30"}, "setting retention.completed: '30' has no unit: write 30d, 12h or 90s"),
        ({"failed": 30}, "setting retention.failed must be a span such as '30d', not 30"),
        ({"aborted": "soon"}, "'soon' is no span of time"),
        ({"complete": "30d"}, "did you mean 'completed'"),
        ({"rules": [{"label": {}}]}, "did you mean 'labels'"),
        ({"rules": [{"labels": {"tenant": 7}}]}, "the value of 'tenant' must be a text, not 7"),
        ({"rules": {"completed": "3d"}}, "must be a list of rules"),
        ({"keep_last": -1}, "at least 0"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, object], reason: str, tmp_path: Path) -> None:
    """When they are made, and as a dict of the client."""
    with pytest.raises(DeclarationError, match=reason):
        Settings(retention=setting)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=reason):
        RunClient(MemoryStore()).prune(setting)


def test_rules_are_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an array of tables; the environment overrides the spans."""
    (tmp_path / "flujo.toml").write_text(
        '[retention]\ncompleted = "30d"\nkeep_last = 3\n[[retention.rules]]\nlabels = {tenant = "7"}\nfailed = "1d"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLUJO_RETENTION__FAILED", "12h")
    found = load_settings().retention
    assert (found.completed, found.failed, found.keep_last) == ("30d", "12h", 3)
    [rule] = found.rules
    assert (rule.labels, rule.failed) == ({"tenant": "7"}, "1d")


class Noted:
    """A sink that keeps the events of retention."""

    def __init__(self) -> None:
        self.batches: list[RetentionDeleted] = []

    def emit(self, event: object) -> None:
        if isinstance(event, RetentionDeleted):
            self.batches.append(event)


@pytest.mark.trio
async def test_a_worker_deletes_what_the_settings_name(place: Place) -> None:
    """Of every pipeline; each batch is an event."""
    store, noted = place.open(), Noted()
    client = RunClient(store, allow_blocking=True)
    await trio.to_thread.run_sync(lambda: [run(store, f"r{number}", name=f"p{number}") for number in range(3)])
    settings: Any = {"retention": {"completed": "0s", "batch": 2}, "telemetry": {"sinks": [noted]}}
    flujo = Flujo(Step("other", echo), store=store, settings=Settings(**settings))
    with trio.fail_after(120):
        async with flujo.worker():
            while client.list():
                await trio.sleep(0.02)
    assert sum(batch.runs for batch in noted.batches) == 3
    assert all(batch.runs <= 2 and batch.bytes > 0 and batch.took_s > 0 for batch in noted.batches)


def retaining(store: Store, owner: str, **settings: Any) -> RetentionWorker:
    return RetentionWorker(
        store=store,
        settings=RetentionSettings(completed="0s", **settings),
        owner=owner,
        report=lambda batch: None,
        redact=str,
    )


@pytest.mark.trio
async def test_one_process_at_a_time_has_the_duty(place: Place) -> None:
    """After a pass the others wait for the interval; a stopped one releases it."""
    store = place.open()
    await trio.to_thread.run_sync(lambda: run(store, "r"))
    assert await retaining(store, "a").apply(lambda: False)
    assert not await retaining(store, "b").apply(lambda: False)
    assert store.take_duty(DUTY, owner="a", for_s=0.0)
    await trio.to_thread.run_sync(lambda: run(store, "r2"))
    assert await retaining(store, "a").apply(lambda: True)
    assert RunClient(store, allow_blocking=True).list() != []
    assert await retaining(store, "b").apply(lambda: False)
    assert RunClient(store, allow_blocking=True).list() == []


@pytest.mark.trio
async def test_deletion_takes_a_fifth_of_the_time(autojump_clock: trio.testing.MockClock) -> None:
    """After a batch the duty rests four times as long."""
    store, rests = MemoryStore(), list[float]()
    for number in range(2):
        lease = store.admit(admission(f"r{number}"), owner="me", lease_s=60)
        store.append([ended(lease)])
    took: list[float] = []
    retention = RetentionWorker(
        store=store,
        settings=RetentionSettings(completed="0s", batch=1),
        owner="a",
        report=lambda batch: (took.append(batch.took_s), rests.append(trio.current_time())),  # type: ignore[arg-type]
        redact=str,
    )
    assert await retention.apply(lambda: False)
    assert len(took) == 2
    assert rests[1] - rests[0] >= 4 * took[0] * 0.99


def admission(run_id: str) -> Any:
    from flujo_actors.stores import Admission

    return Admission(run_id=run_id, pipeline="p", body='{"v": 1}')  # type: ignore[arg-type]


def ended(lease: Any) -> Any:
    from flujo_actors.stores import Append

    return Append(lease=lease, records=(), status="completed", release=True)


CANARY = "canary-7f3a9"
OWN = "pg_table_is_visible(oid)"
"""Condition of the tables of this test: the server has those of other tests, too."""


def test_nothing_of_a_deleted_run_remains(sqlite_place: SqlitePlace, tmp_path: Path) -> None:
    """After a vacuum the canary is in no byte of the file, its log and its live texts."""
    store = sqlite_place.open(synchronous="FULL")
    question = Step.human_in_the_loop("ask", f"{CANARY}?")
    flujo = Flujo(Step("echo", echo) >> question >> Step("fail", fail), store=store)
    paused = flujo.run(CANARY + "y" * 70_000, run_id=f"{CANARY}-1", labels={"user": CANARY})
    assert flujo.resume(paused.state_token, CANARY).status == "failed"
    flujo.run(CANARY, run_id=f"{CANARY}-2", labels={"user": CANARY})
    store.watch_texts([f"{CANARY}-2"], for_s=60)  # type: ignore[list-item, attr-defined]
    store.swap_texts({f"{CANARY}-2": {"echo": CANARY}})  # type: ignore[dict-item, attr-defined]
    RunClient(store).cancel(f"{CANARY}-2", CANARY, undo=False)
    run(store, "other")
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert any(CANARY.encode() in path.read_bytes() for path in files)
    report = RunClient(store).prune({"failed": "0s", "aborted": "0s"})
    assert (report.runs, report.bytes > 140_000) == (2, True)
    store.vacuum()  # type: ignore[attr-defined]
    for table, _ in sqlite_place.query("SELECT name, 1 FROM sqlite_master WHERE type = 'table'"):
        assert CANARY not in repr(sqlite_place.query(f"SELECT * FROM {table}"))
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path
    assert [each.run_id for each in RunClient(store).list()] == ["other"]


def test_nothing_of_a_deleted_run_remains_in_postgres(postgres_place: Any) -> None:
    """In no column of any table."""
    store = postgres_place.open()
    question = Step.human_in_the_loop("ask", f"{CANARY}?")
    flujo = Flujo(Step("echo", echo) >> question >> Step("fail", fail), store=store)
    paused = flujo.run(CANARY + "y" * 70_000, run_id=f"{CANARY}-1", labels={"user": CANARY})
    store.watch_texts([f"{CANARY}-1"], for_s=60)
    store.swap_texts({f"{CANARY}-1": {"echo": CANARY}})
    flujo.resume(paused.state_token, CANARY)
    assert RunClient(store).prune({"failed": "0s"}).runs == 1
    store.vacuum()
    tables = postgres_place.query(
        f"SELECT relname FROM pg_class WHERE {OWN} AND relname LIKE 'flujo%%' AND relkind = 'r'"
    )
    for (table,) in tables:
        assert CANARY not in repr(postgres_place.query(f"SELECT * FROM {table}")), table
    options = postgres_place.query(f"SELECT reloptions FROM pg_class WHERE {OWN} AND relname = 'flujo_records'")
    assert "autovacuum_vacuum_scale_factor=0.02" in repr(options)


def test_the_data_of_a_person_is_deleted(sqlite_place: SqlitePlace, tmp_path: Path) -> None:
    """Open runs are cancelled first; after a vacuum nothing of them is in the file."""
    store = sqlite_place.open(synchronous="FULL")
    flujo = Flujo(Step("echo", echo) >> Step.human_in_the_loop("ask", f"{CANARY}?"), store=store)
    flujo.run(CANARY + "z" * 70_000, run_id="open", labels={"user": CANARY})
    run(store, "ended", labels={"user": CANARY})
    run(store, "other", labels={"user": "bob"})
    report = RunClient(store).bulk_delete(RunFilter(labels={"user": CANARY}), cancel_first=True)
    assert (report.matched, report.done, report.bytes > 70_000) == (2, 2, True)
    store.vacuum()  # type: ignore[attr-defined]
    for path in tmp_path.iterdir():
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
    assert [each.run_id for each in RunClient(store).list()] == ["other"]
