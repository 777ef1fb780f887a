"""What selections lose while they learn, beside uniform, epsilon-greedy and UCB1, and what a choice costs.

Run it: `python -m benchmarks.regret [seeds]`. Three Bernoulli arms, 2,000 rounds; the mean over all seeds.
"""

import math
import random
import sys
import time
from collections.abc import Callable

from flujo_actors import Belief, ThompsonSampling
from flujo_actors._core.policies.loop_detection import LoopGuard, LoopStep, entry_of, find_loop
from flujo_actors._core.policies.selection import Evidence, learned
from flujo_actors._core.usage import Budget

ROUNDS = 2000
ARMS = ("0", "1", "2")
NO_LIMITS = Budget()
Beliefs = dict[str, Belief]
Rule = Callable[[Beliefs, int, random.Random], str]
Means = Callable[[int], tuple[float, ...]]

SETTINGS: dict[str, Means] = {
    "stationary .6 .7 .8": lambda number: (0.6, 0.7, 0.8),
    "best one falls to .45 at 1,000": lambda number: (0.6, 0.7, 0.8 if number < 1000 else 0.45),
}


def uniform(beliefs: Beliefs, number: int, rng: random.Random) -> str:
    """Any arm."""
    return rng.choice(ARMS)


def epsilon_greedy(beliefs: Beliefs, number: int, rng: random.Random) -> str:
    """The best mean so far, or, in one of ten rounds, any arm."""
    if rng.random() < 0.1:
        return rng.choice(ARMS)
    return max(ARMS, key=lambda arm: beliefs[arm].alpha / max(1, beliefs[arm].observations))


def ucb1(beliefs: Beliefs, number: int, rng: random.Random) -> str:
    """The best upper confidence bound."""
    unused = next((arm for arm in ARMS if not beliefs[arm].observations), None)
    if unused is not None:
        return unused
    spread = 2 * math.log(number + 1)
    return max(ARMS, key=lambda arm: _mean(beliefs[arm]) + math.sqrt(spread / beliefs[arm].observations))


def _mean(belief: Belief) -> float:
    return belief.alpha / belief.observations


def thompson(memory: float | None) -> Rule:
    """Ours."""
    policy = ThompsonSampling(memory=memory)
    return lambda beliefs, number, rng: policy.choose(ARMS, beliefs, NO_LIMITS, rng).arm


RULES: dict[str, tuple[Rule, float | None]] = {
    "uniform": (uniform, None),
    "ε-greedy 0.1": (epsilon_greedy, None),
    "UCB1": (ucb1, None),
    "Thompson, plain": (thompson(None), None),
    "Thompson, memory 100": (thompson(100), 100),
}


def regret(rule: Rule, memory: float | None, means: Means, seed: int) -> float:
    """What one run loses against always asking the best arm."""
    rng, beliefs, lost = random.Random(seed), {arm: Belief() for arm in ARMS}, 0.0
    for number in range(ROUNDS):
        now = means(number)
        arm = rule(beliefs, number, rng)
        won = float(rng.random() < now[int(arm)])
        told = Evidence(name="", category="", arm=arm, reward=won, memory=memory)
        beliefs[arm] = learned(beliefs[arm], told)
        lost += max(now) - now[int(arm)]
    return lost


def cost_us(work: Callable[[], object], times: int = 20_000) -> float:
    """What one call costs, in microseconds."""
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times * 1e6


def main() -> None:
    """The table, and what a choice and a look for loops cost."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"| policy ({seeds} seeds) | {' | '.join(SETTINGS)} |\n|---|{'---|' * len(SETTINGS)}")
    for name, (rule, memory) in RULES.items():
        means = (sum(regret(rule, memory, each, seed) for seed in range(seeds)) / seeds for each in SETTINGS.values())
        print(f"| {name} | {' | '.join(f'{mean:.1f}' for mean in means)} |", flush=True)
    policy, rng = ThompsonSampling(), random.Random(1)
    beliefs = {arm: Belief(alpha=30, beta=20, observations=50) for arm in ARMS}
    print(f"one choice of three: {cost_us(lambda: policy.choose(ARMS, beliefs, NO_LIMITS, rng)):.1f} µs")
    history = [_turn(number) for number in range(20)]
    print(f"one turn of the loop guard: {cost_us(lambda: (_turn(1), find_loop(history, LoopGuard())), 5000):.1f} µs")


def _turn(number: int) -> LoopStep:
    entry = entry_of([("search", {"words": f"tea {number}", "limit": 10}, {"found": [number] * 5}, False)])
    assert entry is not None
    return entry


if __name__ == "__main__":
    main()
