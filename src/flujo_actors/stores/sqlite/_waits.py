"""Waits of runs in a SQLite file: deadlines, sleepers, wakes and events.

A writer takes the file's write lock when its transaction begins: a send and the opening of a wait never overlap.

Sections:

- Events: sent, buffered, delivered and refused.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ..._core.outcomes import RunId
from ..._core.records.records import OpenPause, Record
from ..._core.records.sent_events import Accepts, EventInfo, EventStatus, Fate, OutgoingEvent, Sent
from ..._core.step_paths import StepPath
from .. import _question_lists as question_lists
from .._record_rows import event_info, not_found, restored, storable
from . import _record_writes as record_writes
from . import _statements as sql
from ._connections import SqliteConnections
from ._run_queries import owner_of


class SqliteWaits(ABC):
    """Deadlines and wake times of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _mark_ready(self, db: sqlite3.Connection, runs: Sequence[int]) -> None: ...

    def now(self) -> float:
        return self._wall()

    def expire(self, *, body: str) -> list[RunId]:
        found: dict[RunId, None] = {}
        while True:
            with self._connections.writing() as db:
                runs = record_writes.expire(db, body, self._wall())
                self._mark_ready(db, list(runs))
            found |= dict.fromkeys(runs.values())
            if not runs:
                return list(found)

    def next_due_s(self) -> float | None:
        with self._connections.reading() as db:
            [(due_at,)] = db.execute(sql.NEXT_DUE).fetchall()
        return None if due_at is None else due_at - self._wall()

    def due(self) -> int:
        with self._connections.writing() as db:
            return db.execute(sql.PROMOTE, (self._wall(),)).rowcount

    def next_wake_s(self, queues: Sequence[str] = ()) -> float | None:
        with self._connections.reading() as db:
            [(wake_at,)] = db.execute(sql.NEXT_WAKE).fetchall()
        return None if wake_at is None else wake_at - self._wall()

    def wake(self, run_id: RunId, path: StepPath | None = None, *, body: str) -> bool:
        wall = self._wall()
        named = {"run_id": storable(run_id), "path": None if path is None else storable(path), "wall": wall}
        with self._connections.writing() as db:
            runs = record_writes.end_waits(db, db.execute(sql.WAKE, named).fetchall(), body, wall)
            self._mark_ready(db, list(runs))
            started = db.execute(sql.START_NOW, named).fetchall() if path is None else []
            if not runs and not started and owner_of(db, run_id) is None:
                raise not_found(run_id)
        return bool(runs or started)


# --- Events -------------------------------------------------------------------------------------------------------


_FIND = "SELECT number, sent_at, dedupe_s, delivered FROM flujo_events WHERE event = ? AND id = ?"

_FORGET = "DELETE FROM flujo_events WHERE number = ?"

_PURGE = """
    DELETE FROM flujo_events WHERE number IN (SELECT number FROM flujo_events WHERE keep_until <= ? LIMIT ?)"""

_INSERT = """
    INSERT INTO flujo_events (event, key, id, body, sender, sent_at, status, delivered, retain_until, dedupe_s,
                              keep_until)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_OPEN = """
    SELECT p.id, p.run, run_id, p.path, p.token, p.message, p.body, p.due_at, p.asked_at, p.addressee, p.kind, p.wait,
           p.event, p.key
    FROM flujo_pauses AS p JOIN flujo_runs AS r ON r.id = p.run
    WHERE p.answered IS NULL AND p.event IS NOT NULL AND {} (p.due_at IS NULL OR p.due_at > :wall) ORDER BY p.id"""

_CONSUME = f"UPDATE flujo_pauses SET answered = {sql.EXPIRED} WHERE id = ?"

_LISTED = """
    SELECT id, event, key, status, sent_at, body, sender, delivered, refused_by, reason FROM flujo_events
    WHERE event = coalesce(:event, event) AND key = coalesce(:key, key) AND status = coalesce(:status, status)
    ORDER BY number DESC LIMIT :limit"""


class SqliteEvents(ABC):
    """Events of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _mark_ready(self, db: sqlite3.Connection, runs: Sequence[int]) -> None: ...

    def send(self, event: OutgoingEvent, accepts: Accepts) -> Sent:
        wall = self._wall()
        with self._connections.writing() as db:
            for number, sent_at, dedupe_s, delivered in db.execute(_FIND, (storable(event.event), event.id)).fetchall():
                if sent_at + dedupe_s > wall:
                    return Sent(event.id, "duplicate", tuple(json.loads(delivered)))
                db.execute(_FORGET, (number,))
            found = self._receivers(db, event, accepts, wall)
            for pause, run, path in found:
                db.execute(_CONSUME, (pause,))
                record_writes.add_records(db, run, [Record(kind="answered", path=path, body=event.body)], wall)
            self._mark_ready(db, list(dict.fromkeys(run for _, run, _ in found)))
            runs = tuple(record_writes.run_named(db, run) for _, run, _ in found)
            status: Fate = "delivered" if found or event.to_all else "buffered"
            _insert(db, event, status, runs, wall)
        return Sent(event.id, status, runs)

    def _receivers(
        self, db: sqlite3.Connection, event: OutgoingEvent, accepts: Accepts, wall: float
    ) -> list[tuple[int, int, StepPath]]:
        """Return the pauses that get the event, with their runs and paths."""
        wanted = {"event": storable(event.event), "key": storable(event.key), "wall": wall}
        rows = db.execute(_OPEN.format("p.event = :event AND p.key = :key AND"), wanted).fetchall()
        chosen = rows if event.to_all else rows[:1]
        for _, _, run_id, *columns in chosen:
            accepts(restored(run_id), question_lists.open_pause(*columns))
        return [(pause, run, StepPath(restored(columns[0]))) for pause, run, _, *columns in chosen]

    def waits(self, *, event: str | None = None, key: str | None = None) -> list[tuple[RunId, OpenPause]]:
        named = {"event": event and storable(event), "key": key and storable(key), "wall": self._wall()}
        chosen = [f"p.{name} = :{name} AND" for name in ("event", "key") if named[name] is not None]
        with self._connections.reading() as db:
            rows = db.execute(_OPEN.format(" ".join(chosen)), named).fetchall()
        return [(RunId(restored(run_id)), question_lists.open_pause(*columns)) for _, _, run_id, *columns in rows]

    def events(
        self, *, event: str | None = None, key: str | None = None, status: EventStatus | None = None, limit: int = 100
    ) -> list[EventInfo]:
        wanted = {"event": event and storable(event), "key": key and storable(key), "status": status, "limit": limit}
        with self._connections.reading() as db:
            return [event_info(*row) for row in db.execute(_LISTED, wanted)]

    def purge(self, *, limit: int = 1000) -> int:
        with self._connections.reading() as db:
            due = db.execute("SELECT 1 FROM flujo_events WHERE keep_until <= ? LIMIT 1", (self._wall(),)).fetchall()
        if not due:
            return 0  # without the lock of writers
        with self._connections.writing() as db:
            return db.execute(_PURGE, (self._wall(), limit)).rowcount


def _insert(
    db: sqlite3.Connection, event: OutgoingEvent, status: EventStatus, runs: Sequence[str], wall: float
) -> None:
    named = (storable(event.event), storable(event.key), event.id, storable(event.body))
    sender, until = event.by and storable(event.by), wall + event.retain_s
    delivered, kept = json.dumps(list(runs)), wall + event.keep_s
    db.execute(_INSERT, (*named, sender, wall, status, delivered, until, event.dedupe_s, kept))
