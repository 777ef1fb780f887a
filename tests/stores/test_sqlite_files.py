"""A SQLite file that is deleted, moved or replaced under a process that uses it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flujo_actors import Flujo, RunClient, Step, StoreError
from flujo_actors._core.records.records import Append
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing._store_clauses.store_target import admit, bodies, record, write


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.mkdir()


def restore(path: Path) -> None:
    delete(path)
    shutil.copy(path.parent.parent / "backup.db", path)


def delete_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


CHANGES = [delete, rename, move_directory, restore, delete_log]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    backup = SqliteStore(tmp_path / "backup.db")
    admit(backup, "of the backup")
    backup.close()
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "runs.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    yield store
    store.close()


def append(store: SqliteStore, lease) -> None:
    write(store, lease, record("lost"))


def transact(store: SqliteStore, lease) -> None:
    with store.transaction() as transaction:
        transaction.append(Append(lease=lease, records=(record("lost"),)))


def read(store: SqliteStore, lease) -> None:
    store.get(lease.run_id)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("use", [append, transact, read])
def test_a_file_that_is_no_longer_there_is_an_error(path: Path, store: SqliteStore, change, use) -> None:
    """Nothing is told as written that nobody will find, nothing is read that others do not see."""
    lease = admit(store)
    bodies(store)
    change(path)
    with pytest.raises(StoreError, match="deleted or replaced"):
        use(store, lease)


@pytest.mark.parametrize("use", [append, transact, read])
def test_what_is_there_instead_is_used_from_then_on(path: Path, store: SqliteStore, use) -> None:
    """A backup that was put in place is read and written, after one error."""
    lease = admit(store)
    restore(path)
    with pytest.raises(StoreError, match="deleted or replaced"):
        use(store, lease)
    write(store, admit(store, "new"), record("kept"))
    assert {run.run_id for run in RunClient(store).list()} == {"of the backup", "new"}
    assert bodies(SqliteStore(path), "new") == [record("kept").body]


def test_a_file_deleted_in_the_middle_of_a_transaction_is_an_error(path: Path, store: SqliteStore) -> None:
    """The commit went into a file that nobody can open any more."""
    lease = admit(store)

    def delete_before_the_end() -> None:
        with store.transaction() as transaction:
            transaction.append(Append(lease=lease, records=(record("lost"),)))
            delete(path)

    with pytest.raises(StoreError, match="deleted or replaced"):
        delete_before_the_end()


def test_no_run_is_told_as_completed_that_is_nowhere(path: Path) -> None:
    """The program that lost its file hears of it from its next run."""
    flujo = Flujo(Step("same", lambda data: data), store=f"sqlite:///{path}")
    flujo.run(1, run_id="before")
    delete(path)
    with pytest.raises(StoreError, match="deleted or replaced"):
        flujo.run(2, run_id="after")
    assert flujo.run(3, run_id="later").status == "completed"
    assert [run.run_id for run in RunClient(f"sqlite:///{path}").list()] == ["later"]


def test_a_process_that_changes_its_directory_keeps_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts from where the store was made."""
    monkeypatch.chdir(path.parent)
    store = SqliteStore("runs.db")
    lease = admit(store)
    os.chdir("/")
    assert write(store, lease, record("a")) is None
    assert bodies(store) == [record("a").body]
    store.close()
    assert bodies(SqliteStore(path)) == [record("a").body]
