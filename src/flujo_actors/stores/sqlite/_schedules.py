"""Schedules in a SQLite file.

Sections:

- Rate limits: virtual clocks, and slots under the leases of runs.
- Outputs of steps for later runs.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ..._core.policies.rate_limits import RateGrant, RateInfo, RateReservation
from ..._core.policies.schedule_rules import StoredSchedule
from ..._core.records.records import Admission, CacheEntry, Lease
from ...errors import RunExists
from .._record_rows import rate_infos, restored, storable
from . import _statements as sql
from ._connections import SqliteConnections
from ._run_queries import RunPositions

_COLUMNS = "name, pipeline, queue, declared, progress, due_at, version"

_PUT = f"""
    INSERT INTO flujo_schedules ({_COLUMNS}) VALUES (:name, :pipeline, :queue, :declared, :progress, :due_at, 1)
    ON CONFLICT (name) DO NOTHING"""

_CHANGE = """
    UPDATE flujo_schedules SET pipeline = :pipeline, queue = :queue, declared = :declared, progress = :progress,
        due_at = :due_at, version = version + 1
    WHERE name = :name AND version = :version"""

_FIND = f"""
    SELECT {_COLUMNS} FROM flujo_schedules
    WHERE (:pipeline IS NULL OR pipeline = :pipeline) AND (:name IS NULL OR name = :name)
      AND (:due = 0 OR due_at <= :now) ORDER BY name"""


class SqliteSchedules:
    """Schedules of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]
    _places: RunPositions

    @abstractmethod
    def _admit(
        self, db: sqlite3.Connection, admission: Admission, owner: str | None, lease_s: float
    ) -> Lease | RunExists:
        """Create one run."""

    def declare(self, schedule: StoredSchedule) -> bool:
        """Create a schedule, unless the name is used."""
        with self._connections.writing() as db:
            return db.execute(_PUT, _row(schedule)).rowcount == 1

    def get_all(
        self, *, pipeline: str | None = None, name: str | None = None, due: bool = False
    ) -> list[StoredSchedule]:
        """Return the matching schedules by name, with the store's time."""
        now = self._wall()
        wanted = {
            "pipeline": pipeline and storable(pipeline),
            "name": name and storable(name),
            "due": int(due),
            "now": now,
        }
        with self._connections.reading() as db:
            return [_schedule(row, now) for row in db.execute(_FIND, wanted).fetchall()]

    def change(self, schedule: StoredSchedule) -> bool:
        """Replace a schedule of the same version."""
        with self._connections.writing() as db:
            return db.execute(_CHANGE, _row(schedule)).rowcount == 1

    def fire(self, schedule: StoredSchedule, admissions: Sequence[Admission]) -> list[Lease | RunExists] | None:
        """Create runs and replace the schedule in one transaction.

        `None`, and nothing is written, if another worker was faster.
        """
        with self._places, self._connections.writing() as db:
            if db.execute(_CHANGE, _row(schedule)).rowcount != 1:
                return None
            return [self._admit(db, admission, None, 0.0) for admission in admissions]

    def remove(self, name: str) -> bool:
        """Delete a schedule; its runs stay."""
        with self._connections.writing() as db:
            return db.execute("DELETE FROM flujo_schedules WHERE name = ?", (storable(name),)).rowcount == 1


def _row(schedule: StoredSchedule) -> dict[str, object]:
    return {
        "name": storable(schedule.name),
        "pipeline": storable(schedule.pipeline),
        "queue": storable(schedule.queue),
        "declared": storable(schedule.declared),
        "progress": storable(schedule.progress),
        "due_at": schedule.due_at,
        "version": schedule.version,
    }


def _schedule(row: tuple[str, str, str, str, str, float | None, int], now: float) -> StoredSchedule:
    name, pipeline, queue, declared, progress, due_at, version = row
    return StoredSchedule(
        name=restored(name),
        pipeline=restored(pipeline),
        queue=restored(queue),
        declared=restored(declared),
        progress=restored(progress),
        due_at=due_at,
        version=version,
        now=now,
    )


# --- Rate limits --------------------------------------------------------------------------------------------------
# A reservation is one statement. The row without a resource has the block of a bucket.


_BLOCKED = "coalesce((SELECT blocked_until FROM flujo_rates WHERE name = :name AND resource = ''), 0)"

_STARTS = f"max(max(free_at, :now) - :burst_s, {_BLOCKED}, :now)"

_RESERVE = f"""
    INSERT INTO flujo_rates (name, resource, free_at, granted)
    VALUES (:name, :resource,
        :now + :opening_s + CASE WHEN max({_BLOCKED} - :now, 0) <= :max_wait_s THEN :seconds ELSE 0 END,
        max({_BLOCKED} - :now, 0) <= :max_wait_s)
    ON CONFLICT (name, resource) DO UPDATE SET
        granted = {_STARTS} - :now <= :max_wait_s,
        free_at = CASE WHEN {_STARTS} - :now <= :max_wait_s THEN max(free_at, :now) + :seconds ELSE free_at END
    RETURNING granted, free_at, refunded, {_BLOCKED}"""

_SETTLE = """
    UPDATE flujo_rates SET free_at = free_at - :seconds, refunded = refunded + :seconds
    WHERE name = :name AND resource = :resource AND (:only_at IS NULL OR free_at = :only_at)"""

_BLOCK = """
    INSERT INTO flujo_rates (name, resource, blocked_until) VALUES (:name, '', :until)
    ON CONFLICT (name, resource) DO UPDATE SET blocked_until = max(blocked_until, :until)"""

_IN_USE = f"""
    SELECT count(*) FROM flujo_slots s JOIN flujo_runs r ON r.run_id = s.run AND r.epoch = s.epoch
    WHERE s.name = :name AND {sql.HELD}"""

_RATES = f"""
    SELECT name, resource, free_at, refunded, blocked_until, 0 FROM flujo_rates WHERE :name IS NULL OR name = :name
    UNION ALL
    SELECT s.name, 'at_once', NULL, 0, 0, count(*) FROM flujo_slots s
    JOIN flujo_runs r ON r.run_id = s.run AND r.epoch = s.epoch
    WHERE (:name IS NULL OR s.name = :name) AND {sql.HELD} GROUP BY s.name"""


class SqliteRates(ABC):
    """Rate limits of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _time(self) -> dict[str, Any]: ...

    def reserve(self, wanted: RateReservation) -> RateGrant:
        """Reserve an amount, or refuse it, in one statement."""
        now = self._wall()
        named = {"name": storable(wanted.name), "resource": wanted.resource, "now": now, "seconds": wanted.seconds}
        named |= {"burst_s": wanted.burst_s, "max_wait_s": wanted.max_wait_s, "opening_s": wanted.opening_s}
        with self._connections.writing() as db:
            [(granted, free_at, refunded, blocked)] = db.execute(_RESERVE, named).fetchall()
        begin = free_at - wanted.seconds if granted else max(free_at, now)
        return RateGrant(
            granted=bool(granted),
            free_at=free_at,
            refunded=refunded,
            blocked_until=blocked,
            now=now,
            starts_at=max(begin - wanted.burst_s, blocked, now),
        )

    def settle(self, name: str, resource: str, seconds: float, *, only_at: float | None = None) -> None:
        """Refund unused seconds of a reservation."""
        named = {"name": storable(name), "resource": resource, "seconds": seconds, "only_at": only_at}
        with self._connections.writing() as db:
            db.execute(_SETTLE, named)

    def block(self, name: str, *, for_s: float) -> None:
        """Block a bucket for all processes."""
        with self._connections.writing() as db:
            db.execute(_BLOCK, {"name": storable(name), "until": self._wall() + for_s})

    def slots(self, lease: Lease, name: str, holder: str, *, limit: int | None) -> bool:
        """Take a slot under a lease; without a limit, release it."""
        named = {**self._time(), "name": storable(name), "run": storable(lease.run_id), "epoch": lease.epoch}
        named["holder"] = storable(holder)
        with self._connections.writing() as db:
            if limit is None:
                db.execute("DELETE FROM flujo_slots WHERE name = :name AND run = :run AND holder = :holder", named)
                return True
            [(in_use,)] = db.execute(_IN_USE, named).fetchall()
            if in_use < limit:
                db.execute("INSERT OR REPLACE INTO flujo_slots VALUES (:name, :run, :epoch, :holder)", named)
            return bool(in_use < limit)

    def rates(self, name: str | None = None) -> list[RateInfo]:
        """Return the state of rate limits by name and resource."""
        with self._connections.reading() as db:
            rows = db.execute(_RATES, {**self._time(), "name": name and storable(name)}).fetchall()
        return rate_infos(rows)


# --- Outputs of steps for later runs ------------------------------------------------------------------------------


_CLEAR = """
    DELETE FROM flujo_cache WHERE (:pipeline IS NULL OR pipeline = :pipeline) AND (:step IS NULL OR step = :step)"""


def write_cached(db: sqlite3.Connection, entries: Sequence[CacheEntry], wall: float) -> None:
    """Write outputs for later runs, and forget some expired ones."""
    db.execute("DELETE FROM flujo_cache WHERE key IN (SELECT key FROM flujo_cache WHERE until <= ? LIMIT 100)", (wall,))
    for each in entries:
        row = (each.key, storable(each.pipeline), storable(each.step), wall + each.ttl_s, storable(each.body))
        db.execute("INSERT OR REPLACE INTO flujo_cache (key, pipeline, step, until, body) VALUES (?, ?, ?, ?, ?)", row)


class SqliteCache:
    """Outputs of steps in a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    def cached(self, key: str) -> str | None:
        """Return the output of an unexpired entry, or None."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT body FROM flujo_cache WHERE key = ? AND until > ?", (key, self._wall())
            ).fetchall()
        return restored(rows[0][0]) if rows else None

    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete entries; return their number."""
        named = {"pipeline": pipeline and storable(pipeline), "step": step and storable(step)}
        with self._connections.writing() as db:
            return db.execute(_CLEAR, named).rowcount
