"""Budgets that the processes of a run share, in a Postgres database.

Whoever wants more locks the row of the budget, and adds up the shares in a statement of its own, which sees all that
was committed before. Shares that only change are written without that lock: until then they count for more, not less.
Rows of budgets are locked in one order, and after those of runs.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from ..._core.outcomes import RunId
from ..._core.records import Lease
from ..._core.shared_budgets import BudgetClaim, BudgetShare, BudgetTold, granted_share, grants
from .. import _refusals as refusals
from .._budget_rows import held_in, limits_in, limits_text, share_row
from .._rows import storable
from . import _statements as sql
from ._scanning import hash_of, owner_of

if TYPE_CHECKING:  # they need the driver
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection

_OPEN: LiteralString = """
    INSERT INTO flujo_budgets AS b (hash, run, limits) VALUES (%(hash)s, %(run)s, %(limits)s)
    ON CONFLICT (hash) DO UPDATE SET limits = coalesce(excluded.limits, b.limits) RETURNING id, limits"""

_OTHERS: LiteralString = f"""
    SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0), coalesce(sum(requests), 0),
           coalesce(sum(tool_calls), 0), coalesce(sum(steps), 0),
           coalesce(sum(reserved_tokens) FILTER (WHERE lasts), 0), coalesce(sum(reserved_usd) FILTER (WHERE lasts), 0),
           coalesce(sum(reserved_requests) FILTER (WHERE lasts), 0), coalesce(sum(under_way) FILTER (WHERE lasts), 0),
           max(largest_tokens), max(largest_usd)
    FROM (SELECT s.*, under_way > 0 AND EXISTS (
            SELECT 1 FROM flujo_runs r WHERE r.run_hash = s.run AND r.epoch = s.epoch AND {sql.HELD}) AS lasts
          FROM flujo_shares s
          WHERE budget = (SELECT id FROM flujo_budgets WHERE hash = %(hash)s) AND holder_hash <> %(holder_hash)s) t"""

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
    """The part of a Postgres store that keeps budgets."""

    _connections: PostgresConnections

    @abstractmethod
    def _time(self) -> dict[str, Any]:
        """What statements call the time."""

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetTold]:
        return self._connections.write(lambda db: self._draw(db, lease, claims))

    def _draw(self, db: Connection, lease: Lease, claims: Sequence[BudgetClaim]) -> tuple[list[BudgetTold], IsThere]:
        owner = owner_of(db, lease.run_id)
        if owner != (lease.owner, lease.epoch):
            raise refusals.lost(lease, owner)
        order = sorted(range(len(claims)), key=lambda index: _hash(claims[index].share))
        asked = {index: self._asked(db, claims[index]) for index in order}
        db.turn()
        told = [_told(*asked[index]) for index in range(len(claims))]
        granted = all(grants(each.limits, claim, each.others) for claim, each in zip(claims, told, strict=True))
        for index in order:
            if not claims[index].reads:
                _write(db, lease, granted_share(claims[index]) if granted else claims[index].share)
        return [BudgetTold(granted=granted, others=each.others, limits=each.limits) for each in told], _repeatable

    def _asked(self, db: Connection, claim: BudgetClaim) -> tuple[Any, Any]:
        """Lock a budget, and ask what others have of it; the answers come with the next turn."""
        named = _named(claim.share)
        opened = db.execute(_OPEN, {**named, "limits": limits_text(claim.limits)})
        if not claim.reads:
            _absorb(db, claim.share)
        return opened, db.execute(_OTHERS, {**self._time(), **named})


def write_shares(db: Connection, written: Iterable[tuple[Lease, BudgetShare]]) -> None:
    """Write shares, each unless a later one is there."""
    for lease, share in sorted(written, key=lambda each: _hash(each[1])):
        _absorb(db, share)
        _write(db, lease, share)


def forget_budgets(db: Connection, run_ids: Sequence[str]) -> None:
    """Drop the budgets of these runs."""
    db.execute(_FORGET, (list(run_ids),))


def _told(opened: Any, others: Any) -> BudgetTold:
    [(_, limits)] = opened.fetchall()
    return BudgetTold(granted=False, others=held_in(others.fetchone()), limits=limits_in(limits))


def _absorb(db: Connection, share: BudgetShare) -> None:
    if share.absorbs:
        db.execute(_ABSORB, {**_named(share), "paths": [storable(path) for path in share.absorbs]})


def _write(db: Connection, lease: Lease, share: BudgetShare) -> None:
    under = {"lease_run": hash_of(lease.run_id), "epoch": lease.epoch}
    db.execute(_WRITE, {**share_row(share), **_named(share), **under})


def _named(share: BudgetShare) -> dict[str, object]:
    return {"hash": _hash(share), "run": storable(share.run), "holder_hash": hash_of(RunId(share.holder))}


def _hash(share: BudgetShare) -> bytes:
    text = f"{len(share.run)}:{share.run}{share.budget}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _repeatable(db: Connection) -> bool:
    return False
