"""From a URL to a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, RunClient, Step
from flujo_actors.errors import DeclarationError
from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.stores._store_factory import open_store
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing._store_clauses.store_target import admit, all_at_once, bodies


def test_no_store_is_one_in_memory():
    """`None` gives a store of its own each time."""
    assert isinstance(open_store(None), MemoryStore)
    assert open_store(None) is not open_store(None)


def test_a_store_is_taken_as_it_is():
    """Whoever brings a store gets it back."""
    store = MemoryStore()
    assert open_store(store) is store


def test_a_relative_path_has_three_slashes_and_an_absolute_one_four(tmp_path, monkeypatch):
    """Both URLs of one file give the same store, so that its commits are shared."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///runs.db")
    assert isinstance(store, SqliteStore)
    assert open_store(f"sqlite:///{tmp_path}/runs.db") is store
    assert open_store(f"sqlite:///{tmp_path}/x/../runs.db") is store
    assert open_store("sqlite:///other.db") is not store
    admit(store)
    assert (tmp_path / "runs.db").exists()
    store.close()


@pytest.mark.parametrize("url", ["sqlite://", ":memory:", "sqlite:///:memory:"])
def test_a_url_without_a_file_is_a_database_in_memory(url):
    """Each one is its own."""
    first, second = open_store(url), open_store(url)
    admit(first)
    admit(second)
    assert bodies(first) == bodies(second) == []


@pytest.mark.parametrize(
    "url", ["runs.db", "mysql://host/db", "sqlite://runs.db", "sqlite:///a.db?mode=ro", "", "sqlite:///a\0b"]
)
def test_anything_else_is_refused_with_what_would_work(url):
    """The message says why, and shows the forms that are understood."""
    with pytest.raises(DeclarationError, match=r"sqlite:///runs\.db"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgres_url_is_one_store(scheme):
    """Nothing is connected before it is used."""
    url = f"{scheme}://nobody@nowhere.invalid/db"
    store = open_store(url)
    assert type(store).__name__ == "PostgresStore"
    assert open_store(url) is store


def test_a_child_gets_a_store_of_its_own(tmp_path):
    """The register of open stores ends at a fork; the parent's goes on."""
    url = f"sqlite:///{tmp_path}/runs.db"
    store = open_store(url)
    admit(store)
    assert all_at_once(1, lambda number: 1 if open_store(url) is store else len(bodies(open_store(url)))) == [0]
    assert open_store(url) is store
    store.close()


def test_drivers_are_imported_when_a_url_asks_for_them():
    """Importing the library costs no database driver."""
    code = (
        "import sys, flujo_actors, flujo_actors.stores._store_factory as o; "
        "assert not {'sqlite3', 'psycopg', 'psycopg_pool'} & set(sys.modules), 'too early'; "
        "o.open_store('sqlite://'); assert 'sqlite3' in sys.modules and 'psycopg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("store", [5, b"sqlite:///runs.db", Path("runs.db"), ["sqlite:///runs.db"], SqliteStore])
def test_what_is_no_store_is_refused_where_it_is_given(store: Any) -> None:
    """By the program's first line, not by its first run."""
    for make in (lambda: Flujo(Step("a", lambda data: data), store=store), lambda: RunClient(store)):
        with pytest.raises(DeclarationError, match="a store must be a URL"):
            make()
