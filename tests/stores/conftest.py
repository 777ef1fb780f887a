"""A place for each kind of store, and the session's Postgres."""

from __future__ import annotations

import pytest
from store_places import InMemorySqlitePlace, MemoryPlace, PostgresPlace, SqlitePlace

from kit.postgres_server import SessionServer, session_server


@pytest.fixture(scope="session")
def postgres_server() -> SessionServer:
    """The session's server; it ends with the interpreter."""
    return session_server()


@pytest.fixture
def memory_place():
    return MemoryPlace()


@pytest.fixture
def in_memory_sqlite_place():
    place = InMemorySqlitePlace()
    yield place
    place.close()


@pytest.fixture
def sqlite_place(tmp_path):
    place = SqlitePlace(tmp_path / "runs.db")
    yield place
    place.close()


@pytest.fixture
def postgres_place(postgres_server):
    with postgres_server.store_url() as url:
        place = PostgresPlace(url)
        yield place
        place.close()
