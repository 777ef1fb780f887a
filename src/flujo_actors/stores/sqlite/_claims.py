"""Claims of queued runs in SQLite: in order, several at once.

Rules:

1. `_core.policies.claim_order` has the order. A queue without keys and priorities is searched by one statement; the
   others are named in `flujo_queues` by the admission of their first run with a key or a priority, and stay there.
2. A worker that finds nothing takes no write lock: it reads first.
3. A loose scan of the index `flujo_runs_claimable` finds keys: one probe for each, from the worker's last key on.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..._core.outcomes import RunId
from ..._core.policies.claim_order import in_turns, rows_per_key
from ..._core.records.records import ClaimedRun, ClaimOrder, Lease, StoredRun
from .. import _record_rows as refusals
from .._record_rows import as_records, restored, storable
from . import _statements as sql
from ._connections import CommitNotices, SqliteConnections
from ._record_writes import expire_run
from ._run_queries import record_rows

_NEXT = """
    queue = :queue AND ready = 1 AND cancel IS NULL
    AND +pipeline = :pipeline AND (:fingerprint IS NULL OR fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:without = '[]' OR run_id NOT IN (SELECT value FROM json_each(:without)))
    AND (:waiting_s <= 0 OR epoch > 0 OR +status <> 'running' OR created_at <= :wall - :waiting_s)"""

_ANY = f"SELECT 1 FROM flujo_runs WHERE {_NEXT} LIMIT 1"

_OLDEST = f"""
    SELECT id FROM flujo_runs WHERE {_NEXT} AND priority = 0 AND key = '' ORDER BY wake_at, id LIMIT :limit"""

_OF_TICKETS = f"""
    SELECT id FROM flujo_runs
    WHERE {_NEXT} AND priority = 0 AND key = '' AND run_id IN (SELECT value FROM json_each(:tickets))
    ORDER BY wake_at, id LIMIT :limit"""

_IS_ORDERED = "SELECT 1 FROM flujo_queues WHERE name = ?"

_MARK_ORDERED = """
    INSERT OR IGNORE INTO flujo_queues (name)
    SELECT queue FROM flujo_runs WHERE id = ? AND (key <> '' OR priority <> 0)"""

_NEXT_PRIORITY = f"""
    SELECT priority FROM flujo_runs WHERE {_NEXT} AND priority < :below ORDER BY priority DESC LIMIT 1"""

_NEXT_KEY = f"""
    SELECT key FROM flujo_runs WHERE {_NEXT} AND priority = :priority AND key > :after ORDER BY key LIMIT 1"""
"""One probe of the loose index scan."""

_FIRST_KEY = f"SELECT key FROM flujo_runs WHERE {_NEXT} AND priority = :priority ORDER BY key LIMIT 1"

_OF_KEY = f"""
    SELECT id FROM flujo_runs WHERE {_NEXT} AND priority = :priority AND key = :key ORDER BY wake_at, id LIMIT :limit"""

_LEASED = f"""
    SELECT count(*) FROM flujo_runs
    WHERE {sql.HELD} AND +queue = :queue AND key = :key AND run_id <> coalesce(:run_id, '')"""

_KEY_OF = "SELECT queue, key FROM flujo_runs WHERE run_id = ?"

_GRANT = """
    UPDATE flujo_runs
    SET owner = :owner, epoch = epoch + 1, lease_boot = :boot, lease_from = :now, lease_until = :until,
        started_at = coalesce(started_at, :wall), claimed_at = :wall, ready = NULL, wake_at = NULL,
        status = CASE WHEN epoch = 0 THEN 'running' ELSE status END
    WHERE id = :run"""

_CLAIM_UNCHANGED = f"""
    UPDATE flujo_runs
    SET owner = :owner, epoch = epoch + 1, lease_boot = :boot, lease_from = :now, lease_until = :until,
        started_at = coalesce(started_at, :wall), claimed_at = :wall, ready = NULL, wake_at = NULL
    WHERE run_id = :run_id AND epoch = :epoch AND ended_at IS NULL AND (owner = :dead OR NOT ({sql.HELD}))
    RETURNING id"""

_READY_KEYS = """
    SELECT queue, key, count(*) FROM flujo_runs
    WHERE ready = 1 AND queue IS NOT NULL AND +parent IS NULL GROUP BY queue, key"""


class SqliteClaims(ABC):
    """Claims of a SQLite store in the order of a queue."""

    _connections: SqliteConnections

    @abstractmethod
    def _stored(self, db: sqlite3.Connection, where: str, parameters: Mapping[str, object]) -> list[StoredRun]: ...

    @abstractmethod
    def _time(self) -> dict[str, Any]: ...

    @abstractmethod
    def _is_watched(self, run_id: RunId) -> bool: ...

    def claim_next(self, order: ClaimOrder, *, owner: str, lease_s: float) -> list[ClaimedRun]:
        with self._connections.reading() as db:
            now = self._time()
            if not any(db.execute(_ANY, {**now, **_wanted(order, queue)}).fetchall() for queue in order.queues):
                return []
        with self._connections.writing() as db:
            ids = self._next(db, order)
            listed = {"ids": json.dumps(ids)}
            before = self._stored(db, "WHERE id IN (SELECT value FROM json_each(:ids))", listed) if ids else []
            now = self._time()
            granted = {**now, "owner": storable(owner), "until": now["now"] + lease_s}
            db.executemany(_GRANT, [{**granted, "run": run} for run in ids])
            ordered = _in_order(db, before, ids)
            for key, run in zip(ids, ordered, strict=True):
                if not run.unclaimed:  # a new run waits for nothing
                    expire_run(db, key, now["wall"])
            taken = [_claimed(db, run, owner) for run in ordered]
        watched = [attrs.evolve(each.lease, watched=self._is_watched(each.run.run_id)) for each in taken]
        return [attrs.evolve(each, lease=lease) for each, lease in zip(taken, watched, strict=True)]

    def claim_all(self, runs: Sequence[StoredRun], *, owner: str, lease_s: float) -> list[ClaimedRun]:
        with self._connections.writing() as db:
            now = self._time()
            granted = {**now, "owner": storable(owner), "until": now["now"] + lease_s}
            taken = [run for run in runs if db.execute(_CLAIM_UNCHANGED, {**granted, **_as_seen(run)}).fetchall()]
            rows = [record_rows(db, run.run_id, 0) for run in taken]
        return [
            ClaimedRun(
                lease=Lease(run_id=run.run_id, owner=owner, epoch=run.epoch + 1, watched=self._is_watched(run.run_id)),
                run=run,
                records=refusals.readable(run.run_id, found),
            )
            for run, found in zip(taken, rows, strict=True)
        ]

    def commit_notices(self) -> CommitNotices | None:
        return self._connections.notices()

    def ready_keys(self) -> list[tuple[str, str, int]]:
        with self._connections.reading() as db:
            rows = db.execute(_READY_KEYS).fetchall()
        return [(restored(queue), restored(key), count) for queue, key, count in rows]

    def _next(self, db: sqlite3.Connection, order: ClaimOrder) -> list[int]:
        found: list[int] = []
        for queue in order.queues:
            wanted, left = {**self._time(), **_wanted(order, queue)}, order.limit - len(found)
            if left and order.per_key is None and not db.execute(_IS_ORDERED, (storable(queue),)).fetchall():
                found += _oldest(db, order, {**wanted, "limit": left})
            elif left:
                after = order.after.get(queue)
                search = _SqliteSearch(db, wanted, left, order.per_key)
                found += search.found(None if after is None else storable(after))
        return found

    def _refuse_if_full(self, db: sqlite3.Connection, run_id: RunId, per_key: int) -> None:
        """Raise `RunLeased` if the run's key has no free lease."""
        for queue, key in db.execute(_KEY_OF, (storable(run_id),)).fetchall():
            named = {**self._time(), "queue": queue, "key": key, "run_id": storable(run_id)}
            [(count,)] = db.execute(_LEASED, named).fetchall()
            if count >= per_key:
                raise refusals.key_is_full(run_id, restored(key), per_key)


class _SqliteSearch:
    """Search of the next runs of one queue with keys or priorities."""

    def __init__(self, db: sqlite3.Connection, wanted: Mapping[str, Any], limit: int, per_key: int | None) -> None:
        self._db, self._wanted, self._limit, self._per_key = db, wanted, limit, per_key

    def found(self, after: str | None) -> list[int]:
        """Return the keys of the next runs' rows."""
        chosen: list[int] = []
        for priority in self._priorities():
            of_priority = {**self._wanted, "priority": priority}
            for keys in _pages(self._turns(of_priority, after), self._limit):
                chosen += self._of_keys(of_priority, keys, self._limit - len(chosen))
                if len(chosen) >= self._limit:
                    return chosen
        return chosen

    def _priorities(self) -> Iterator[int]:
        below = 1_000
        while rows := self._db.execute(_NEXT_PRIORITY, {**self._wanted, "below": below}).fetchall():
            [(below,)] = rows
            yield below

    def _turns(self, wanted: Mapping[str, Any], after: str | None) -> Iterator[str]:
        """Yield the keys in the order of their turns."""
        yield from self._keys(wanted, after, None)
        if after is not None:
            yield from self._keys(wanted, None, after)

    def _keys(self, wanted: Mapping[str, Any], after: str | None, until: str | None) -> Iterator[str]:
        while rows := self._db.execute(
            _FIRST_KEY if after is None else _NEXT_KEY, {**wanted, "after": after}
        ).fetchall():
            [(after,)] = rows
            if until is not None and after > until:
                return
            yield after

    def _of_keys(self, wanted: Mapping[str, Any], keys: list[str], limit: int) -> list[int]:
        read = {**wanted, "limit": rows_per_key(limit, len(keys))}
        rows = {key: [run for (run,) in self._db.execute(_OF_KEY, {**read, "key": key})] for key in keys}
        return in_turns(
            rows, limit, None if self._per_key is None else {key: self._free_of_key(wanted, key) for key in keys}
        )

    def _free_of_key(self, wanted: Mapping[str, Any], key: str) -> int:
        assert self._per_key is not None
        [(count,)] = self._db.execute(_LEASED, {**wanted, "key": key, "run_id": None}).fetchall()
        return self._per_key - int(count)


def mark_if_ordered(db: sqlite3.Connection, run: int) -> None:
    """Mark the run's queue if the run has a key or priority."""
    db.execute(_MARK_ORDERED, (run,))


def _pages(keys: Iterator[str], size: int) -> Iterator[list[str]]:
    page: list[str] = []
    for key in keys:
        page.append(key)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def _oldest(db: sqlite3.Connection, order: ClaimOrder, wanted: Mapping[str, Any]) -> list[int]:
    """Return the runs of the tickets, then the oldest others."""
    tickets = {"tickets": json.dumps([storable(run_id) for run_id in order.tickets])}
    rows = db.execute(_OF_TICKETS, {**wanted, **tickets}).fetchall() if order.tickets else []
    if len(rows) < wanted["limit"]:
        rows += db.execute(_OLDEST, wanted).fetchall()
    return list(dict.fromkeys(run for (run,) in rows))[: wanted["limit"]]


def _wanted(order: ClaimOrder, queue: str) -> dict[str, Any]:
    return {
        "pipeline": storable(order.pipeline),
        "queue": storable(queue),
        "fingerprint": order.fingerprint,
        "waiting_s": order.waiting_s,
        "without": json.dumps([storable(run_id) for run_id in order.without]),
    }


def _as_seen(run: StoredRun) -> dict[str, object]:
    dead = None if run.owner is None else storable(run.owner)
    return {"run_id": storable(run.run_id), "epoch": run.epoch, "dead": dead}


def _in_order(db: sqlite3.Connection, runs: list[StoredRun], ids: list[int]) -> list[StoredRun]:
    places = {
        restored(run_id): ids.index(key)
        for key, run_id in db.execute(
            "SELECT id, run_id FROM flujo_runs WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
        )
    }
    return sorted(runs, key=lambda run: places[run.run_id])


def _claimed(db: sqlite3.Connection, run: StoredRun, owner: str) -> ClaimedRun:
    lease = Lease(run_id=run.run_id, owner=owner, epoch=run.epoch + 1)
    records = as_records(run.run_id, record_rows(db, run.run_id, 0), after=0) if run.epoch == 0 else []
    return ClaimedRun(lease=lease, run=run, records=tuple(records))
