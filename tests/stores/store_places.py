"""Where the conformance suite runs: memory, a SQLite file, a Postgres schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from flujo_actors.stores._memory_store import MemoryStore
from flujo_actors.stores._store_port import Store
from flujo_actors.stores.postgres._store import PostgresStore
from flujo_actors.stores.sqlite._store import SqliteStore
from flujo_actors.testing.store_conformance import ManualClock, StorePlace

TABLES = ("schema", "runs", "records", "pauses", "blobs")
DELETE_BLOBS = "DELETE FROM flujo_blobs"
TRUNCATE_BLOBS = "UPDATE flujo_blobs SET data = substr(data, 1, length(data) - 1)"


class MemoryPlace(StorePlace):
    """The memory of one store, whoever opens it."""

    between_processes = False

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._store = MemoryStore(clock=self.clock)

    def open(self) -> Store:
        return self._store

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        self._store.close()


class InMemorySqlitePlace(MemoryPlace):
    """A SQLite database in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._store = SqliteStore(":memory:", clock=self.clock)


class SqlitePlace(StorePlace):
    """A SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self._opened: list[SqliteStore] = []

    def open(self) -> Store:
        self._opened.append(SqliteStore(self.path, clock=self.clock))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def damage(self, run_id, seq, **columns):
        for column, value in columns.items():
            self._change(
                f"UPDATE flujo_records SET {column} = ? WHERE seq = ? "
                "AND run = (SELECT id FROM flujo_runs WHERE run_id = ?)",
                (value, seq, run_id),
            )

    def damage_blobs(self, *, delete):
        change = (
            "DELETE FROM flujo_blobs" if delete else "UPDATE flujo_blobs SET data = substr(data, 1, length(data) - 1)"
        )
        self._change(change)

    def count_blobs(self):
        return self._select("SELECT count(*) FROM flujo_blobs")[0][0]

    def version(self):
        return self._select("SELECT version FROM flujo_schema")[0][0]

    def set_version(self, version):
        self._change("UPDATE flujo_schema SET version = ?", (version,))

    def dump(self):
        return [repr(row) for table in TABLES for row in self._select(f"SELECT * FROM flujo_{table} ORDER BY 1")]

    def integrity(self) -> str:
        """What SQLite itself says about the file."""
        return self._select("PRAGMA integrity_check")[0][0]

    def _select(self, statement):
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(statement).fetchall()

    def _change(self, statement, parameters=()):
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(statement, parameters)


class PostgresPlace(StorePlace):
    """A schema of a Postgres database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self._opened: list[PostgresStore] = []

    def open(self) -> Store:
        self._opened.append(PostgresStore(self.url, clock=self.clock))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def damage(self, run_id, seq, **columns):
        for column, value in columns.items():
            self._run(
                f"UPDATE flujo_records SET {column} = %s WHERE seq = %s "
                "AND run = (SELECT id FROM flujo_runs WHERE run_id = %s) RETURNING 1",
                (value, seq, run_id),
            )

    def damage_blobs(self, *, delete):
        change = (
            "DELETE FROM flujo_blobs" if delete else "UPDATE flujo_blobs SET data = substr(data, 1, length(data) - 1)"
        )
        self._run(f"{change} RETURNING 1")

    def count_blobs(self):
        return self._run("SELECT count(*) FROM flujo_blobs")[0][0]

    def version(self):
        return self._run("SELECT version FROM flujo_schema")[0][0]

    def set_version(self, version):
        self._run("UPDATE flujo_schema SET version = %s RETURNING 1", (version,))

    def dump(self):
        return [repr(row) for table in TABLES for row in self._run(f"SELECT t::text FROM flujo_{table} t ORDER BY 1")]

    def _run(self, statement, parameters=()):
        with psycopg.connect(self.url, autocommit=True) as db:
            return db.execute(statement, parameters).fetchall()
