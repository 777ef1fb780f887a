"""Clauses: what is learned of agents is added up. For stores that have `beliefs` and `reward`."""

from __future__ import annotations

import pytest

from ..._core.outcomes import RunId
from ..._core.records import Append
from ..._core.selection import Evidence
from ...errors import NoRewardDue, RunNotFound
from ...stores._port import Store
from .place import StorePlace
from .samples import STEP, admit, claim, record, write


def told(reward: float, arm: str = "a", *, memory: float | None = None, cost_usd: float = 0.0) -> Evidence:
    """One outcome."""
    return Evidence(name="n \0", category="c", arm=arm, reward=reward, memory=memory, cost_usd=cost_usd)


class BeliefClauses:
    """Evidence about agents."""

    @pytest.fixture
    def believing(self, place: StorePlace) -> Store:
        """A store that keeps beliefs."""
        store = place.open()
        if not hasattr(store, "beliefs"):
            pytest.skip(f"{type(store).__name__} keeps no beliefs: it has no `beliefs` and `reward`")
        return store

    def test_outcomes_add_up(self, believing: Store) -> None:
        """Rewards, what was missing to them, how many there were, and what they cost."""
        lease = admit(believing)
        for reward, cost in ((1.0, 1.0), (0.0, 2.0), (0.6, 6.0)):
            write(believing, lease, record(), evidence=(told(reward, cost_usd=cost),))
        belief = believing.beliefs("n \0", "c")["a"]
        assert [belief.alpha, belief.beta, belief.mean_cost_usd] == pytest.approx([1.6, 1.4, 3.0])
        assert belief.observations == 3
        assert believing.beliefs("n \0", "other") == {}

    def test_what_is_old_fades(self, believing: Store) -> None:
        """With a memory of two, half of the evidence stays."""
        lease = admit(believing)
        write(believing, lease, record(), evidence=(told(1.0, memory=2), told(1.0, memory=2), told(0.0, "b")))
        found = believing.beliefs("n \0", "c")
        assert [found["a"].alpha, found["b"].beta] == pytest.approx([1.5, 1.0])

    def test_who_lost_the_run_teaches_nothing(self, believing: Store, place: StorePlace) -> None:
        """Evidence is written with its append, or not at all."""
        lost = admit(believing)
        place.advance(10_000)
        claim(believing)
        believing.append([Append(lease=lost, records=(record(),), evidence=(told(1.0),))])
        assert believing.beliefs("n \0", "c") == {}

    def test_a_reward_is_told_once(self, believing: Store) -> None:
        """With its record, by somebody who has no lease."""
        admit(believing)
        reward = record("told", kind="rewarded")
        believing.reward(RunId("run"), STEP, record=reward, evidence=told(0.8))
        with pytest.raises(NoRewardDue):
            believing.reward(RunId("run"), STEP, record=reward, evidence=told(0.8))
        assert believing.beliefs("n \0", "c")["a"].observations == 1
        assert believing.read(RunId("run"))[-1].kind == "rewarded"
        with pytest.raises(RunNotFound):
            believing.reward(RunId("nobody"), STEP, record=reward, evidence=told(0.8))
