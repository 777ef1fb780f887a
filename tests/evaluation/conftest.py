"""A database of each kind; the tests of evaluations need the extra `evals`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flujo_actors import MemoryStore
from kit.database_fixtures import place as place
from kit.database_fixtures import postgres_place as postgres_place
from kit.database_fixtures import postgres_server as postgres_server
from kit.database_fixtures import sqlite_place as sqlite_place


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        yield request.getfixturevalue(f"{request.param}_place").open()
