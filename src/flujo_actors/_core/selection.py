"""Which of several agents to ask: what is believed of each, and how one is chosen (a multi-armed bandit).

Rules:

1. What is kept of an arm is evidence: sums of rewards and of what was missing to full ones, how many outcomes there
   were, and what one costs. The prior is never part of it, so that it can be changed at any time.
2. Evidence fades: by a share with every outcome of the same arm (`memory`), and with time in which the arm was not
   used (`idle_half_life_s`), when it is read.
3. Thompson sampling draws once from each arm's Beta(prior + evidence); the largest draw wins, or the largest worth if
   a success has a value in dollars.
4. `floor` gives every candidate at least that share of the choices.
5. Chance comes in as an argument: the same generator gives the same choice.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .fields import Field, V

DEFAULT_CATEGORY = "default"
"""Where outcomes are counted if a selection does not tell categories apart."""

_CERTAIN_AFTER = 20
"""How many outcomes make a belief as certain as it is called."""


@attrs.frozen(kw_only=True)
class Belief:
    """What is known of one arm: evidence, without any prior."""

    alpha: float = 0.0
    """The sum of rewards, as far as it is remembered."""
    beta: float = 0.0
    """The sum of what was missing to full rewards."""
    observations: int = 0
    """How many outcomes there were in all."""
    mean_cost_usd: float = 0.0
    idle_s: float = attrs.field(default=0.0, eq=False, repr=False)
    """How long ago the last outcome was told."""

    @property
    def confidence(self) -> float:
        """How far the belief is backed: 0 without outcomes, 1 from twenty on."""
        return min(1.0, self.observations / _CERTAIN_AFTER)


NO_BELIEF = Belief()
"""What is known of an arm that was never used."""


@attrs.frozen(kw_only=True)
class Choice:
    """Which arm a selection takes, and what it went by."""

    arm: str
    theta: float | None = None
    """The draw that won, if there was one."""
    category: str = DEFAULT_CATEGORY
    beliefs: Mapping[str, Belief] = attrs.field(factory=dict)
    """What was believed of every candidate then; filled in by the run."""


@attrs.frozen(kw_only=True)
class Evidence:
    """One outcome of one arm, to be added to what is believed of it."""

    name: str
    """Whose beliefs these are: the name that was given, or the place of the declaration."""
    category: str
    arm: str
    reward: float
    cost_usd: float = 0.0
    memory: float | None = None
    """Of how many outcomes the evidence consists at most; `None` is all of them."""

    @property
    def keep(self) -> float:
        """The share of the earlier evidence that stays."""
        return 1.0 if self.memory is None else 1.0 - 1.0 / self.memory

    @property
    def span(self) -> float:
        """Over how many outcomes the cost is averaged."""
        return math.inf if self.memory is None else self.memory


def learned(belief: Belief, told: Evidence) -> Belief:
    """The belief with one more outcome; the same arithmetic as the stores' statements."""
    count = belief.observations + 1
    return Belief(
        alpha=belief.alpha * told.keep + told.reward,
        beta=belief.beta * told.keep + 1.0 - told.reward,
        observations=count,
        mean_cost_usd=belief.mean_cost_usd + (told.cost_usd - belief.mean_cost_usd) / min(count, told.span),
    )


def faded(belief: Belief, idle_half_life_s: float | None) -> Belief:
    """The belief as it counts now, after its arm was idle."""
    if idle_half_life_s is None or not belief.idle_s:
        return belief
    left = 0.5 ** (max(0.0, belief.idle_s) / idle_half_life_s)
    return attrs.evolve(belief, alpha=belief.alpha * left, beta=belief.beta * left)


def read_beliefs(data: Mapping[str, Sequence[float]]) -> dict[str, Belief]:
    """Beliefs that were stored with a choice."""
    return {
        arm: Belief(alpha=alpha, beta=beta, observations=int(observations), mean_cost_usd=mean_cost_usd)
        for arm, (alpha, beta, observations, mean_cost_usd) in data.items()
    }


def is_reward(value: object) -> bool:
    """Whether a value can be a reward: a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 <= value <= 1.0


def generator(seed: object, run_id: str, path: str) -> random.Random:
    """The generator of one selection of one run: the same in every process."""
    said = f"{seed}\0{run_id}\0{path}".encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.sha256(said).digest()))


class Selector(Protocol):
    """What may stand behind `by=`: a pure rule."""

    def choose(
        self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: object, rng: random.Random
    ) -> Choice:
        """One of the candidates; `beliefs` has one entry for each, `budget` says what may still be spent."""


# --- Thompson sampling --------------------------------------------------------------------------------------


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _checked_prior(_: object, attribute: Field, value: V) -> None:
    pair = value if isinstance(value, tuple) and len(value) == 2 else (None, None)
    if not all((number := _number(each)) is not None and number > 0 for each in pair):
        raise DeclarationError(f"ThompsonSampling: prior must be two numbers above 0, not {value!r}")


def _checked_memory(_: object, attribute: Field, value: V) -> None:
    number = _number(value)
    if value is not None and (number is None or number < 1):
        raise DeclarationError(f"ThompsonSampling: memory must be at least 1, or None for all outcomes, not {value!r}")


def _checked_positive(_: object, attribute: Field, value: V) -> None:
    number = _number(value)
    if value is not None and (number is None or number <= 0):
        raise DeclarationError(f"ThompsonSampling: {attribute.name} must be a number above 0 or None, not {value!r}")


def _checked_floor(_: object, attribute: Field, value: V) -> None:
    number = _number(value)
    if number is None or not 0 <= number < 1:
        raise DeclarationError(f"ThompsonSampling: floor must be a share from 0 to below 1, not {value!r}")


def _as_tuple(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen(kw_only=True)
class ThompsonSampling:
    """Asks each arm as often as it is probably the best; see the module's rules."""

    prior: tuple[float, float] = attrs.field(default=(2, 2), converter=_as_tuple, validator=_checked_prior)
    memory: float | None = attrs.field(default=100, validator=_checked_memory)
    """About how many outcomes of an arm are remembered, so that one that becomes worse is found out."""
    idle_half_life_s: float | None = attrs.field(default=None, validator=_checked_positive)
    """After how many seconds without an outcome only half of the evidence counts."""
    floor: float = attrs.field(default=0.0, validator=_checked_floor)
    value_usd: float | None = attrs.field(default=None, validator=_checked_positive)
    """What a success is worth; `None` asks for quality alone."""
    seed: Any = None

    def choose(
        self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: object, rng: random.Random
    ) -> Choice:
        """The arm with the largest draw."""
        draws = {arm: self._draw(beliefs.get(arm, NO_BELIEF), rng) for arm in candidates}
        if self.floor and rng.random() < self.floor * len(candidates):
            arm = candidates[rng.randrange(len(candidates))]
        else:
            arm = max(candidates, key=lambda each: self._worth(draws[each], beliefs.get(each, NO_BELIEF)))
        return Choice(arm=arm, theta=draws[arm])

    def propensities(self, beliefs: Mapping[str, Belief]) -> dict[str, float]:
        """How probable each arm was, given what was believed: for evaluating other policies on recorded choices."""
        arms = {arm: self._scaled(belief) for arm, belief in beliefs.items()}
        best = {arm: _is_largest(arm, arms) for arm in arms}
        total = sum(best.values()) or 1.0
        share = min(1.0, self.floor * len(arms))
        return {arm: (1 - share) * chance / total + share / len(arms) for arm, chance in best.items()}

    def _draw(self, belief: Belief, rng: random.Random) -> float:
        return rng.betavariate(self.prior[0] + belief.alpha, self.prior[1] + belief.beta)

    def _worth(self, theta: float, belief: Belief) -> float:
        return theta if self.value_usd is None else theta * self.value_usd - belief.mean_cost_usd

    def _scaled(self, belief: Belief) -> _Scaled:
        shift = 0.0 if self.value_usd is None else belief.mean_cost_usd / self.value_usd
        return _Scaled(self.prior[0] + belief.alpha, self.prior[1] + belief.beta, shift)


# --- propensities -------------------------------------------------------------------------------------------

_POINTS = 64


@attrs.frozen
class _Scaled:
    """A Beta distribution, moved to the left by what its arm costs."""

    a: float
    b: float
    shift: float

    def grid(self) -> list[tuple[float, float]]:
        """Points where the distribution has its mass, each with its share of it."""
        mean = self.a / (self.a + self.b)
        deviation = math.sqrt(mean * (1 - mean) / (self.a + self.b + 1))
        low, high = max(0.0, mean - 7 * deviation), min(1.0, mean + 7 * deviation)
        points = [low + (high - low) * (place + 0.5) / _POINTS for place in range(_POINTS)]
        logs = [(self.a - 1) * math.log(x) + (self.b - 1) * math.log1p(-x) for x in points]
        top = max(logs)
        weights = [math.exp(each - top) for each in logs]
        total = sum(weights)
        return [(x, weight / total) for x, weight in zip(points, weights, strict=True)]

    def below(self, x: float) -> float:
        """The probability of a draw below a point of another arm's scale."""
        return _regularized_beta(self.a, self.b, x + self.shift)


def _is_largest(arm: str, arms: Mapping[str, _Scaled]) -> float:
    own, others = arms[arm], [other for name, other in arms.items() if name != arm]
    return sum(mass * math.prod(other.below(x - own.shift) for other in others) for x, mass in own.grid())


def _regularized_beta(a: float, b: float, x: float) -> float:
    """The share of Beta(a, b) below x, by its continued fraction."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _regularized_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return min(1.0, front * _fraction(a, b, x) / a)


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method for the continued fraction of the incomplete beta function."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1), tiny)
    h = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 / _apart(1.0 + term * d, tiny), _apart(1.0 + term / c, tiny)
            h *= d * c
        if abs(d * c - 1.0) < 1e-10:
            break
    return h


def _apart(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value
