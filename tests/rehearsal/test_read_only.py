"""The store of the recorded runs is only read, and is never that of the forks."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import DeclarationError, Flujo, RunClient, Step
from flujo_actors.stores import PostgresStore, SqliteStore, Store
from kit import preloaded
from kit.durable_places import PostgresPlace

REPLAYED = """
import os, sys

from flujo_actors import Flujo, RunClient, Step


def read(url):
    flujo = Flujo(Step("first", str) >> Step("last", str.upper), store=url)
    same = flujo.rehearse("r", at="last", live_steps=["last"], models="recorded").counts["same"]
    return [flujo.replay("r").verdict, same, len(RunClient(url).list()), RunClient(url).records("r")[-1].kind]


read(sys.argv[1])  # imports what another user may not read
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
print(read(sys.argv[2]))
try:
    Flujo(Step("first", str), store=sys.argv[2]).run(1, run_id="other")
except Exception as error:
    print(type(error).__name__)
"""


def stored(store: str | Store) -> Flujo[Any, Any]:
    flujo = Flujo(Step("first", str) >> Step("last", str.upper), store=store)
    flujo.run(1, run_id="r")
    return flujo


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that every user can search, which folders of pytest are not."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.mark.skipif(sys.platform == "win32", reason="needs users and modes")
@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_file_that_cannot_be_written_is_replayed(public_folder: Path, folder_mode: int) -> None:
    """R4: by a user without write access to the file, or to its folder too."""
    folder = public_folder / "runs of others"
    folder.mkdir()
    for place in (public_folder, folder):
        store = SqliteStore(place / "runs.db")
        stored(store)
        store.close()
    os.chmod(folder / "runs.db", 0o444)
    os.chmod(folder, folder_mode)
    urls = [f"sqlite:///{place / 'runs.db'}" for place in (public_folder, folder)]
    read = preloaded.run([sys.executable, "-B", "-c", REPLAYED, *urls], capture_output=True, text=True)
    assert read.stdout.splitlines() == ["['same', 1, 1, 'ended']", "StoreError"], read.stderr
    os.chmod(folder, 0o755)


def spelled(folder: Path, name: str) -> str | Store:
    """Return another name of `runs.db` in a folder."""
    match name:
        case "path":
            return f"sqlite:///{folder}/../{folder.name}/runs.db"
        case "link":
            (folder / "link.db").symlink_to(folder / "runs.db")
            return f"sqlite:///{folder / 'link.db'}"
        case "hard link":
            os.link(folder / "runs.db", folder / "hard.db")
            return f"sqlite:///{folder / 'hard.db'}"
        case _:
            return SqliteStore(folder / "runs.db")


@pytest.mark.parametrize("name", ["path", "link", "hard link", "object"])
def test_forks_are_not_kept_in_the_file_of_the_runs(tmp_path: Path, name: str) -> None:
    """However the file is named."""
    flujo = stored(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(DeclarationError, match="into must be another store"):
        flujo.rehearse("r", at="last", models="recorded", into=spelled(tmp_path, name))
    assert len(RunClient(flujo.store).list()) == 1


def test_forks_are_not_kept_in_the_tables_of_the_runs(postgres_place: PostgresPlace) -> None:
    """However the database is named, and whoever reads it; a role that selects is enough."""
    flujo = stored(postgres_place.url)
    [(schema,)] = postgres_place.query("SELECT current_schema()")
    if not postgres_place.query("SELECT 1 FROM pg_roles WHERE rolname = 'flujo_reader'"):
        postgres_place.query("CREATE ROLE flujo_reader")
    postgres_place.query(f'GRANT USAGE ON SCHEMA "{schema}" TO flujo_reader')
    postgres_place.query(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO flujo_reader')
    reading = PostgresStore(f"{postgres_place.url}%20-crole%3Dflujo_reader")
    reader = Flujo(flujo.pipeline, store=reading)
    assert reader.replay("r").verdict == "same"
    assert reader.rehearse("r", at="last", live_steps=["last"], models="recorded").counts["same"] == 1
    for origin in (flujo, reader):
        for into in (postgres_place.url.replace("postgresql:", "postgres:"), PostgresStore(postgres_place.url)):
            with pytest.raises(DeclarationError, match="into must be another store"):
                origin.rehearse("r", at="last", models="recorded", into=into)
    assert len(RunClient(flujo.store).list()) == 1
    reading.close()
