"""Which arm is chosen: pure rules, and what they cost in regret."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.policies.selection import (
    NO_BELIEF,
    Belief,
    ByBudget,
    Evidence,
    ThompsonSampling,
    decayed,
    generator,
    is_reward,
    learned,
)
from flujo_actors._core.usage import Budget
from flujo_actors.errors import DeclarationError

BUDGET = Budget()


def told(reward: float, *, memory: float | None = None, cost_usd: float = 0.0) -> Evidence:
    return Evidence(name="answer", category="default", arm="a", reward=reward, memory=memory, cost_usd=cost_usd)


def evidence(belief: Belief) -> tuple[float, float]:
    return pytest.approx(belief.alpha), pytest.approx(belief.beta)  # type: ignore[return-value]


def test_evidence_adds_up_rewards_and_what_was_missing() -> None:
    """S2: success, failure and 0.6 without forgetting."""
    belief, seen = NO_BELIEF, []
    for reward in (1.0, 0.0, 0.6):
        belief = learned(belief, told(reward))
        seen.append((round(belief.alpha, 9), round(belief.beta, 9)))
    assert seen == [(1, 0), (1, 1), (1.6, 1.4)]
    assert belief.observations == 3


@given(st.lists(st.floats(0, 1), max_size=300), st.floats(1, 500))
def test_evidence_never_outgrows_its_memory(rewards: list[float], memory: float) -> None:
    """However many outcomes there were, their weights add up to no more than the memory."""
    belief = NO_BELIEF
    for reward in rewards:
        belief = learned(belief, told(reward, memory=memory))
    assert 0 <= belief.alpha + belief.beta <= memory * (1 + 1e-9)
    assert belief.observations == len(rewards)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_the_mean_cost_is_the_mean_of_all_costs(costs: list[float]) -> None:
    """Without forgetting, every outcome's cost weighs the same."""
    belief = NO_BELIEF
    for cost in costs:
        belief = learned(belief, told(1.0, cost_usd=cost))
    assert belief.mean_cost_usd == pytest.approx(sum(costs) / len(costs))


def test_idle_evidence_halves_with_every_half_life() -> None:
    """What was learned long ago counts less, and the count of outcomes stays."""
    belief = decayed(Belief(alpha=8, beta=4, observations=12, idle_s=20), 10)
    assert (belief.alpha, belief.beta, belief.observations) == (2, 1, 12)
    assert decayed(Belief(alpha=8, beta=4, idle_s=20), None).alpha == 8


def test_a_seed_repeats_its_choices() -> None:
    """S1: seed, run and path decide, and nothing else."""
    policy, arms = ThompsonSampling(seed=7), ("cheap", "good")

    def choices() -> list[str]:
        runs = [f"r{number}" for number in range(1, 21)]
        return [policy.choose(arms, {}, BUDGET, generator(7, run, "answer")).arm for run in runs]

    assert choices() == choices()
    assert set(choices()) == set(arms)


def test_twenty_successes_beat_twenty_failures() -> None:
    """S4: the arm that always worked is chosen at least 95 times of 100."""
    beliefs = {"bad": Belief(alpha=0, beta=20, observations=20), "good": Belief(alpha=20, beta=0, observations=20)}
    rng = random.Random(1)
    chosen = [ThompsonSampling().choose(("bad", "good"), beliefs, BUDGET, rng).arm for _ in range(100)]
    assert chosen.count("good") >= 95


def test_nobody_is_preferred_before_anything_is_known() -> None:
    """S5: three arms under one prior are chosen about as often."""
    rng = random.Random(2)
    chosen = [ThompsonSampling().choose(("a", "b", "c"), {}, BUDGET, rng).arm for _ in range(300)]
    assert min(chosen.count(arm) for arm in "abc") >= 50


@pytest.mark.parametrize(("observations", "confidence"), [(0, 0.0), (5, 0.25), (20, 1.0), (500, 1.0)])
def test_confidence_grows_with_outcomes(observations: int, confidence: float) -> None:
    """S7: twenty outcomes are enough."""
    assert Belief(observations=observations).confidence == confidence


def test_a_floor_gives_every_arm_its_share() -> None:
    """S10: also an arm that always fails is asked now and then."""
    policy, rng = ThompsonSampling(floor=0.05), random.Random(3)
    beliefs = {arm: Belief(alpha=weight, beta=100 - weight) for arm, weight in {"a": 1, "b": 50, "c": 99}.items()}
    chosen = [policy.choose(("a", "b", "c"), beliefs, BUDGET, rng).arm for _ in range(2000)]
    assert min(chosen.count(arm) for arm in "abc") >= 60


def test_a_success_that_is_worth_little_is_not_paid_dearly_for() -> None:
    """2.5: the better arm loses if what it costs is more than what it wins."""
    beliefs = {
        "cheap": Belief(alpha=60, beta=40, mean_cost_usd=0.001),
        "dear": Belief(alpha=95, beta=5, mean_cost_usd=1.0),
    }
    rng = random.Random(4)

    def taken(value_usd: float | None) -> str:
        return ThompsonSampling(value_usd=value_usd).choose(("cheap", "dear"), beliefs, BUDGET, rng).arm

    assert {taken(None), taken(100)} == {"dear"}
    assert taken(0.5) == "cheap"


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), min_size=1, max_size=4), st.floats(0, 0.2))
def test_propensities_are_shares(evidence: list[tuple[float, float]], floor: float) -> None:
    """They add up to one, and none is below the floor."""
    beliefs = {str(place): Belief(alpha=a, beta=b) for place, (a, b) in enumerate(evidence)}
    shares = ThompsonSampling(floor=floor).propensities(beliefs)
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share >= floor - 1e-9 for share in shares.values())


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(1, 1, 1), (6, 7, 8), (60, 70, 80), (2, 30, 500)])
def test_propensities_are_what_draws_come_to(weights: tuple[int, ...]) -> None:
    """2.4: a grid of 64 points is within a point of many draws."""
    policy, rng = ThompsonSampling(), random.Random(5)
    beliefs = {str(place): Belief(alpha=each, beta=3) for place, each in enumerate(weights)}
    drawn = [policy.choose(tuple(beliefs), beliefs, BUDGET, rng).arm for _ in range(20_000)]
    for arm, share in policy.propensities(beliefs).items():
        assert drawn.count(arm) / len(drawn) == pytest.approx(share, abs=0.012)


def test_propensities_follow_what_an_arm_costs() -> None:
    """With a value, an arm of the same quality that costs more is chosen less often."""
    beliefs = {
        "cheap": Belief(alpha=20, beta=20, mean_cost_usd=0.0),
        "dear": Belief(alpha=20, beta=20, mean_cost_usd=1),
    }
    shares = ThompsonSampling(value_usd=10).propensities(beliefs)
    rng = random.Random(6)
    drawn = [ThompsonSampling(value_usd=10).choose(("cheap", "dear"), beliefs, BUDGET, rng).arm for _ in range(5000)]
    assert shares["cheap"] == pytest.approx(drawn.count("cheap") / 5000, abs=0.03)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), -0.1, 1.1])
def test_what_is_no_number_from_0_to_1_is_no_reward(value: object) -> None:
    """2.6: such a value changes nothing."""
    assert not is_reward(value)


@pytest.mark.parametrize(
    "options",
    [
        {"prior": (0, 1)},
        {"prior": 2},
        {"memory": 0},
        {"memory": True},
        {"floor": 1.0},
        {"floor": -0.1},
        {"value_usd": 0},
        {"idle_half_life_s": -1},
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, object]) -> None:
    """A wrong number is found when it is written, not when it is used."""
    with pytest.raises(DeclarationError, match="ThompsonSampling"):
        ThompsonSampling(**options)  # type: ignore[arg-type]


def test_a_budget_chooses_by_its_level() -> None:
    """B8: good while there is plenty, cheap when it becomes scarce."""
    by = ByBudget(abundant="good", normal="good", scarce="cheap", critical="cheap")
    left = [1.0, 0.85, 0.7, 0.55, 0.4, 0.25]
    chosen = [by.choose(("cheap", "good"), {}, Budget(fraction=each), None).arm for each in left]
    assert chosen == ["good"] * 5 + ["cheap"]


def test_a_level_without_an_arm_takes_that_of_the_level_above() -> None:
    """Whoever names two levels has named all four."""
    assert set(ByBudget(abundant="good", scarce="cheap").arms.items()) == {
        ("abundant", "good"),
        ("normal", "good"),
        ("scarce", "cheap"),
        ("critical", "cheap"),
    }


# --- regret -------------------------------------------------------------------------------------------------


def regret(means: Callable[[int], list[float]], seed: int, rounds: int = 2000) -> float:
    """What one run of many rounds loses against always asking the best arm."""
    rng, policy = random.Random(seed), ThompsonSampling()
    arms = ("0", "1", "2")
    beliefs = dict.fromkeys(arms, NO_BELIEF)
    lost = 0.0
    for number in range(rounds):
        now = means(number)
        arm = policy.choose(arms, beliefs, BUDGET, rng).arm
        won = float(rng.random() < now[int(arm)])
        beliefs[arm] = learned(beliefs[arm], attrs.evolve(told(won), memory=policy.memory))
        lost += max(now) - now[int(arm)]
    return lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("means", "at_most"),
    [
        (lambda number: [0.6, 0.7, 0.8], 40),
        (lambda number: [0.6, 0.7, 0.8 if number < 1000 else 0.45], 65),
    ],
    ids=["nothing changes", "the best one becomes worse"],
)
def test_the_regret_stays_small(means: Callable[[int], list[float]], at_most: float) -> None:
    """2.8: the mean of 50 seeds, where nothing changes and after a silent regression."""
    assert sum(regret(means, seed) for seed in range(50)) / 50 <= at_most
