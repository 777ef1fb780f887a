"""Budgets shared by processes or runs in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ..._core.outcomes import RunId
from ..._core.policies.shared_budgets import (
    KEPT_S,
    BudgetClaim,
    BudgetShare,
    BudgetSnapshot,
    StoredBudget,
    granted_share,
    grants,
    warns,
)
from ..._core.quota import Held
from ..._core.records.records import Lease
from ..._core.usage import UsageLimits
from .. import _record_rows as record_rows
from .._record_rows import held_in, limits_in, limits_text, restored, share_row, storable
from . import _statements as sql
from ._connections import SqliteConnections
from ._run_queries import owner_of

_OPEN = """
    INSERT INTO flujo_budgets (run, path, limits, ends_at, raised) VALUES (:run, :path, :limits, :ends_at, :raised)
    ON CONFLICT (run, path) DO UPDATE SET limits = coalesce(:limits, limits),
        raised = CASE WHEN :raised IS NULL THEN raised ELSE json_patch(coalesce(raised, '{}'), :raised) END
    RETURNING id, limits, raised, warned"""

_SUMS = """
    coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(requests), 0), coalesce(sum(tool_calls), 0),
    coalesce(sum(steps), 0), coalesce(sum(reserved_tokens * lasts), 0), coalesce(sum(reserved_usd * lasts), 0),
    coalesce(sum(reserved_requests * lasts), 0), coalesce(sum(under_way * lasts), 0), max(largest_tokens),
    max(largest_usd)"""

_LASTS = f"""
    under_way > 0 AND EXISTS (
        SELECT 1 FROM flujo_runs r WHERE r.run_id = s.run AND r.epoch = s.epoch AND {sql.HELD}) AS lasts"""

_OTHERS = f"""
    SELECT {_SUMS} FROM (SELECT *, {_LASTS} FROM flujo_shares s WHERE budget = :budget AND holder <> :holder)"""

_SHARED_WINDOWS = f"""
    SELECT key, limits, raised, {_SUMS}
    FROM (SELECT b.run AS key, b.limits, b.raised, s.*, {_LASTS}
          FROM flujo_budgets b JOIN flujo_shares s ON s.budget = b.id WHERE b.ends_at IS NOT NULL)
    GROUP BY budget ORDER BY key"""

_ENDED = """
    budget = :budget AND holder NOT IN ('', :holder) AND NOT EXISTS (
        SELECT 1 FROM flujo_runs r WHERE r.run_id = s.run AND r.epoch = s.epoch AND r.owner IS NOT NULL)"""

_FOLD = f"""
    INSERT INTO flujo_shares (budget, holder, run, epoch, version, tokens, cost_usd, requests, tool_calls, steps,
        reserved_tokens, reserved_usd, reserved_requests, under_way, largest_tokens, largest_usd)
    SELECT :budget, '', '', 0, 0, sum(tokens), sum(cost_usd), sum(requests), sum(tool_calls), sum(steps), 0, 0, 0, 0,
        max(largest_tokens), max(largest_usd)
    FROM flujo_shares s WHERE {_ENDED} OR (budget = :budget AND holder = '') HAVING sum(holder <> '') > 0
    ON CONFLICT (budget, holder) DO UPDATE SET tokens = excluded.tokens, cost_usd = excluded.cost_usd,
        requests = excluded.requests, tool_calls = excluded.tool_calls, steps = excluded.steps,
        largest_tokens = excluded.largest_tokens, largest_usd = excluded.largest_usd"""

_FOLDED = f"DELETE FROM flujo_shares AS s WHERE {_ENDED}"

_WARN = "UPDATE flujo_budgets SET warned = 1 WHERE id = ?"

_WRITE = """
    INSERT INTO flujo_shares (budget, holder, run, epoch, version, tokens, cost_usd, requests, tool_calls, steps,
        reserved_tokens, reserved_usd, reserved_requests, under_way, largest_tokens, largest_usd)
    VALUES (:budget, :holder, :lease_run, :epoch, :version, :tokens, :cost_usd, :requests, :tool_calls, :steps,
        :reserved_tokens, :reserved_usd, :reserved_requests, :under_way, :largest_tokens, :largest_usd)
    ON CONFLICT (budget, holder) DO UPDATE SET
        run = excluded.run, epoch = excluded.epoch, version = excluded.version, tokens = excluded.tokens,
        cost_usd = excluded.cost_usd, requests = excluded.requests, tool_calls = excluded.tool_calls,
        steps = excluded.steps, reserved_tokens = excluded.reserved_tokens, reserved_usd = excluded.reserved_usd,
        reserved_requests = excluded.reserved_requests, under_way = excluded.under_way,
        largest_tokens = excluded.largest_tokens, largest_usd = excluded.largest_usd
    WHERE (flujo_shares.epoch, flujo_shares.version) < (excluded.epoch, excluded.version)"""

_ABSORB = """
    DELETE FROM flujo_shares WHERE budget = :budget AND holder <> :holder
      AND (holder = :path OR substr(holder, 1, length(:path) + 1) = :path || '/')"""

_FORGET_SHARES = "DELETE FROM flujo_shares WHERE budget IN (SELECT id FROM flujo_budgets WHERE run = ?)"
_FORGET = "DELETE FROM flujo_budgets WHERE run = ?"

_OLD = "SELECT id FROM flujo_budgets WHERE ends_at <= ? ORDER BY ends_at LIMIT ?"


@attrs.frozen
class _Opened:
    """Row of a budget."""

    budget: int
    limits: UsageLimits | None
    warned: bool


class SqliteBudgets(ABC):
    """Budgets of a SQLite store."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    @abstractmethod
    def _time(self) -> dict[str, Any]: ...

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        with self._connections.writing() as db:
            owner = owner_of(db, lease.run_id)
            if owner != (lease.owner, lease.epoch):
                raise record_rows.lost(lease, owner)
            found = [(claim, *self._found(db, claim)) for claim in claims]
            granted = all(grants(opened.limits, claim, others) for claim, opened, others in found)
            for claim, opened, _ in found:
                if not claim.reads:
                    _write(db, opened.budget, lease, granted_share(claim) if granted else claim.share)
            return [
                BudgetSnapshot(
                    granted=granted, others=others, limits=opened.limits, warns=_warned(db, opened, claim, others)
                )
                for claim, opened, others in found
            ]

    def _found(self, db: sqlite3.Connection, claim: BudgetClaim) -> tuple[_Opened, Held]:
        """Return the budget of a claim, and the other shares."""
        share, opened = claim.share, _opened(db, claim)
        mine = {"budget": opened.budget, "holder": storable(share.holder)}
        if claim.folds:
            db.execute(_FOLD, mine)
            db.execute(_FOLDED, mine)
        if not claim.reads:
            _absorb(db, opened.budget, share)
        [row] = db.execute(_OTHERS, {**self._time(), **mine}).fetchall()
        return opened, held_in(row)

    def window_budgets(self) -> list[StoredBudget]:
        with self._connections.reading() as db:
            rows = db.execute(_SHARED_WINDOWS, self._time()).fetchall()
        return [
            StoredBudget(key=restored(key), limits=limits_in(limits, raised), held=held_in(sums))
            for key, limits, raised, *sums in rows
        ]

    def purge_budgets(self, *, limit: int = 1000) -> int:
        before = self._wall() - KEPT_S
        with self._connections.reading() as db:
            if not db.execute(_OLD, (before, 1)).fetchall():
                return 0  # without the lock of writers
        with self._connections.writing() as db:
            db.execute(f"DELETE FROM flujo_shares WHERE budget IN ({_OLD})", (before, limit))
            return db.execute(f"DELETE FROM flujo_budgets WHERE id IN ({_OLD})", (before, limit)).rowcount


def write_share(db: sqlite3.Connection, lease: Lease, share: BudgetShare) -> None:
    """Write a share, unless a later one exists."""
    budget = _opened(db, BudgetClaim(share=share)).budget
    _absorb(db, budget, share)
    _write(db, budget, lease, share)


def forget_budgets(db: sqlite3.Connection, run_id: RunId) -> None:
    """Drop the budgets of a run."""
    db.execute(_FORGET_SHARES, (storable(run_id),))
    db.execute(_FORGET, (storable(run_id),))


def _opened(db: sqlite3.Connection, claim: BudgetClaim) -> _Opened:
    share = claim.share
    named = {
        "run": storable(share.run),
        "path": storable(share.budget),
        "limits": limits_text(claim.limits),
        "ends_at": claim.ends_at,
        "raised": None if claim.raises is None else json.dumps(dict(claim.raises)),
    }
    [(budget, limits, raised, warned)] = db.execute(_OPEN, named).fetchall()
    return _Opened(budget, limits_in(limits, raised), bool(warned))


def _warned(db: sqlite3.Connection, opened: _Opened, claim: BudgetClaim, others: Held) -> bool:
    """Return whether this draw is the first that must warn."""
    if opened.warned or not warns(opened.limits, claim, others):
        return False
    db.execute(_WARN, (opened.budget,))
    return True


def _absorb(db: sqlite3.Connection, budget: int, share: BudgetShare) -> None:
    mine = {"budget": budget, "holder": storable(share.holder)}
    db.executemany(_ABSORB, [{**mine, "path": storable(path)} for path in share.absorbs])


def _write(db: sqlite3.Connection, budget: int, lease: Lease, share: BudgetShare) -> None:
    db.execute(
        _WRITE, {**share_row(share), "budget": budget, "lease_run": storable(lease.run_id), "epoch": lease.epoch}
    )
