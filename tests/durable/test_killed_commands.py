"""Commands that are killed in the middle: an export, a migration, a deletion of old runs; each can be repeated."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from flujo_actors import DeclarationError, Flujo, RunClient, RunFilter, Step
from flujo_actors._api.cli.entry import main
from flujo_actors._api.cli.store_commands import store as store_command
from flujo_actors._core.settings_model import RetentionSettings
from flujo_actors._durable.retention import prune
from flujo_actors.stores.postgres import _schema as postgres_schema
from flujo_actors.stores.sqlite import _schema as sqlite_schema
from kit.durable_places import Place
from kit.other_processes import KILLED, PointedStore, in_another_process

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "stores" / "corpus"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def echo(data: Any) -> Any:
    return data


# --- an export ------------------------------------------------------------------------------------------------------


class Mortal(io.FileIO):
    """A file whose process is killed in the middle of a later write."""

    def __init__(self, path: Path, writes: int) -> None:
        super().__init__(path, "w")
        self._left = writes

    def write(self, data: Any, /) -> int:
        self._left -= 1
        if not self._left:
            super().write(bytes(data)[: len(data) // 2])
            die()
        return super().write(data)


@pytest.mark.parametrize("writes", [1, 3, 6])
def test_a_killed_export_leaves_a_file_that_is_refused(place: Place, tmp_path: Path, writes: int) -> None:
    """The store is unchanged: the next export has the bytes that the killed one would have."""
    flujo = Flujo(Step("a", echo) >> Step("b", echo), store=place.open())
    for number in range(4):
        flujo.run(f"{number} " + 20_000 * "x", run_id=f"r{number}")
    everything = RunFilter(all=True)
    before = io.BytesIO()
    RunClient(place.open()).export(everything, before)
    place.close()
    cut = tmp_path / "cut.jsonl"

    def export() -> None:
        RunClient(place.open()).export(everything, Mortal(cut, writes))

    assert in_another_process(export) == KILLED
    client = RunClient(place.open())
    after = io.BytesIO()
    client.export(everything, after)
    assert after.getvalue() == before.getvalue()
    assert cut.read_bytes() == before.getvalue()[: cut.stat().st_size]
    with pytest.raises(DeclarationError):
        client.import_runs(cut)


# --- a migration ----------------------------------------------------------------------------------------------------


class MortalStatements(tuple[str, ...]):
    """Statements of a migration whose process is killed before one of them."""

    kill_at = 0

    def __iter__(self) -> Iterator[str]:
        for number, statement in enumerate(super().__iter__()):
            if number == self.kill_at:
                die()
            yield statement


@pytest.fixture(params=["sqlite-11.sqlite", "postgres-12.sql"])
def former(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the former schema."""
    path = CORPUS / request.param
    if path.suffix == ".sqlite":
        shutil.copy(path, tmp_path / "runs.db")
        return f"sqlite:///{tmp_path}/runs.db"
    url: str = request.getfixturevalue("postgres_server").fresh_url()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(path.read_text().replace("corpus.", f"{url.rpartition('%3D')[2]}.").encode())
    return url


def migrate_and_die(url: str, kill_at: int) -> None:
    """Begin the migration, and die before one of its statements."""
    statements = MortalStatements(sqlite_schema.MIGRATIONS[-1])
    statements.kill_at = kill_at
    sqlite_schema.MIGRATIONS = (*sqlite_schema.MIGRATIONS[:-1], statements)
    execute, left = postgres_schema._execute, iter(range(kill_at))

    def mortal(db: Any, statement: str) -> None:
        if next(left, None) is None:
            die()
        execute(db, statement)

    postgres_schema._execute = mortal
    main(["store", "migrate", "--store", url])


@pytest.mark.parametrize("kill_at", [0, 4, 12])
def test_a_killed_migration_is_repeated(former: str, kill_at: int) -> None:
    """No index is missing or invalid, and the stored runs are read before and after it."""
    listed = [(info.run_id, info.status) for info in RunClient(former).list(order="created")]
    assert in_another_process(lambda: migrate_and_die(former, kill_at)) == KILLED
    assert [(info.run_id, info.status) for info in RunClient(former).list(order="created")] == listed
    assert CliRunner().invoke(store_command, ["migrate", "--store", former]).exit_code == 0
    found = json.loads(CliRunner().invoke(store_command, ["status", "--json", "--store", former]).stdout)
    assert found["schema"]["store"] == found["schema"]["code"]
    assert (found["missing_indexes"], found["invalid_indexes"]) == ([], [])
    assert CliRunner().invoke(store_command, ["check", "--store", former]).exit_code == 0
    assert [(info.run_id, info.status) for info in RunClient(former).list(order="created")] == listed


# --- a deletion of old runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kill_at", "left"), [("before delete_sized", 20), ("after delete_sized", 10)])
def test_a_killed_deletion_leaves_whole_runs(place: Place, kill_at: str, left: int) -> None:
    """Of batches of ten, the first is deleted and the second is or is not; the next deletion completes it."""
    store = place.open()
    flujo = Flujo(Step("a", echo), store=store)
    for number in range(30):
        flujo.run(number, run_id=f"r{number}", labels={"tenant": "7"})
    Flujo(Step.human_in_the_loop("ask", "May I?"), store=store).run(0, run_id="asks")
    place.close()
    settings = RetentionSettings(completed="0s", batch=10)  # type: ignore[arg-type]

    def delete() -> None:
        left_at = iter(range(1))

        def point(name: str) -> None:
            if name == kill_at and next(left_at, None) is None:
                die()

        prune(PointedStore(place.open(), point), settings)  # type: ignore[arg-type]

    assert in_another_process(delete) == KILLED
    client = RunClient(place.open())
    found = client.list(labels={"tenant": "7"})
    assert len(found) == left
    assert {tuple(record.kind for record in client.records(info.run_id)) for info in found} == {
        ("admitted", "settled", "ended")
    }
    assert prune(place.open(), settings).runs == left
    assert [info.run_id for info in client.list()] == ["asks"]
    assert list(place.open().check()) == []
    assert place.query("SELECT count(*) FROM flujo_labels") == [(0,)]
    assert place.query("SELECT count(*) FROM flujo_runs") == [(1,)]
