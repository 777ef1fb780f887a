"""A database of each kind, and what tools did in the world, for granular steps in real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The server, the databases and the processes are shared with the tests of other directories.
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "durability"))

from durable_places import Place, PostgresPlace, SqlitePlace
from effects import Effects

from postgres_server import session_server


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[SqlitePlace]:
    """An empty SQLite file."""
    place = SqlitePlace(tmp_path / "runs.db")
    yield place
    place.close()


@pytest.fixture
def postgres_place() -> Iterator[PostgresPlace]:
    """An empty Postgres schema."""
    place = PostgresPlace(session_server().fresh_url())
    yield place
    place.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each kind of database in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    """What tools did, in a file that all processes share."""
    return Effects(tmp_path / "effects")
