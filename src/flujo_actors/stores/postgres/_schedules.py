"""Schedules in Postgres.

A worker that fires a schedule skips the rows that another worker has locked.

Sections:

- Rate limits: virtual clocks, and slots under the leases of runs.
- Outputs of steps for later runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from ..._core.policies.rate_limits import RateGrant, RateInfo, RateReservation
from ..._core.policies.schedule_rules import StoredSchedule
from ..._core.records.records import Admission, CacheEntry, Lease
from ...errors import RunExists
from .._record_rows import rate_infos, restored, storable
from . import _statements as sql
from ._run_queries import hash_of

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession

_COLUMNS: LiteralString = "name, pipeline, queue, declared, progress, due_at, version"

_PUT: LiteralString = f"""
    INSERT INTO flujo_schedules ({_COLUMNS})
    VALUES (%(name)s, %(pipeline)s, %(queue)s, %(declared)s, %(progress)s, %(due_at)s, 1)
    ON CONFLICT (name) DO NOTHING RETURNING 1"""

_LOCK: LiteralString = """
    SELECT 1 FROM flujo_schedules WHERE name = %(name)s AND version = %(version)s FOR UPDATE SKIP LOCKED"""

_CHANGE: LiteralString = """
    UPDATE flujo_schedules SET pipeline = %(pipeline)s, queue = %(queue)s, declared = %(declared)s,
        progress = %(progress)s, due_at = %(due_at)s, version = version + 1
    WHERE name = %(name)s AND version = %(version)s RETURNING 1"""

_FIND: LiteralString = f"""
    SELECT {_COLUMNS}, {sql.TODAY} FROM flujo_schedules
    WHERE (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) AND (%(name)s::text IS NULL OR name = %(name)s)
      AND (NOT %(due)s OR due_at <= coalesce(%(wall)s::float8, extract(epoch FROM statement_timestamp())::float8))
    ORDER BY name"""

_IS_THERE: LiteralString = "SELECT 1 FROM flujo_schedules WHERE name = %(name)s AND progress = %(progress)s"

_REMOVE: LiteralString = "DELETE FROM flujo_schedules WHERE name = %s RETURNING 1"


class PostgresSchedules(ABC):
    """Schedules of a Postgres store."""

    _connections: PostgresConnections

    @abstractmethod
    def _admit(
        self, db: PostgresSession, admissions: Sequence[Admission], owner: str | None, lease_s: float
    ) -> tuple[list[Lease | RunExists], IsThere]:
        """Create runs."""

    @abstractmethod
    def _today(self) -> dict[str, float | None]:
        """Return the time parameters of statements."""

    def declare(self, schedule: StoredSchedule) -> bool:
        """Create a schedule, unless the name is used."""
        return self._written(_PUT, schedule)

    def get_all(
        self, *, pipeline: str | None = None, name: str | None = None, due: bool = False
    ) -> list[StoredSchedule]:
        """Return the matching schedules by name, with the store's time."""
        wanted = {"pipeline": pipeline and storable(pipeline), "name": name and storable(name), "due": due}
        rows = self._connections.read(lambda db: db.ask(_FIND, {**self._today(), **wanted}))
        return [_schedule(row) for row in rows]

    def change(self, schedule: StoredSchedule) -> bool:
        """Replace a schedule of the same version."""
        return self._written(_CHANGE, schedule)

    def fire(self, schedule: StoredSchedule, admissions: Sequence[Admission]) -> list[Lease | RunExists] | None:
        """Create runs and replace the schedule in one transaction.

        `None`, and nothing is written, if another worker was faster.
        """
        return self._connections.write(lambda db: self._fire(db, schedule, admissions))

    def _fire(
        self, db: PostgresSession, schedule: StoredSchedule, admissions: Sequence[Admission]
    ) -> tuple[list[Lease | RunExists] | None, IsThere]:
        row = _row(schedule)
        if not db.ask(_LOCK, row):
            return None, _repeatable
        db.execute(_CHANGE, row)
        answers = self._admit(db, admissions, None, 0.0)[0] if admissions else []
        return answers, lambda db: bool(db.ask(_IS_THERE, row))

    def remove(self, name: str) -> bool:
        """Delete a schedule; its runs stay."""
        return bool(self._connections.write(lambda db: (db.ask(_REMOVE, (storable(name),)), _repeatable)))

    def _written(self, statement: LiteralString, schedule: StoredSchedule) -> bool:
        row = _row(schedule)
        return self._connections.write(
            lambda db: (bool(db.ask(statement, row)), lambda db: bool(db.ask(_IS_THERE, row)))
        )


def _repeatable(db: PostgresSession) -> bool:
    return False


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


def _schedule(row: Sequence[Any]) -> StoredSchedule:
    name, pipeline, queue, declared, progress, due_at, version, now = row
    return StoredSchedule(
        name=restored(name),
        pipeline=restored(pipeline),
        queue=restored(queue),
        declared=restored(declared),
        progress=restored(progress),
        due_at=due_at,
        version=version,
        now=float(now),
    )


# --- Rate limits --------------------------------------------------------------------------------------------------
# A reservation is one statement. The row without a resource has the block of a bucket.


_NOW: LiteralString = sql.TODAY

_BLOCKED: LiteralString = "coalesce((SELECT blocked_until FROM flujo_rates WHERE name = %(name)s AND resource = ''), 0)"

_RESERVE: LiteralString = f"""
    WITH t AS (SELECT {_NOW} AS now, {_BLOCKED} AS blocked)
    INSERT INTO flujo_rates AS r (name, resource, free_at, granted, asked_at)
    SELECT %(name)s, %(resource)s,
        now + %(opening_s)s::float8
            + CASE WHEN greatest(blocked - now, 0) <= %(max_wait_s)s THEN %(seconds)s::float8 ELSE 0 END,
        greatest(blocked - now, 0) <= %(max_wait_s)s, now FROM t
    ON CONFLICT (name, resource) DO UPDATE SET
        granted = greatest(greatest(r.free_at, excluded.asked_at) - %(burst_s)s, {_BLOCKED}, excluded.asked_at)
            - excluded.asked_at <= %(max_wait_s)s,
        free_at = CASE WHEN greatest(greatest(r.free_at, excluded.asked_at) - %(burst_s)s, {_BLOCKED},
                excluded.asked_at) - excluded.asked_at <= %(max_wait_s)s
            THEN greatest(r.free_at, excluded.asked_at) + %(seconds)s::float8 ELSE r.free_at END,
        asked_at = excluded.asked_at
    RETURNING granted, free_at, refunded, {_BLOCKED}, asked_at"""

_SETTLE: LiteralString = """
    UPDATE flujo_rates SET free_at = free_at - %(seconds)s, refunded = refunded + %(seconds)s
    WHERE name = %(name)s AND resource = %(resource)s
      AND (%(only_at)s::float8 IS NULL OR free_at = %(only_at)s) RETURNING 1"""

_BLOCK: LiteralString = f"""
    INSERT INTO flujo_rates AS r (name, resource, blocked_until) VALUES (%(name)s, '', {_NOW} + %(for_s)s::float8)
    ON CONFLICT (name, resource) DO UPDATE SET blocked_until = greatest(r.blocked_until, excluded.blocked_until)
    RETURNING 1"""

_LOCK_SLOTS: LiteralString = "SELECT pg_advisory_xact_lock(hashtextextended('flujo slots ' || %(name)s, 0))"

_IN_USE: LiteralString = f"""
    SELECT count(*) FROM flujo_slots s JOIN flujo_runs r ON r.run_hash = s.run AND r.epoch = s.epoch
    WHERE s.name = %(name)s AND {sql.HELD}"""

_TAKE: LiteralString = """
    INSERT INTO flujo_slots (name, run, epoch, holder) VALUES (%(name)s, %(run)s, %(epoch)s, %(holder)s)
    ON CONFLICT (name, run, holder) DO UPDATE SET epoch = excluded.epoch"""

_RELEASE: LiteralString = (
    "DELETE FROM flujo_slots WHERE name = %(name)s AND run = %(run)s AND holder = %(holder)s RETURNING 1"
)

_RATES: LiteralString = f"""
    SELECT name, resource, free_at, refunded, blocked_until, 0::bigint FROM flujo_rates
    WHERE %(name)s::text IS NULL OR name = %(name)s
    UNION ALL
    SELECT s.name, 'at_once', NULL, 0, 0, count(*) FROM flujo_slots s
    JOIN flujo_runs r ON r.run_hash = s.run AND r.epoch = s.epoch
    WHERE (%(name)s::text IS NULL OR s.name = %(name)s) AND {sql.HELD} GROUP BY s.name"""


class PostgresRates(ABC):
    """Rate limits of a Postgres store."""

    _connections: PostgresConnections

    @abstractmethod
    def _time(self) -> dict[str, Any]:
        """Return the lease time parameters of statements."""

    @abstractmethod
    def _today(self) -> dict[str, float | None]:
        """Return the time parameters of statements."""

    def reserve(self, wanted: RateReservation) -> RateGrant:
        """Reserve an amount, or refuse it, in one statement."""
        asked = {**self._today(), "name": storable(wanted.name), "resource": wanted.resource}
        asked |= {"seconds": wanted.seconds, "burst_s": wanted.burst_s, "max_wait_s": wanted.max_wait_s}
        asked |= {"opening_s": wanted.opening_s}
        [(granted, free_at, refunded, blocked, now)] = self._connections.write(
            lambda db: (db.ask(_RESERVE, asked), _repeatable)
        )
        begin = free_at - wanted.seconds if granted else max(free_at, now)
        return RateGrant(
            granted=granted,
            free_at=free_at,
            refunded=refunded,
            blocked_until=blocked,
            now=now,
            starts_at=max(begin - wanted.burst_s, blocked, now),
        )

    def settle(self, name: str, resource: str, seconds: float, *, only_at: float | None = None) -> None:
        """Refund unused seconds of a reservation."""
        named = {"name": storable(name), "resource": resource, "seconds": seconds, "only_at": only_at}
        self._connections.write(lambda db: (db.ask(_SETTLE, named), _repeatable))

    def block(self, name: str, *, for_s: float) -> None:
        """Block a bucket for all processes."""
        named = {**self._today(), "name": storable(name), "for_s": for_s}
        self._connections.write(lambda db: (db.ask(_BLOCK, named), _repeatable))

    def slots(self, lease: Lease, name: str, holder: str, *, limit: int | None) -> bool:
        """Take a slot under a lease; without a limit, release it."""
        named = {**self._time(), "name": storable(name), "run": hash_of(lease.run_id), "epoch": lease.epoch}
        named["holder"] = storable(holder)
        if limit is None:
            self._connections.write(lambda db: (db.ask(_RELEASE, named), _repeatable))
            return True
        return self._connections.write(lambda db: (self._take(db, named, limit), _repeatable))

    def _take(self, db: PostgresSession, named: dict[str, Any], limit: int) -> bool:
        db.ask(_LOCK_SLOTS, named)
        [(in_use,)] = db.ask(_IN_USE, named)
        if in_use < limit:
            db.execute(_TAKE, named)
        return bool(in_use < limit)

    def rates(self, name: str | None = None) -> list[RateInfo]:
        """Return the state of rate limits by name and resource."""
        named = {**self._time(), "name": name and storable(name)}
        return rate_infos(self._connections.read(lambda db: db.ask(_RATES, named)))


# --- Outputs of steps for later runs ------------------------------------------------------------------------------


_WRITE_CACHED: LiteralString = f"""
    INSERT INTO flujo_cache (key, pipeline, step, until, body)
    VALUES (%(key)s, %(pipeline)s, %(step)s, {_NOW} + %(ttl_s)s::float8, %(body)s)
    ON CONFLICT (key) DO UPDATE SET until = excluded.until, body = excluded.body"""

_FORGET_EXPIRED: LiteralString = f"""
    DELETE FROM flujo_cache WHERE key IN (
        SELECT key FROM flujo_cache WHERE until <= {_NOW} LIMIT 100 FOR UPDATE SKIP LOCKED)"""

_CACHED: LiteralString = f"SELECT body FROM flujo_cache WHERE key = %(key)s AND until > {_NOW}"

_CLEAR: LiteralString = """
    DELETE FROM flujo_cache WHERE (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
      AND (%(step)s::text IS NULL OR step = %(step)s) RETURNING 1"""


def write_cached(db: PostgresSession, entries: Sequence[CacheEntry], today: dict[str, float | None]) -> None:
    """Write outputs for later runs, and forget some expired ones."""
    db.execute(_FORGET_EXPIRED, today)
    for each in sorted(entries, key=lambda entry: entry.key):
        row = {"key": each.key, "pipeline": storable(each.pipeline), "step": storable(each.step)}
        db.execute(_WRITE_CACHED, {**today, **row, "ttl_s": each.ttl_s, "body": storable(each.body)})


class PostgresCache(ABC):
    """Outputs of steps in a Postgres store."""

    _connections: PostgresConnections

    @abstractmethod
    def _today(self) -> dict[str, float | None]:
        """Return the time parameters of statements."""

    def cached(self, key: str) -> str | None:
        """Return the output of an unexpired entry, or None."""
        rows = self._connections.read(lambda db: db.ask(_CACHED, {**self._today(), "key": key}))
        return restored(rows[0][0]) if rows else None

    def clear_cache(self, pipeline: str | None = None, step: str | None = None) -> int:
        """Delete entries; return their number."""
        named = {"pipeline": pipeline and storable(pipeline), "step": step and storable(step)}
        return len(self._connections.write(lambda db: (db.ask(_CLEAR, named), _repeatable)))
