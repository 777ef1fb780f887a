"""Beliefs in a Postgres database: evidence, added to by one statement for each outcome.

Rows of several beliefs are locked in one order, and after those of runs, so that batches never deadlock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, LiteralString

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Record
from ..._core.selection import Belief, Evidence
from .. import _refusals as refusals
from .._rows import restored, storable
from . import _statements as sql
from ._scanning import hash_of
from ._writing import insert_records

if TYPE_CHECKING:  # they need the driver
    from ._connections import IsThere, PostgresConnections
    from ._session import Connection

_LEARN: LiteralString = f"""
    INSERT INTO flujo_beliefs AS b (scope, arm, alpha, beta, observations, mean_cost_usd, updated_at)
    VALUES (%(scope)s, %(arm)s, %(reward)s::float8, 1.0 - %(reward)s::float8, 1, %(cost_usd)s::float8, {sql.TODAY})
    ON CONFLICT (scope, arm) DO UPDATE SET
        alpha = b.alpha * %(keep)s::float8 + %(reward)s::float8,
        beta = b.beta * %(keep)s::float8 + 1.0 - %(reward)s::float8, observations = b.observations + 1,
        mean_cost_usd = b.mean_cost_usd
            + (%(cost_usd)s::float8 - b.mean_cost_usd) / least(b.observations + 1, %(span)s::float8),
        updated_at = excluded.updated_at"""

_BELIEFS: LiteralString = f"""
    SELECT arm, alpha, beta, observations, mean_cost_usd, {sql.TODAY} - updated_at FROM flujo_beliefs
    WHERE scope = %(scope)s"""

_REWARDED: LiteralString = """
    SELECT 1 FROM flujo_records WHERE run = %(run)s AND kind = 'rewarded' AND path = %(path)s"""

_FOR_EVER = 1e18
"""Over how many outcomes costs are averaged if nothing is forgotten."""


class PostgresBeliefs:
    """The part of a Postgres store that keeps beliefs."""

    _connections: PostgresConnections
    _wall: Callable[[], float] | None

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        wanted = {"scope": _scope(name, category), "wall": self._wall() if self._wall else None}
        rows = self._connections.read(lambda db: db.ask(_BELIEFS, wanted))
        return {restored(arm): _belief(*facts) for arm, *facts in rows}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        today = {"wall": self._wall() if self._wall else None}
        self._connections.write(lambda db: _reward(db, today, run_id, path, record, evidence))


def _reward(
    db: Connection, today: dict[str, float | None], run_id: RunId, path: StepPath, record: Record, told: Evidence
) -> tuple[None, IsThere]:
    places = db.ask(sql.ADVANCE_BY_ANSWER, {"hash": hash_of(run_id), "count": 1})
    if not places:
        raise refusals.not_found(run_id)
    [(run, seq)] = places
    where = {"run": run, "path": storable(path)}
    if db.ask(_REWARDED, where):
        raise refusals.rewarded(run_id, path)
    insert_records(db, [(run, seq, record)])
    learn(db, [told], today)
    return None, lambda db: bool(db.ask(_REWARDED, where))


def learn(db: Connection, told: Iterable[Evidence], today: dict[str, float | None]) -> None:
    """Add outcomes to what is believed of their arms."""
    for each in sorted(told, key=lambda each: (each.name, each.category, each.arm)):
        said: dict[str, object] = {
            "scope": _scope(each.name, each.category),
            "arm": storable(each.arm),
            "reward": each.reward,
            "cost_usd": each.cost_usd,
            "keep": each.keep,
            "span": min(each.span, _FOR_EVER),
            **today,
        }
        db.execute(_LEARN, said)


def _scope(name: str, category: str) -> bytes:
    return hashlib.sha256(f"{len(name)}:{name}{category}".encode("utf-8", "surrogatepass")).digest()


def _belief(alpha: float, beta: float, observations: int, mean_cost_usd: float, idle_s: float) -> Belief:
    return Belief(
        alpha=alpha, beta=beta, observations=observations, mean_cost_usd=mean_cost_usd, idle_s=max(0.0, idle_s)
    )
