"""Fixtures: a database of each kind, and what steps and tools did in the world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from kit.durable_places import Place, PostgresPlace, SqlitePlace
from kit.effects import Effects
from kit.postgres_server import SessionServer, session_server


@pytest.fixture(scope="session")
def postgres_server() -> SessionServer:
    """The session's server; it ends with the interpreter."""
    return session_server()


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[SqlitePlace]:
    """An empty SQLite file."""
    place = SqlitePlace(tmp_path / "runs.db")
    yield place
    place.close()


@pytest.fixture
def postgres_place(postgres_server: SessionServer, request: pytest.FixtureRequest) -> Iterator[PostgresPlace]:
    """A Postgres schema with the empty tables of a store, or an empty one: with the marker `empty_database`."""
    is_empty = request.node.get_closest_marker("empty_database")
    with nullcontext(postgres_server.fresh_url()) if is_empty else postgres_server.store_url() as url:
        place = PostgresPlace(url)
        yield place
        place.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each kind of database in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    """What steps did, in a file that all processes share."""
    return Effects(tmp_path / "effects")
