"""Stores of former schemas: listed, migrated, read and resumed; and the former release next to this one."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

from flujo_actors import Flujo, RunClient, RunNotFound, StoreVersionError
from flujo_actors._api.cli.entry import main
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Admission, RecordKind
from flujo_actors.stores import PostgresStore, SqliteStore
from flujo_actors.stores.postgres import _schema as postgres_schema
from flujo_actors.stores.sqlite import _schema as sqlite_schema
from flujo_actors.testing.store_conformance import ManualClock

CORPUS = Path(__file__).with_name("corpus")
FILES = sorted(path for path in CORPUS.iterdir() if path.suffix in (".sqlite", ".sql"))
STATEMENTS = json.loads((CORPUS / "former_statements.json").read_text())


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The pipeline of the stored runs."""
    monkeypatch.syspath_prepend(str(CORPUS))
    yield importlib.import_module("corpus_app").PIPELINE
    sys.modules.pop("corpus_app", None)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A copy of a former store."""
    path: Path = request.param
    if path.suffix == ".sqlite":
        shutil.copy(path, tmp_path / "runs.db")
        yield f"sqlite:///{tmp_path}/runs.db"
        return
    found = request.getfixturevalue("postgres_server").fresh_url()
    schema = found.rpartition("%3D")[2]
    with psycopg.connect(found, autocommit=True) as db:
        db.execute(path.read_text().replace("corpus.", f"{schema}.").encode())
    yield found


def test_the_corpus_has_a_store_of_every_schema() -> None:
    """Every schema that was ever written stays in it, the present one too."""
    assert {number_of(path.stem) for path in FILES if path.suffix == ".sqlite"} == schemas(sqlite_schema.MIGRATIONS)
    assert {number_of(path.stem) for path in FILES if path.suffix == ".sql"} == schemas(postgres_schema.MIGRATIONS)


def schemas(migrations: Sequence[object]) -> set[int]:
    return set(range(1, len(migrations) + 1))


def number_of(path: str) -> int:
    """Return the schema in the name of a file, before the release that wrote it."""
    return int(re.findall(r"\d+", path)[0])


def schema_of(url: str) -> int:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            return int(db.execute("SELECT version FROM flujo_schema").fetchone()[0])
    with psycopg.connect(url) as db:
        row = db.execute("SELECT version FROM flujo_schema").fetchone()
    assert row is not None
    return int(row[0])


def newest(url: str) -> int:
    return len(sqlite_schema.MIGRATIONS if url.startswith("sqlite") else postgres_schema.MIGRATIONS)


@pytest.mark.slow
def test_a_former_store_is_read_and_resumed(url: str, pipeline: Any, request: pytest.FixtureRequest) -> None:
    """Readers read this schema and the one before, and leave it; a migrated store resumes paused and crashed runs."""
    before = schema_of(url)
    assert before == number_of(request.node.callspec.id)
    if before >= newest(url) - 1:
        assert {run.run_id for run in RunClient(url).list()} == {"completed", "paused", "crashed"}
        assert RunClient(url).state("completed").output == 41
    else:
        with pytest.raises(StoreVersionError, match=f"the store has schema {before}, this process needs {newest(url)}"):
            RunClient(url).list()
    assert schema_of(url) == before
    flujo, client = Flujo(pipeline, store=url), RunClient(url)
    token = paused_token(flujo, url)
    assert flujo.resume(token, 1, mode="compat").output == 2
    crashed = flujo.resume("crashed", mode="compat")
    assert (crashed.status, client.get("crashed").status) == ("paused", "paused")
    assert flujo.resume(crashed.state_token, 5, mode="compat").output == 6
    assert schema_of(url) == newest(url)
    assert {run.run_id: run.status for run in client.list()} == dict.fromkeys(
        ["completed", "paused", "crashed"], "completed"
    )
    assert (client.state("completed").output, client.state("completed").context.doubled) == (41, [2])
    assert client.get("completed").ended_at is not None


def paused_token(flujo: Flujo[Any, Any], url: str) -> str:
    """Return the token of the paused run, after this process migrated the store."""
    store = flujo.store
    assert store is not None
    with pytest.raises(RunNotFound):
        store.get(RunId("missing"))
    [question] = [each for each in RunClient(url).questions() if each.run_id == "paused"]
    return question.state_token


@pytest.mark.slow
@pytest.mark.parametrize("url", [CORPUS / "sqlite-01.sqlite", CORPUS / "postgres-01.sql"], indirect=True)
def test_a_worker_migrates_a_store_that_others_must_not(
    url: str, pipeline: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `store_migrate = "never"` a worker refuses a former store; `worker --migrate` migrates it first."""
    monkeypatch.setenv("FLUJO_STORE_MIGRATE", "never")
    worker = ["worker", "corpus_app:PIPELINE", "--store", url, "--once"]
    assert main(worker) != 0
    assert f"the store has schema 1, this process needs {newest(url)}" in capsys.readouterr().err
    assert schema_of(url) == 1
    assert main([*worker, "--migrate"]) == 0
    assert schema_of(url) == newest(url)


# --- The former release next to this one ----------------------------------------------------------------------------


def test_the_statements_of_the_former_release_fit_the_present_schema(postgres_server: Any) -> None:
    """A running process of it continues after the migration; each statement is prepared, not executed."""
    store = PostgresStore(url := postgres_server.fresh_url())
    store.admit(admission("r"), owner="me", lease_s=1.0)
    with psycopg.connect(url, autocommit=True) as db:
        for name, statement in STATEMENTS["postgres"].items():
            numbered, _ = _numbered(statement)
            db.execute(f"PREPARE former_{name.lower()} AS {numbered}".encode())
    store.close()


def _numbered(statement: str) -> tuple[str, list[str]]:
    """Return a statement with `$1`, and the names of its parameters."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1] or f"{len(names)}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return re.sub(r"%(?:\((\w+)\))?s", number, statement).replace("%%", "%"), names


def test_the_statements_of_the_former_release_fit_a_migrated_file(tmp_path: Path) -> None:
    """SQLite compiles each of them."""
    SqliteStore(tmp_path / "runs.db").admit(admission("r"), owner="me", lease_s=1.0)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
        for name, statement in STATEMENTS["sqlite"].items():
            if name == "RUNS":
                statement += " WHERE id = 1"
            statement = statement.replace("?1", ":first")  # Python 3.12.0 to 3.12.3 warn of numbers of parameters
            parameters: Any = dict.fromkeys(re.findall(r":(\w+)", statement), 1)
            if "?" in statement:
                parameters = (1,) * statement.count("?")
            db.execute(f"EXPLAIN {statement}", parameters).fetchall()


def admission(run_id: str) -> Admission:
    return Admission(run_id=RunId(run_id), pipeline="p", body='{"v": 2}', queue="default")


def former_admit(db: Any, run_id: str) -> None:
    """Submit a run as a process of the former release does."""
    values = {"hash": hashlib.sha256(run_id.encode()).digest(), "run_id": run_id, "pipeline": "p"}
    more = {"epoch": 0, "lease_s": 0.0, "queue": "default", "key": "", "priority": 0, "started": False}
    db.execute(*with_parameters(STATEMENTS["postgres"]["ADMIT"], **values, **more))


def with_parameters(statement: str, **values: object) -> tuple[bytes, dict[str, object]]:
    """Return a statement and its parameters; those without a value are null."""
    return statement.encode(), {**dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)), **values}


def test_both_releases_claim_the_runs_of_each_other(postgres_server: Any) -> None:
    """Until the store is finalized; a run that the former release submits or releases is claimed here."""
    store = PostgresStore(url := postgres_server.fresh_url(), clock=ManualClock())
    store.admit(admission("first"), owner="me", lease_s=1.0)
    store.close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE flujo_schema SET record_format = 2")
        former_admit(db, "theirs")
        store = PostgresStore(url)
        store.admit_all([admission("ours")], owner=None, lease_s=0.0)
        wanted = store.wanting(pipeline="p", queues=["default"], host="nobody", limit=10)
        assert {run.run_id for run in wanted} >= {"theirs", "ours"}
        wanting = f"SELECT run_id FROM flujo_runs r {STATEMENTS['wanting']}"
        asked = with_parameters(wanting, pipeline="p", queues=["default"], host="nobody", limit=10)
        found = db.execute(*asked).fetchall()
        assert {run_id for (run_id,) in found} >= {"theirs", "ours"}
    store.close()


def test_kinds_of_records_are_frozen() -> None:
    """A former release reads its own kinds; a new kind is written in the newest format alone, and gets a line here."""
    first = {"admitted", "started", "intent", "unit", "settled", "paused", "answered", "chosen", "rewarded", "resumed"}
    later = {"retried", "steered", "compacted", "cancelled", "ended"}
    assert set(get_args(RecordKind)) == first | later
