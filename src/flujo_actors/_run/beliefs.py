"""What a `Flujo` believes of the agents that its selections choose from."""

from __future__ import annotations

import threading
import time
from typing import Protocol

import attrs

from .._core.selection import NO_BELIEF, Belief, Evidence, learned
from .._durable.store_wait import call_store
from ..stores._port import Store
from .messages import Request
from .run import Run


class BeliefBook(Protocol):
    """Where beliefs are kept."""

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        """What is believed of each arm that was ever used."""

    def learn(self, told: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        """Take in outcomes; what comes back is to be written with the step's own outcome."""


class BeliefsInMemory:
    """Beliefs that live as long as their `Flujo`; its runs may be in several threads."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, tuple[Belief, float]]] = {}
        self._lock = threading.Lock()

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        now = time.time()
        with self._lock:
            kept = dict(self._kept.get((name, category), {}))
        return {arm: _idle(belief, now - at) for arm, (belief, at) in kept.items()}

    def learn(self, told: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        with self._lock:
            for each in told:
                arms = self._kept.setdefault((each.name, each.category), {})
                before, _ = arms.get(each.arm, (NO_BELIEF, 0.0))
                arms[each.arm] = learned(before, each), time.time()
        return ()


def _idle(belief: Belief, seconds: float) -> Belief:
    """The belief, of an arm that was not used for a while; not by `evolve`, which takes three times as long."""
    return Belief(
        alpha=belief.alpha,
        beta=belief.beta,
        observations=belief.observations,
        mean_cost_usd=belief.mean_cost_usd,
        idle_s=seconds,
    )


def taken_evidence(run: Run, request: Request) -> tuple[Evidence, ...]:
    """What was learned and not written yet: kept at once in memory, or to be written with the step's record."""
    told, request.tally.evidence = request.tally.evidence, ()
    assert run.beliefs is not None
    return run.beliefs.learn(told)


@attrs.frozen
class StoredBeliefs:
    """Beliefs in a store, shared by all processes that use it."""

    store: Store

    async def read(self, name: str, category: str) -> dict[str, Belief]:
        return await call_store(lambda: self.store.beliefs(name, category))

    def learn(self, told: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return told
