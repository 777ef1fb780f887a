"""What steps are saying, passed on in a file beside the store's: nothing of it waits for a disk, or survives.

The file is made by the first who watches from another process; until then its absence says that nobody does.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ...errors import StoreError
from .._rows import restored, storable
from ._connections import SqliteConnections

_TIMEOUT_S = 1.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS wanted (run TEXT PRIMARY KEY, until REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS texts (run TEXT NOT NULL, path TEXT NOT NULL, text TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS texts_by_run ON texts (run)",
)


class SqliteTexts:
    """The part of a SQLite store that passes on what steps are saying."""

    _connections: SqliteConnections

    def swap_texts(self, said: Mapping[RunId, Mapping[StepPath, str]]) -> set[RunId]:
        if self._connections.in_memory or not os.path.exists(self._texts_file):
            return set()
        with self._texts() as db:
            asked = {run for (run,) in db.execute("SELECT run FROM wanted WHERE until > ?", (time.time(),))}
            wanted = {run_id for run_id in said if storable(run_id) in asked}
            for run_id in wanted:
                _replace(db, run_id, said[run_id])
        return wanted

    def watch_texts(self, run_ids: Sequence[RunId], *, for_s: float) -> dict[RunId, dict[StepPath, str]]:
        if self._connections.in_memory:
            return {}
        until = time.time() + for_s
        with self._texts() as db:
            for statement in _TABLES:
                db.execute(statement)
            db.execute("DELETE FROM texts WHERE run IN (SELECT run FROM wanted WHERE until < ?)", (time.time(),))
            db.executemany("INSERT OR REPLACE INTO wanted VALUES (?, ?)", [(storable(each), until) for each in run_ids])
            return {run_id: _left(db, run_id) for run_id in run_ids}

    @property
    def _texts_file(self) -> str:
        return f"{self._connections.file}-live"

    @contextlib.contextmanager
    def _texts(self) -> Iterator[sqlite3.Connection]:
        """A connection for one exchange: nothing is kept open, so nothing is in the way of forks."""
        try:
            with contextlib.closing(sqlite3.connect(self._texts_file, timeout=_TIMEOUT_S)) as db, db:
                db.execute("PRAGMA synchronous = OFF")
                yield db
        except sqlite3.Error as error:
            raise StoreError(f"{self._texts_file}: {error}") from error


def _replace(db: sqlite3.Connection, run_id: RunId, texts: Mapping[StepPath, str]) -> None:
    run = storable(run_id)
    db.execute("DELETE FROM texts WHERE run = ?", (run,))
    rows = [(run, storable(path), storable(text)) for path, text in texts.items()]
    db.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)


def _left(db: sqlite3.Connection, run_id: RunId) -> dict[StepPath, str]:
    rows = db.execute("SELECT path, text FROM texts WHERE run = ?", (storable(run_id),)).fetchall()
    return {StepPath(restored(path)): restored(text) for path, text in rows}
