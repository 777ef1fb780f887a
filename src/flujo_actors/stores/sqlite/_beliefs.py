"""Beliefs in a SQLite file: evidence, added to by one statement for each outcome."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from ..._core.outcomes import RunId
from ..._core.paths import StepPath
from ..._core.records import Record
from ..._core.selection import Belief, Evidence
from .. import _refusals as refusals
from .._rows import restored, storable
from . import _statements as sql
from ._connections import SqliteConnections
from ._pauses import insert

_FOR_EVER = 1e18
"""Over how many outcomes costs are averaged if nothing is forgotten."""

_LEARN = """
    INSERT INTO flujo_beliefs (name, category, arm, alpha, beta, observations, mean_cost_usd, updated_at)
    VALUES (:name, :category, :arm, :reward, 1.0 - :reward, 1, :cost_usd, :wall)
    ON CONFLICT (name, category, arm) DO UPDATE SET
        alpha = alpha * :keep + :reward, beta = beta * :keep + 1.0 - :reward, observations = observations + 1,
        mean_cost_usd = mean_cost_usd + (:cost_usd - mean_cost_usd) / min(observations + 1, :span),
        updated_at = :wall"""

_BELIEFS = """
    SELECT arm, alpha, beta, observations, mean_cost_usd, :wall - updated_at FROM flujo_beliefs
    WHERE name = :name AND category = :category"""

_REWARDED = """
    SELECT flujo_runs.id, EXISTS (
        SELECT 1 FROM flujo_records
        WHERE flujo_records.id > flujo_runs.id << 32 AND flujo_records.id < (flujo_runs.id + 1) << 32
          AND kind = 'rewarded' AND path = :path)
    FROM flujo_runs WHERE run_id = :run_id"""


class SqliteBeliefs:
    """The part of a SQLite store that keeps beliefs."""

    _connections: SqliteConnections
    _wall: Callable[[], float]

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        wanted = {"name": storable(name), "category": storable(category), "wall": self._wall()}
        with self._connections.reading() as db:
            rows = db.execute(_BELIEFS, wanted).fetchall()
        return {restored(arm): _belief(*facts) for arm, *facts in rows}

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        with self._connections.writing() as db:
            found = db.execute(_REWARDED, {"run_id": storable(run_id), "path": storable(path)}).fetchall()
            if not found:
                raise refusals.not_found(run_id)
            [(run, told)] = found
            if told:
                raise refusals.rewarded(run_id, path)
            answered = {"run": run, "wall": self._wall()}
            insert(db, sql.APPEND_ANSWER, record, answered)
            db.execute(sql.ANSWERED, answered)
            learn(db, evidence, self._wall())


def learn(db: sqlite3.Connection, told: Evidence, wall: float) -> None:
    """Add an outcome to what is believed of its arm."""
    said: dict[str, object] = {
        "name": storable(told.name),
        "category": storable(told.category),
        "arm": storable(told.arm),
        "reward": told.reward,
        "cost_usd": told.cost_usd,
        "keep": told.keep,
        "span": min(told.span, _FOR_EVER),
        "wall": wall,
    }
    db.execute(_LEARN, said)


def _belief(alpha: float, beta: float, observations: int, mean_cost_usd: float, idle_s: float) -> Belief:
    return Belief(
        alpha=alpha, beta=beta, observations=observations, mean_cost_usd=mean_cost_usd, idle_s=max(0.0, idle_s)
    )
