"""Selection statistics of a `Flujo`."""

from __future__ import annotations

import threading
from typing import Protocol

import attrs

from ..._core import seams
from ..._core.policies.selection import NO_BELIEF, Belief, Evidence, learned
from ..._durable.store_executor import call_store
from ...stores._store_port import Store
from .messages import StepState
from .run_environment import Run


class SelectionStatistics(Protocol):
    """Protocol of selection statistics."""

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        """Return the statistics of each used arm."""

    def learn(self, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        """Add outcomes; return those to write with the step's own outcome."""


class MemoryStatistics:
    """Statistics for the life of a `Flujo`, shared by its threads."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, tuple[Belief, float]]] = {}
        self._lock = threading.Lock()

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        now = seams.clock.time()
        with self._lock:
            kept = dict(self._kept.get((name, category), {}))
        return {arm: _idle(belief, now - at) for arm, (belief, at) in kept.items()}

    def learn(self, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        with self._lock:
            for each in evidence:
                arms = self._kept.setdefault((each.name, each.category), {})
                before, _ = arms.get(each.arm, (NO_BELIEF, 0.0))
                arms[each.arm] = learned(before, each), seams.clock.time()
        return ()


def _idle(belief: Belief, seconds: float) -> Belief:
    """Return the statistics with an idle time; faster than `evolve`."""
    return Belief(
        alpha=belief.alpha,
        beta=belief.beta,
        observations=belief.observations,
        mean_cost_usd=belief.mean_cost_usd,
        idle_s=seconds,
    )


def taken_evidence(run: Run, state: StepState) -> tuple[Evidence, ...]:
    """Return unwritten evidence, kept in memory or written with the record."""
    evidence, state.evidence = state.evidence, ()
    assert run.beliefs is not None
    return run.beliefs.learn(evidence)


@attrs.frozen
class StoredStatistics:
    """Beliefs in a store, shared by all processes that use it."""

    store: Store

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        return await call_store(lambda: self.store.beliefs(name, category))

    def learn(self, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return evidence
