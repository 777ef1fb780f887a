"""Claims of queued runs in Postgres: in order, several at once.

Rules:

1. `_core.policies.claim_order` has the order. A queue without keys and priorities is claimed by one statement; the
   others are named in `flujo_queues` by the admission of their first run with a key or a priority, and stay there.
2. Rows are locked with `SKIP LOCKED`, so concurrent workers claim different runs without waiting for one another.
3. A loose scan of the index `flujo_runs_claimable` finds keys: one probe for each, from the worker's last key on.
4. With `per_key`, the leases of a key are counted under an advisory lock of the key, held until the commit.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString, cast

import attrs

from ..._core.outcomes import RunId
from ..._core.policies.claim_order import in_turns, rows_per_key
from ..._core.records.records import ClaimedRun, ClaimOrder, Lease, StoredRun
from .. import _record_rows as record_rows
from .._record_rows import as_records, restored, storable
from .._run_lists import labels_in
from . import _statements as sql
from ._pauses import expire_run
from ._run_queries import hash_of, owner_of

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession


_NEXT: LiteralString = f"""
    ready = 1 AND cancel IS NULL AND pipeline = %(pipeline)s
    AND (%(fingerprint)s::text IS NULL OR fingerprint IS NULL OR fingerprint = %(fingerprint)s)
    AND NOT run_hash = ANY(%(without)s)
    AND (%(waiting_s)s::float8 <= 0 OR epoch > 0 OR status <> 'running'
         OR created_at <= {sql.WALL} - %(waiting_s)s::float8)"""

_WATCHED: LiteralString = f"EXISTS (SELECT 1 FROM flujo_texts_wanted w WHERE w.run = r.run_hash AND until > {sql.WALL})"

_GRANT: LiteralString = f"""
    taken AS (
        UPDATE flujo_runs r SET owner = %(owner)s, epoch = epoch + 1, lease_until = {sql.NOW} + %(lease_s)s::float8,
                                started_at = coalesce(started_at, {sql.WALL}), claimed_at = {sql.WALL}, ready = NULL,
                                wake_at = NULL, status = CASE WHEN epoch = 0 THEN 'running' ELSE status END
        FROM chosen WHERE r.id = chosen.id
        RETURNING r.id, run_id, epoch, {_WATCHED} AS watched, pipeline, created_at, updated_at, queue, parent, key,
                  priority, chosen.place)
    SELECT run_id, taken.id, epoch, watched, pipeline, created_at, updated_at, queue, parent, key, priority,
           (SELECT json_object_agg(name, value) FROM flujo_labels l WHERE l.run = taken.id),
           seq, kind, path, body, blob, data, at, gist
    FROM taken LEFT JOIN LATERAL (
        SELECT * FROM flujo_records WHERE run = taken.id AND taken.epoch = 1 OFFSET 0) AS known ON true
    LEFT JOIN flujo_blobs ON hash = blob
    ORDER BY place, seq"""
"""Claim of the chosen runs, with the records of new ones.

`OFFSET 0` keeps the planner, which expects many runs, from reading the whole table of records.
"""

_IN_INDEX_ORDER: LiteralString = "SELECT set_config('enable_sort', 'off', true)"
"""Reads a queue in the order of its index, whatever the statistics.

With 10,000 runs of a key it takes 0.1 ms, and 20 ms by a sort.
"""

_CLAIM_OLDEST: LiteralString = f"""
    WITH found AS (
        SELECT c.* FROM unnest(%(queues)s::text[]) AS name
        CROSS JOIN LATERAL (
            SELECT id, wake_at AS since FROM flujo_runs
            WHERE queue = name AND priority = 0 AND key = '' AND {_NEXT}
            ORDER BY wake_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED) c
        WHERE NOT EXISTS (SELECT 1 FROM flujo_queues q WHERE q.name = ANY(%(queues)s))
        ORDER BY since, id LIMIT %(limit)s),
    chosen AS (SELECT id, row_number() OVER (ORDER BY since, id) AS place FROM found),
    {_GRANT}"""

_CLAIM_TICKETS: LiteralString = f"""
    WITH found AS (
        SELECT id, wake_at AS since FROM flujo_runs
        WHERE run_hash = ANY(%(tickets)s) AND queue = ANY(%(queues)s) AND priority = 0 AND key = '' AND {_NEXT}
          AND NOT EXISTS (SELECT 1 FROM flujo_queues q WHERE q.name = ANY(%(queues)s))
        ORDER BY wake_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
    chosen AS (SELECT id, row_number() OVER (ORDER BY since, id) AS place FROM found),
    {_GRANT}"""

_CLAIM_CHOSEN: LiteralString = f"""
    WITH chosen AS (SELECT * FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS t(id, place)), {_GRANT}"""

_ORDERED: LiteralString = "SELECT name FROM flujo_queues WHERE name = ANY(%s)"

_MARK_ORDERED: LiteralString = "INSERT INTO flujo_queues (name) VALUES (%s) ON CONFLICT DO NOTHING"

_NEXT_PRIORITY: LiteralString = f"""
    SELECT priority FROM flujo_runs WHERE queue = %(queue)s AND priority < %(below)s AND {_NEXT}
    ORDER BY priority DESC LIMIT 1"""

_OF_PRIORITY: LiteralString = f"queue = %(queue)s AND priority = %(priority)s AND {_NEXT}"

_KEYS: LiteralString = f"""
    WITH RECURSIVE keys (key, place) AS (
        (SELECT key, 1 FROM flujo_runs
         WHERE {_OF_PRIORITY} AND (%(after)s::text IS NULL OR key > %(after)s) ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (SELECT r.key FROM flujo_runs r WHERE {_OF_PRIORITY} AND r.key > keys.key ORDER BY r.key LIMIT 1),
               place + 1
        FROM keys WHERE key IS NOT NULL AND place < %(limit)s)
    SELECT key FROM keys WHERE key IS NOT NULL AND (%(until)s::text IS NULL OR key <= %(until)s)"""
"""Loose index scan: the next keys, one probe for each."""

_OF_KEYS: LiteralString = f"""
    SELECT name, id FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS k(name, place)
    CROSS JOIN LATERAL (
        SELECT id FROM flujo_runs WHERE {_OF_PRIORITY} AND key = name ORDER BY wake_at, id
        LIMIT %(each)s FOR UPDATE SKIP LOCKED) c
    ORDER BY place"""

_LOCK_KEY: LiteralString = "SELECT pg_advisory_xact_lock(%s)"

_LEASED: LiteralString = f"""
    SELECT key, count(*) FROM flujo_runs
    WHERE {sql.HELD} AND queue = %(queue)s AND key = ANY(%(keys)s) AND run_hash <> %(hash)s GROUP BY key"""

_KEY_OF: LiteralString = "SELECT queue, key FROM flujo_runs WHERE run_hash = %s"

_READY_KEYS: LiteralString = """
    SELECT queue, key, count(*) FROM flujo_runs
    WHERE ready = 1 AND queue IS NOT NULL AND parent IS NULL GROUP BY queue, key"""

_COLUMNS = 12
"""Columns of a claimed run before those of its records."""


_CLAIM_UNCHANGED: LiteralString = f"""
    WITH chosen AS (
        SELECT r.id FROM flujo_runs r
        JOIN unnest(%(hashes)s::bytea[], %(epochs)s::bigint[], %(dead)s::text[]) AS seen(hash, epoch, dead)
          ON r.run_hash = seen.hash AND r.epoch = seen.epoch
        WHERE ended_at IS NULL AND (owner = seen.dead OR NOT {sql.HELD}) ORDER BY run_hash FOR UPDATE OF r SKIP LOCKED)
    UPDATE flujo_runs r SET owner = %(owner)s, epoch = epoch + 1, lease_until = {sql.NOW} + %(lease_s)s::float8,
                            started_at = coalesce(started_at, {sql.WALL}), claimed_at = {sql.WALL}, ready = NULL,
                            wake_at = NULL
    FROM chosen WHERE r.id = chosen.id RETURNING run_id, epoch, {_WATCHED}"""


class PostgresClaims:
    """Claims of a Postgres store in the order of a queue."""

    _connections: PostgresConnections

    @abstractmethod
    def _time(self) -> dict[str, object]:
        """Return the time parameters of statements."""

    @abstractmethod
    def _today(self) -> dict[str, float | None]:
        """Return the wall clock that a test brings."""

    @abstractmethod
    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        """Return those of these runs that exist."""

    def claim_next(self, order: ClaimOrder, *, owner: str, lease_s: float) -> list[ClaimedRun]:
        claim = functools.partial(self._claim_next, order=order, owner=owner, lease_s=lease_s)
        taken = self._connections.write(claim, lease_s=lease_s)
        resumed = [each.run.run_id for each in taken if not each.records]
        before = {run.run_id: _unowned(run) for run in self.standing(resumed)} if resumed else {}
        return [attrs.evolve(each, run=before.get(each.run.run_id, each.run)) for each in taken]

    def claim_all(self, runs: Sequence[StoredRun], *, owner: str, lease_s: float) -> list[ClaimedRun]:
        claim = functools.partial(self._claim_all, runs=runs, owner=owner, lease_s=lease_s)
        return self._connections.write(claim, lease_s=lease_s) if runs else []

    def _claim_all(
        self, db: PostgresSession, runs: Sequence[StoredRun], owner: str, lease_s: float
    ) -> tuple[list[ClaimedRun], IsThere]:
        wanted = {
            **self._time(),
            "hashes": [hash_of(run.run_id) for run in runs],
            "epochs": [run.epoch for run in runs],
            "dead": [None if run.owner is None else storable(run.owner) for run in runs],
            "owner": storable(owner),
            "lease_s": lease_s,
        }
        rows = db.ask(_CLAIM_UNCHANGED, wanted)
        leases = [
            Lease(run_id=RunId(restored(run_id)), owner=owner, epoch=epoch, watched=watched)
            for run_id, epoch, watched in rows
        ]
        records: dict[RunId, list[Any]] = {}
        for run_id, *row in db.ask(sql.READ_ALL, ([hash_of(lease.run_id) for lease in leases],)):
            records.setdefault(RunId(restored(run_id)), []).append(row)
        known = {run.run_id: run for run in runs}
        taken = [
            ClaimedRun(
                lease=lease,
                run=known[lease.run_id],
                records=record_rows.readable(lease.run_id, records.get(lease.run_id, ())),
            )
            for lease in leases
        ]
        return taken, lambda db: all(_is_owner(db, lease) for lease in leases[:1])

    def ready_keys(self) -> list[tuple[str, str, int]]:
        rows = self._connections.read(lambda db: db.ask(_READY_KEYS))
        return [(restored(queue), restored(key), count) for queue, key, count in rows]

    def _claim_next(
        self, db: PostgresSession, order: ClaimOrder, owner: str, lease_s: float
    ) -> tuple[list[ClaimedRun], IsThere]:
        wanted = {
            **self._time(),
            "pipeline": storable(order.pipeline),
            "fingerprint": order.fingerprint,
            "without": [hash_of(run_id) for run_id in order.without],
            "queues": [storable(queue) for queue in order.queues],
            "limit": order.limit,
            "waiting_s": order.waiting_s,
            "owner": storable(owner),
            "lease_s": lease_s,
        }
        rows = self._claim_tickets(db, order, wanted)
        left = order.limit - len({row[0] for row in rows})
        if left:
            rows = [*rows, *self._claim_others(db, order, {**wanted, "limit": left})]
        for run in dict.fromkeys(row[1] for row in rows if row[2] > 1):  # a new run waits for nothing
            expire_run(db, self._today(), run)
        taken = [_claimed(list(each), owner) for _, each in itertools.groupby(rows, key=lambda row: row[0])]
        return taken, lambda db: all(_is_owner(db, each.lease) for each in taken[:1])

    def _claim_tickets(
        self, db: PostgresSession, order: ClaimOrder, wanted: Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        if not order.tickets or order.per_key is not None:
            return []
        return db.ask(_CLAIM_TICKETS, {**wanted, "tickets": [hash_of(run_id) for run_id in order.tickets]})

    def _claim_others(
        self, db: PostgresSession, order: ClaimOrder, wanted: Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        db.execute(_IN_INDEX_ORDER)
        rows = db.ask(_CLAIM_OLDEST, wanted) if order.per_key is None else []
        return rows or self._claim_ordered(db, order, wanted)

    def _claim_ordered(
        self, db: PostgresSession, order: ClaimOrder, wanted: Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        names = [storable(queue) for queue in order.queues]
        if order.per_key is None and not db.ask(_ORDERED, (names,)):
            return []
        chosen: list[int] = []
        limit = cast(int, wanted["limit"])
        for queue in names:
            if len(chosen) < limit:
                search = _PostgresSearch(db, {**wanted, "queue": queue}, limit - len(chosen), order.per_key)
                after = order.after.get(restored(queue))
                chosen += search.found(None if after is None else storable(after))
        return db.ask(_CLAIM_CHOSEN, {**wanted, "ids": chosen}) if chosen else []

    def _refuse_if_full(self, db: PostgresSession, run_id: RunId, per_key: int) -> None:
        """Raise `RunLeased` if the run's key has no free lease."""
        for queue, key in db.ask(_KEY_OF, (hash_of(run_id),)):
            db.execute(_LOCK_KEY, (_lock_of(queue or "", key),))
            named = {**self._time(), "queue": queue, "keys": [key], "hash": hash_of(run_id)}
            if any(count >= per_key for _, count in db.ask(_LEASED, named)):
                raise record_rows.key_is_full(run_id, restored(key), per_key)


class _PostgresSearch:
    """Search of the next runs of one queue with keys or priorities."""

    def __init__(self, db: PostgresSession, wanted: Mapping[str, object], limit: int, per_key: int | None) -> None:
        self._db, self._wanted, self._limit, self._per_key = db, wanted, limit, per_key

    def found(self, after: str | None) -> list[int]:
        """Return the ids of the next runs; their rows are locked."""
        chosen: list[int] = []
        for priority in self._priorities():
            of_priority = {**self._wanted, "priority": priority}
            for keys in self._turns(of_priority, after):
                chosen += self._of_keys(of_priority, keys, self._limit - len(chosen))
                if len(chosen) >= self._limit:
                    return chosen
        return chosen

    def _priorities(self) -> Iterator[int]:
        below = 32_767
        while rows := self._db.ask(_NEXT_PRIORITY, {**self._wanted, "below": below}):
            [(below,)] = rows
            yield below

    def _turns(self, wanted: Mapping[str, object], after: str | None) -> Iterator[list[str]]:
        """Yield the keys in turn, some at a time."""
        for first, last in ((after, None), (None, after)) if after is not None else ((None, None),):
            begin: str | None = first
            while keys := self._keys(wanted, begin, last):
                yield keys
                begin = keys[-1]

    def _keys(self, wanted: Mapping[str, object], after: str | None, until: str | None) -> list[str]:
        bounds = {"after": after, "until": until, "limit": max(self._limit, 8)}
        return [key for (key,) in self._db.ask(_KEYS, {**wanted, **bounds})]

    def _of_keys(self, wanted: Mapping[str, object], keys: Sequence[str], limit: int) -> list[int]:
        rooms = self._free_per_key(wanted, keys)
        read = {**wanted, "keys": list(keys), "each": rows_per_key(limit, len(keys))}
        rows: dict[str, list[int]] = {}
        for key, run in self._db.ask(_OF_KEYS, read):
            rows.setdefault(key, []).append(run)
        return in_turns(rows, limit, rooms)

    def _free_per_key(self, wanted: Mapping[str, object], keys: Sequence[str]) -> dict[str, int] | None:
        """Return the free leases of keys, which stay locked until the commit."""
        if self._per_key is None:
            return None
        for lock in sorted(_lock_of(str(wanted["queue"]), key) for key in keys):
            self._db.execute(_LOCK_KEY, (lock,))
        counts = dict(self._db.ask(_LEASED, {**wanted, "keys": list(keys), "hash": b""}))
        return {key: self._per_key - counts.get(key, 0) for key in keys}


def mark_ordered(db: PostgresSession, queues: Collection[str]) -> None:
    """Note that runs of these queues have keys or priorities."""
    for queue in sorted(queues):
        db.execute(_MARK_ORDERED, (storable(queue),))


def _lock_of(queue: str, key: str) -> int:
    text = f"flujo key {len(queue)}:{queue}{key}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], signed=True)


def _is_owner(db: PostgresSession, lease: Lease) -> bool:
    return owner_of(db, lease.run_id) == (lease.owner, lease.epoch)


def _unowned(run: StoredRun) -> StoredRun:
    """Return a claimed run as it was before."""
    return attrs.evolve(run, epoch=run.epoch - 1, leased=False, owner=None, last_owner=None, left_s=None)


def _claimed(rows: list[tuple[Any, ...]], owner: str) -> ClaimedRun:
    run_id, _, epoch, watched, pipeline, created_at, updated_at, queue, parent, *rest = rows[0][:_COLUMNS]
    key, priority, labels = rest
    named = RunId(restored(run_id))
    records = [row[_COLUMNS:] for row in rows if row[_COLUMNS] is not None]
    run = StoredRun(
        run_id=named,
        pipeline=restored(pipeline),
        status="running",
        created_at=created_at,
        updated_at=updated_at,
        epoch=epoch - 1,
        leased=False,
        records=len(records),
        queue=queue and restored(queue),
        parent=parent and RunId(restored(parent)),
        key=restored(key),
        priority=priority,
        labels=labels_in(labels),
    )
    lease = Lease(run_id=named, owner=owner, epoch=epoch, watched=watched)
    return ClaimedRun(lease=lease, run=run, records=tuple(as_records(named, records, after=0)))
