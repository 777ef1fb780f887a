"""Budgets that the processes of a run share, in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from ..._core.outcomes import RunId
from ..._core.quota import Held
from ..._core.records import Lease
from ..._core.shared_budgets import BudgetClaim, BudgetShare, BudgetTold, granted_share, grants
from ..._core.usage import UsageLimits
from .. import _refusals as refusals
from .._budget_rows import held_in, limits_in, limits_text, share_row
from .._rows import storable
from . import _statements as sql
from ._connections import SqliteConnections
from ._scanning import owner_of

_OPEN = """
    INSERT INTO flujo_budgets (run, path, limits) VALUES (:run, :path, :limits)
    ON CONFLICT (run, path) DO UPDATE SET limits = coalesce(:limits, limits) RETURNING id, limits"""

_OTHERS = f"""
    SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(requests), 0),
           coalesce(sum(tool_calls), 0), coalesce(sum(steps), 0),
           coalesce(sum(reserved_tokens * lasts), 0), coalesce(sum(reserved_usd * lasts), 0),
           coalesce(sum(reserved_requests * lasts), 0), coalesce(sum(under_way * lasts), 0),
           max(largest_tokens), max(largest_usd)
    FROM (SELECT *, under_way > 0 AND EXISTS (
            SELECT 1 FROM flujo_runs r WHERE r.run_id = s.run AND r.epoch = s.epoch AND {sql.HELD}) AS lasts
          FROM flujo_shares s WHERE budget = :budget AND holder <> :holder)"""

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


class SqliteBudgets:
    """The part of a SQLite store that keeps budgets."""

    _connections: SqliteConnections

    def _time(self) -> dict[str, Any]:
        raise NotImplementedError

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetTold]:
        with self._connections.writing() as db:
            owner = owner_of(db, lease.run_id)
            if owner != (lease.owner, lease.epoch):
                raise refusals.lost(lease, owner)
            found = [(claim, *self._found(db, claim)) for claim in claims]
            granted = all(grants(limits, claim, others) for claim, _, limits, others in found)
            for claim, budget, _, _ in found:
                if not claim.reads:
                    _write(db, budget, lease, granted_share(claim) if granted else claim.share)
        return [BudgetTold(granted=granted, others=others, limits=limits) for _, _, limits, others in found]

    def _found(self, db: sqlite3.Connection, claim: BudgetClaim) -> tuple[int, UsageLimits | None, Held]:
        """The budget of a claim, its limits, and what others have of it."""
        share = claim.share
        budget, limits = _opened(db, share, claim.limits)
        if not claim.reads:
            _absorb(db, budget, share)
        rest = {**self._time(), "budget": budget, "holder": storable(share.holder)}
        [row] = db.execute(_OTHERS, rest).fetchall()
        return budget, limits, held_in(row)


def write_share(db: sqlite3.Connection, lease: Lease, share: BudgetShare) -> None:
    """Write a share, unless a later one is there."""
    budget, _ = _opened(db, share, None)
    _absorb(db, budget, share)
    _write(db, budget, lease, share)


def forget_budgets(db: sqlite3.Connection, run_id: RunId) -> None:
    """Drop the budgets of a run."""
    db.execute(_FORGET_SHARES, (storable(run_id),))
    db.execute(_FORGET, (storable(run_id),))


def _opened(db: sqlite3.Connection, share: BudgetShare, limits: UsageLimits | None) -> tuple[int, UsageLimits | None]:
    named = {"run": storable(share.run), "path": storable(share.budget), "limits": limits_text(limits)}
    [(budget, text)] = db.execute(_OPEN, named).fetchall()
    return budget, limits_in(text)


def _absorb(db: sqlite3.Connection, budget: int, share: BudgetShare) -> None:
    mine = {"budget": budget, "holder": storable(share.holder)}
    db.executemany(_ABSORB, [{**mine, "path": storable(path)} for path in share.absorbs])


def _write(db: sqlite3.Connection, budget: int, lease: Lease, share: BudgetShare) -> None:
    db.execute(
        _WRITE, {**share_row(share), "budget": budget, "lease_run": storable(lease.run_id), "epoch": lease.epoch}
    )
