"""The conformance suite on every store of the library."""

from __future__ import annotations

import pytest

from flujo_actors.testing.store_conformance import StoreConformance

pytestmark = pytest.mark.slow


class TestMemoryStore(StoreConformance):
    """Runs in memory."""

    @pytest.fixture
    def place(self, memory_place):
        return memory_place


class TestSqliteInMemory(StoreConformance):
    """A SQLite database in memory."""

    @pytest.fixture
    def place(self, in_memory_sqlite_place):
        return in_memory_sqlite_place


class TestSqliteStore(StoreConformance):
    """A SQLite file."""

    @pytest.fixture
    def place(self, sqlite_place):
        yield sqlite_place
        if sqlite_place.path.exists():
            assert sqlite_place.integrity() == "ok"


class TestPostgresStore(StoreConformance):
    """A Postgres schema."""

    @pytest.fixture
    def place(self, postgres_place):
        return postgres_place
