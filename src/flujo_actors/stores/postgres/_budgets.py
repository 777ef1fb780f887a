"""Budgets shared by the processes of a run, in Postgres.

A draw locks the row of the budget, and sums the shares in a second statement, which sees all earlier commits. Shares
that only change are written without that lock: until then they count for more, not less. Rows of budgets are locked in
one order, and after those of runs.

Sections:

- Queued runs and workers in Postgres.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

import attrs

from ..._core.outcomes import RunId
from ..._core.policies.shared_budgets import (
    FOLDED,
    KEPT_S,
    BudgetClaim,
    BudgetShare,
    BudgetSnapshot,
    StoredBudget,
    granted_share,
    grants,
    warns,
)
from ..._core.records.records import RECORD_VERSION, Lease, Record, StoredRun, StoredStatus, WorkerNote
from .. import _record_rows as record_rows
from .._record_rows import as_blob, as_records, as_row, held_in, limits_in, limits_text, restored, share_row, storable
from . import _statements as sql
from ._run_queries import hash_of, insert_records, owner_of, refuse_taken_key

if TYPE_CHECKING:
    from ._connections import IsThere, PostgresConnections
    from ._session import PostgresSession, Signals


_OPEN: LiteralString = """
    INSERT INTO flujo_budgets AS b (hash, run, limits, ends_at, raised)
    VALUES (%(hash)s, %(run)s, %(limits)s, %(ends_at)s, %(raised)s)
    ON CONFLICT (hash) DO UPDATE SET limits = coalesce(excluded.limits, b.limits),
        raised = CASE WHEN excluded.raised IS NULL THEN b.raised
                      ELSE (coalesce(b.raised, '{}')::jsonb || excluded.raised::jsonb)::text END
    RETURNING limits, raised, warned"""

_SUMS: LiteralString = """
    coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(requests), 0),
    coalesce(sum(tool_calls), 0), coalesce(sum(steps), 0),
    coalesce(sum(reserved_tokens) FILTER (WHERE lasts), 0), coalesce(sum(reserved_usd) FILTER (WHERE lasts), 0),
    coalesce(sum(reserved_requests) FILTER (WHERE lasts), 0), coalesce(sum(under_way) FILTER (WHERE lasts), 0),
    max(largest_tokens), max(largest_usd)"""

_LASTS: LiteralString = f"""
    under_way > 0 AND EXISTS (
        SELECT 1 FROM flujo_runs r WHERE r.run_hash = s.run AND r.epoch = s.epoch AND {sql.HELD}) AS lasts"""

_OF_BUDGET: LiteralString = "budget = (SELECT id FROM flujo_budgets WHERE hash = %(hash)s)"

_OTHERS: LiteralString = f"""
    SELECT {_SUMS} FROM (
        SELECT s.*, {_LASTS} FROM flujo_shares s WHERE {_OF_BUDGET} AND holder_hash <> %(holder_hash)s) t"""

_SHARED_WINDOWS: LiteralString = f"""
    SELECT run_key, limits, raised, {_SUMS}
    FROM (SELECT s.*, b.run AS run_key, b.limits, b.raised, {_LASTS}
          FROM flujo_budgets b JOIN flujo_shares s ON s.budget = b.id WHERE b.ends_at IS NOT NULL) t
    GROUP BY budget, run_key, limits, raised ORDER BY run_key"""

_FOLD: LiteralString = f"""
    WITH gone AS (
        DELETE FROM flujo_shares s
        WHERE {_OF_BUDGET} AND holder_hash NOT IN (%(folded)s, %(holder_hash)s) AND NOT EXISTS (
            SELECT 1 FROM flujo_runs r WHERE r.run_hash = s.run AND r.epoch = s.epoch AND r.owner IS NOT NULL)
        RETURNING *)
    INSERT INTO flujo_shares AS s (budget, holder_hash, holder, run, epoch, version, tokens, cost_usd, requests,
        tool_calls, steps, reserved_tokens, reserved_usd, reserved_requests, under_way, largest_tokens, largest_usd)
    SELECT budget, %(folded)s, '', '', 0, 0, sum(tokens), sum(cost_usd), sum(requests), sum(tool_calls), sum(steps),
        0, 0, 0, 0, max(largest_tokens), max(largest_usd)
    FROM gone GROUP BY budget
    ON CONFLICT (budget, holder_hash) DO UPDATE SET tokens = s.tokens + excluded.tokens,
        cost_usd = s.cost_usd + excluded.cost_usd, requests = s.requests + excluded.requests,
        tool_calls = s.tool_calls + excluded.tool_calls, steps = s.steps + excluded.steps,
        largest_tokens = greatest(s.largest_tokens, excluded.largest_tokens),
        largest_usd = greatest(s.largest_usd, excluded.largest_usd)"""

_WARN: LiteralString = "UPDATE flujo_budgets SET warned = true WHERE hash = %(hash)s"

_PURGE: LiteralString = f"""
    WITH gone AS (
        DELETE FROM flujo_budgets WHERE id IN (
            SELECT id FROM flujo_budgets WHERE ends_at <= {sql.STABLE} - %(kept_s)s::float8
            ORDER BY ends_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
        RETURNING id),
    shares AS (DELETE FROM flujo_shares WHERE budget IN (SELECT id FROM gone))
    SELECT id FROM gone"""

_WRITE: LiteralString = """
    INSERT INTO flujo_shares AS s (budget, holder_hash, holder, run, epoch, version, tokens, cost_usd, requests,
        tool_calls, steps, reserved_tokens, reserved_usd, reserved_requests, under_way, largest_tokens, largest_usd)
    SELECT id, %(holder_hash)s, %(holder)s, %(lease_run)s, %(epoch)s, %(version)s, %(tokens)s, %(cost_usd)s,
        %(requests)s, %(tool_calls)s, %(steps)s, %(reserved_tokens)s, %(reserved_usd)s, %(reserved_requests)s,
        %(under_way)s, %(largest_tokens)s, %(largest_usd)s
    FROM flujo_budgets WHERE hash = %(hash)s
    ON CONFLICT (budget, holder_hash) DO UPDATE SET
        run = excluded.run, epoch = excluded.epoch, version = excluded.version, tokens = excluded.tokens,
        cost_usd = excluded.cost_usd, requests = excluded.requests, tool_calls = excluded.tool_calls,
        steps = excluded.steps, reserved_tokens = excluded.reserved_tokens, reserved_usd = excluded.reserved_usd,
        reserved_requests = excluded.reserved_requests, under_way = excluded.under_way,
        largest_tokens = excluded.largest_tokens, largest_usd = excluded.largest_usd
    WHERE (s.epoch, s.version) < (excluded.epoch, excluded.version)"""

_ABSORB: LiteralString = """
    DELETE FROM flujo_shares s USING unnest(%(paths)s::text[]) AS path
    WHERE budget = (SELECT id FROM flujo_budgets WHERE hash = %(hash)s) AND holder_hash <> %(holder_hash)s
      AND (holder = path OR starts_with(holder, path || '/'))"""

_FORGET: LiteralString = """
    WITH gone AS (DELETE FROM flujo_budgets WHERE run = ANY(%s) RETURNING id)
    DELETE FROM flujo_shares WHERE budget IN (SELECT id FROM gone)"""


class PostgresBudgets(ABC):
    """Budgets of a Postgres store."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None

    @abstractmethod
    def _time(self) -> dict[str, Any]:
        """Return the time parameters of statements."""

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        return self._connections.write(lambda db: self._draw(db, lease, claims))

    def _draw(
        self, db: PostgresSession, lease: Lease, claims: Sequence[BudgetClaim]
    ) -> tuple[list[BudgetSnapshot], IsThere]:
        owner = owner_of(db, lease.run_id)
        if owner != (lease.owner, lease.epoch):
            raise record_rows.lost(lease, owner)
        order = sorted(range(len(claims)), key=lambda index: _hash(claims[index].share))
        asked = {index: self._lock_and_read(db, claims[index]) for index in order}
        db.turn()
        snapshots = [_snapshot(*asked[index]) for index in range(len(claims))]
        granted = all(grants(each.limits, claim, each.others) for claim, each in zip(claims, snapshots, strict=True))
        for index in order:
            if not claims[index].reads:
                _write(db, lease, granted_share(claims[index]) if granted else claims[index].share)
            snapshots[index] = _decided(db, claims[index], snapshots[index], granted)
        return snapshots, _repeatable

    def window_budgets(self) -> list[StoredBudget]:
        rows = self._connections.read(lambda db: db.ask(_SHARED_WINDOWS, self._time()))
        return [
            StoredBudget(key=restored(key), limits=limits_in(limits, raised), held=held_in(sums))
            for key, limits, raised, *sums in rows
        ]

    def purge_budgets(self, *, limit: int = 1000) -> int:
        bounds = {"wall": self._wall() if self._wall else None, "kept_s": KEPT_S, "limit": limit}
        return self._connections.write(lambda db: (len(db.ask(_PURGE, bounds)), _repeatable))

    def _lock_and_read(self, db: PostgresSession, claim: BudgetClaim) -> tuple[Any, Any]:
        """Lock a budget and query the other shares, in one trip."""
        named = _named(claim.share)
        raised = None if claim.raises is None else json.dumps(dict(claim.raises))
        facts = {"limits": limits_text(claim.limits), "ends_at": claim.ends_at, "raised": raised}
        opened = db.execute(_OPEN, {**named, **facts})
        if claim.folds:
            db.execute(_FOLD, {**named, "folded": hash_of(RunId(FOLDED))})
        if not claim.reads:
            _absorb(db, claim.share)
        return opened, db.execute(_OTHERS, {**self._time(), **named})


def write_shares(db: PostgresSession, written: Iterable[tuple[Lease, BudgetShare]]) -> None:
    """Write shares, each unless a later one exists."""
    for lease, share in sorted(written, key=lambda each: _hash(each[1])):
        _absorb(db, share)
        _write(db, lease, share)


def forget_budgets(db: PostgresSession, run_ids: Sequence[str]) -> None:
    """Drop the budgets of these runs."""
    db.execute(_FORGET, (list(run_ids),))


def _snapshot(opened: Any, others: Any) -> BudgetSnapshot:
    """Return a budget; `warns` is false where a warning was emitted."""
    [(limits, raised, warned)] = opened.fetchall()
    return BudgetSnapshot(
        granted=False, others=held_in(others.fetchone()), limits=limits_in(limits, raised), warns=not warned
    )


def _decided(db: PostgresSession, claim: BudgetClaim, found: BudgetSnapshot, granted: bool) -> BudgetSnapshot:
    """Return the answer to a claim; mark a due warning."""
    first = found.warns and warns(found.limits, claim, found.others)
    if first:
        db.execute(_WARN, _named(claim.share))
    return attrs.evolve(found, granted=granted, warns=first)


def _absorb(db: PostgresSession, share: BudgetShare) -> None:
    if share.absorbs:
        db.execute(_ABSORB, {**_named(share), "paths": [storable(path) for path in share.absorbs]})


def _write(db: PostgresSession, lease: Lease, share: BudgetShare) -> None:
    under = {"lease_run": hash_of(lease.run_id), "epoch": lease.epoch}
    db.execute(_WRITE, {**share_row(share), **_named(share), **under})


def _named(share: BudgetShare) -> dict[str, object]:
    return {"hash": _hash(share), "run": storable(share.run), "holder_hash": hash_of(RunId(share.holder))}


def _hash(share: BudgetShare) -> bytes:
    text = f"{len(share.run)}:{share.run}{share.budget}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _repeatable(db: PostgresSession) -> bool:
    return False


# --- Queued runs and workers in Postgres --------------------------------------------------------------------------


class PostgresQueue(ABC):
    """Queue operations of a Postgres store."""

    _connections: PostgresConnections
    signals: Signals

    @abstractmethod
    def _stored(self, where: str, parameters: Mapping[str, object]) -> list[StoredRun]:
        """Return the runs that a condition holds for."""

    @abstractmethod
    def _time(self) -> dict[str, object]:
        """Return the time parameters of statements."""

    def wanting(self, *, pipeline: str, queues: Sequence[str], host: str, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "queues": [storable(queue) for queue in queues],
            "host": storable(host),
            "limit": limit,
        }
        if self._connections.record_format < RECORD_VERSION:  # the former release may write to the store, too
            self._connections.write(lambda db: _done(db, sql.ADOPT_FORMER, None))
        return [*self._stored(sql.WANTING, wanted), *self._stored(sql.WANTING_DEAD, wanted)][:limit]

    def read_all(self, run_ids: Sequence[RunId]) -> dict[RunId, list[Record]]:
        """Return the records of several runs; missing runs have none."""
        found: dict[RunId, list[Any]] = {}
        for run_id, *row in self._connections.read(lambda db: db.ask(sql.READ_ALL, (_hashes(run_ids),))):
            found.setdefault(RunId(restored(run_id)), []).append(row)
        return {run_id: as_records(run_id, rows, after=0) for run_id, rows in found.items()}

    def orphans(self, *, pipeline: str, host: str, updated_before: float, limit: int) -> list[StoredRun]:
        wanted = {
            "pipeline": storable(pipeline),
            "host": storable(host),
            "updated_before": updated_before,
            "limit": limit,
        }
        found = [*self._stored(sql.ORPHANS, wanted), *self._stored(sql.ORPHANS_DEAD, wanted)]
        return sorted(found, key=lambda run: run.created_at)[:limit]

    def standing(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return self._stored("WHERE run_hash = ANY(%(hashes)s)", {"hashes": _hashes(run_ids)}) if run_ids else []

    def requeue(self, run_ids: Sequence[RunId]) -> None:
        hashes = _hashes(run_ids)
        self._connections.write(lambda db: _done(db, sql.REQUEUE, (hashes,)))

    def retry(self, run_id: RunId, *, number: int, record: Record, queue: str | None) -> None:
        wanted = {"hash": _queue_hash(run_id), "number": number, "queue": queue and storable(queue)}
        if not self._connections.write(lambda db: self._retry(db, run_id, wanted, record)):
            raise record_rows.not_retryable(run_id, _status(self.standing([run_id]), run_id))
        self.signals.announce([run_id])

    def _retry(
        self, db: PostgresSession, run_id: RunId, wanted: dict[str, object], record: Record
    ) -> tuple[bool, IsThere]:
        refuse_taken_key(db, run_id)
        found = db.ask(sql.RETRY, wanted)
        if not found:
            return False, lambda db: False
        [(run, seq)] = found
        insert_records(db, [(run, seq, record)])
        row = as_row(record, seq, as_blob(record.body))
        return True, lambda db: db.ask(sql.FIND_RECORD, (run, seq)) == [(row.kind, row.path, row.body, row.blob)]

    def readdress(self, run_ids: Sequence[RunId], reply: str) -> None:
        """Change the channel that is notified when these remote steps end."""
        hashes = _hashes(run_ids)
        self._connections.write(lambda db: _done(db, sql.READDRESS, (reply, hashes)))

    def park(self, run_ids: Sequence[RunId], *, reason: str) -> None:
        resting = {**self._time(), "hashes": _hashes(run_ids), "reason": storable(reason)}
        self._connections.write(lambda db: _done(db, sql.PARK, resting))

    def children(self, run_id: RunId) -> list[RunId]:
        rows = self._connections.read(lambda db: db.ask(sql.CHILDREN, (storable(run_id),)))
        return [RunId(restored(child)) for (child,) in rows]

    def sign_on(self, worker: WorkerNote) -> None:
        note = {"name": storable(worker.name), "body": storable(worker.body)}
        self._connections.write(lambda db: _done(db, sql.SIGN_ON, note))

    def sign_off(self, name: str) -> None:
        self._connections.write(lambda db: _done(db, sql.SIGN_OFF, {"name": storable(name)}))

    def signed_on(self, *, within_s: float) -> list[WorkerNote]:
        rows = self._connections.read(lambda db: db.ask(sql.SIGNED_ON, {"within_s": within_s}))
        return [WorkerNote(name=restored(name), body=restored(body), seen_at=at) for name, body, at in rows]


def _status(found: Sequence[StoredRun], run_id: RunId) -> StoredStatus:
    for run in found:
        return run.status
    raise record_rows.not_found(run_id)


def _hashes(run_ids: Sequence[RunId]) -> list[bytes]:
    """Return the hashes in lock order."""
    return sorted(map(_queue_hash, run_ids))


def _queue_hash(run_id: RunId) -> bytes:
    return hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).digest()


def _done(db: PostgresSession, statement: Any, parameters: Any) -> tuple[None, IsThere]:
    db.execute(statement, parameters)
    return None, lambda db: False
