"""Databases for durable runs: one that a test opens as often as it likes, as different processes would."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import psycopg

from flujo_actors.stores._store_port import Store
from flujo_actors.stores.postgres._store import PostgresStore
from flujo_actors.stores.sqlite._store import SqliteStore


@attrs.frozen
class LateClock:
    """The machine's clock, some seconds ahead: whoever uses it sees the leases of the dead as expired."""

    ahead_s: float

    def boot(self) -> str:
        return "the boot of this test"

    def now(self) -> float:
        return time.monotonic() + self.ahead_s


ON_TIME, AN_HOUR_LATER = LateClock(0.0), LateClock(3600.0)


class SqlitePlace:
    """A SQLite file. Its commits need not survive a power failure here, only the death of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[Store] = []

    def open(self, clock: LateClock = ON_TIME, **options: Any) -> Store:
        options = {"synchronous": "OFF", **options}
        self._opened.append(SqliteStore(self.path, clock=clock, **options))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def forget(self) -> None:
        """Leave it to others to close what was opened."""
        self._opened.clear()

    def check(self) -> None:
        """What SQLite itself says about the file."""
        assert self.query("PRAGMA integrity_check") == [("ok",)]

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            return db.execute(statement.replace("%s", "?"), parameters).fetchall()

    def write_through(self, connection: Any, statement: str, *parameters: Any) -> None:
        """Run a statement through a connection that a transaction lent."""
        connection.execute(statement.replace("%s", "?"), parameters)


class PostgresPlace:
    """A schema of a Postgres database."""

    def __init__(self, url: str, *, safe: bool = False) -> None:
        self.url = url if safe else f"{url}%20-csynchronous_commit%3Doff"
        self._opened: list[Store] = []

    def open(self, clock: LateClock | None = ON_TIME, **options: Any) -> Store:
        self._opened.append(PostgresStore(self.url, clock=clock, **options))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def forget(self) -> None:
        """Leave it to others to close what was opened."""
        self._opened.clear()

    def check(self) -> None:
        """No record is numbered twice, none is missing."""
        assert self.query("SELECT 1 FROM flujo_records GROUP BY run HAVING count(*) <> max(seq)") == []

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def write_through(self, connection: Any, statement: str, *parameters: Any) -> None:
        connection.execute(statement, parameters)


Place = SqlitePlace | PostgresPlace
