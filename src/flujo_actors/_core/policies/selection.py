"""Agent selection as a multi-armed bandit: statistics of arms and choice policies.

Rules:

1. Statistics of an arm are evidence: sums of rewards and of their shortfall, the number of outcomes, and the cost of
   one. The prior is never part of it, so it can be changed at any time.
2. Evidence fades: by a share with every outcome of the same arm (`memory`), and with time in which the arm was not
   used (`idle_half_life_s`), when it is read.
3. Thompson sampling draws once from each arm's Beta(prior + evidence); the largest draw wins, or the largest worth if
   a success has a value in dollars.
4. `floor` gives every candidate at least that share of the choices.
5. Randomness is an argument: the same generator gives the same choice.

Sections:

- Agent selection by remaining budget.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ...errors import DeclarationError
from ..usage import Budget, BudgetLevel
from ..validators import brief_repr, is_count, is_number, suggests_options
from .loop_detection import canonical

if TYPE_CHECKING:
    from ..outcomes import RunId
    from ..records.records import Record
    from ..step_paths import StepPath
    from ..validators import AttrsField, V

DEFAULT_CATEGORY = "default"
"""Category of outcomes if a selection has no categories."""

_CERTAIN_AFTER = 20
"""Number of outcomes for full confidence."""


@attrs.frozen(kw_only=True)
class Belief:
    """Statistics of one arm: evidence without a prior."""

    alpha: float = 0.0
    """The sum of rewards, as far as it is remembered."""
    beta: float = 0.0
    """Sum of the shortfall from full rewards."""
    observations: int = 0
    """Number of all outcomes."""
    mean_cost_usd: float = 0.0
    """Mean cost of an outcome."""
    idle_s: float = attrs.field(default=0.0, eq=False, repr=False)
    """Time since the last outcome."""

    @property
    def confidence(self) -> float:
        """Return the statistics' support: 0 without outcomes, 1 from twenty on."""
        return min(1.0, self.observations / _CERTAIN_AFTER)


NO_BELIEF = Belief()
"""Statistics of an unused arm."""


@attrs.frozen(kw_only=True)
class Selection:
    """Chosen arm with the statistics behind the choice."""

    arm: str
    """Name of the chosen agent."""
    theta: float | None = None
    """The draw that won, if there was one."""
    category: str = DEFAULT_CATEGORY
    """Category of the data."""
    beliefs: Mapping[str, Belief] = attrs.field(factory=dict)
    """Statistics of every candidate at that time; set by the run."""


@attrs.frozen(kw_only=True)
class Evidence:
    """One outcome of one arm, to add to its statistics."""

    name: str
    """Name of the statistics: as given, or the path of the declaration."""
    category: str
    """Category of the data."""
    arm: str
    """Name of the arm."""
    reward: float
    """Reward of the outcome, 0 to 1."""
    cost_usd: float = 0.0
    """Cost of the outcome."""
    memory: float | None = None
    """Maximum number of outcomes in the evidence; `None` for all."""

    @property
    def keep(self) -> float:
        """Return the share of earlier evidence that remains."""
        return 1.0 if self.memory is None else 1.0 - 1.0 / self.memory

    @property
    def span(self) -> float:
        """Over how many outcomes the cost is averaged."""
        return math.inf if self.memory is None else self.memory


def learned(belief: Belief, evidence: Evidence) -> Belief:
    """Return the statistics with one more outcome, as the stores compute it."""
    count = belief.observations + 1
    return Belief(
        alpha=belief.alpha * evidence.keep + evidence.reward,
        beta=belief.beta * evidence.keep + 1.0 - evidence.reward,
        observations=count,
        mean_cost_usd=belief.mean_cost_usd + (evidence.cost_usd - belief.mean_cost_usd) / min(count, evidence.span),
    )


def decayed(belief: Belief, idle_half_life_s: float | None) -> Belief:
    """Return the belief as it counts now, after its arm was idle."""
    if idle_half_life_s is None or not belief.idle_s:
        return belief
    left = 0.5 ** (max(0.0, belief.idle_s) / idle_half_life_s)
    return attrs.evolve(belief, alpha=belief.alpha * left, beta=belief.beta * left)


def read_statistics(data: Mapping[str, Sequence[float]]) -> dict[str, Belief]:
    """Beliefs that were stored with a choice."""
    return {
        arm: Belief(alpha=alpha, beta=beta, observations=int(observations), mean_cost_usd=mean_cost_usd)
        for arm, (alpha, beta, observations, mean_cost_usd) in data.items()
    }


def is_reward(value: object) -> bool:
    """Return whether a value is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 <= value <= 1.0


def generator(seed: object, run_id: str, path: str) -> random.Random:
    """Return the random generator of one selection, equal in every process."""
    seed_text = f"{seed}\0{run_id}\0{path}".encode("utf-8", "surrogatepass")
    return random.Random(int.from_bytes(hashlib.sha256(seed_text).digest()))


class Selector(Protocol):
    """Choice policy for `by=`: a pure rule."""

    def choose(
        self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: object, rng: random.Random
    ) -> Selection:
        """Return one of the candidates, given their statistics and the remaining budget."""


# --- Thompson sampling --------------------------------------------------------------------------------------


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _checked_prior(_: object, attribute: AttrsField, value: V) -> None:
    pair = value if isinstance(value, tuple) and len(value) == 2 else (None, None)
    if not all((number := _number(each)) is not None and number > 0 for each in pair):
        raise DeclarationError(f"ThompsonSampling: prior must be two numbers above 0, not {brief_repr(value)}")


def _checked_seed(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not isinstance(value, int | float | str | bytes | bytearray):
        raise DeclarationError(f"{attribute.name} must be a number or a text, not {brief_repr(value)}")


def _checked_memory(_: object, attribute: AttrsField, value: V) -> None:
    number = _number(value)
    if value is not None and (number is None or number < 1):
        raise DeclarationError(
            f"ThompsonSampling: memory must be at least 1, or None for all outcomes, not {brief_repr(value)}"
        )


def _checked_positive(_: object, attribute: AttrsField, value: V) -> None:
    number = _number(value)
    if value is not None and (number is None or number <= 0):
        raise DeclarationError(
            f"ThompsonSampling: {attribute.name} must be a number above 0 or None, not {brief_repr(value)}"
        )


def _checked_floor(_: object, attribute: AttrsField, value: V) -> None:
    number = _number(value)
    if number is None or not 0 <= number < 1:
        raise DeclarationError(f"ThompsonSampling: floor must be a share from 0 to below 1, not {brief_repr(value)}")


def _as_tuple(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value


@suggests_options
@attrs.frozen(kw_only=True)
class ThompsonSampling:
    """Choose each arm by its probability of being best (module rules)."""

    prior: tuple[float, float] = attrs.field(default=(2, 2), converter=_as_tuple, validator=_checked_prior)
    """Successes and failures that each arm starts with."""
    memory: float | None = attrs.field(default=100, validator=_checked_memory)
    """Approximate number of remembered outcomes per arm; detects degrading arms."""
    idle_half_life_s: float | None = attrs.field(default=None, validator=_checked_positive)
    """Seconds without an outcome after which the evidence counts half."""
    floor: float = attrs.field(default=0.0, validator=_checked_floor)
    """Smallest share of the choices of each arm."""
    value_usd: float | None = attrs.field(default=None, validator=_checked_positive)
    """Value of a success in dollars; `None` for quality alone."""
    seed: Any = attrs.field(default=None, validator=_checked_seed)
    """Seed of the draws, combined with the run id and the path."""

    def choose(
        self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: object, rng: random.Random
    ) -> Selection:
        """Return the arm with the largest draw."""
        draws = {arm: self._draw(beliefs.get(arm, NO_BELIEF), rng) for arm in candidates}
        if self.floor and rng.random() < self.floor * len(candidates):
            arm = candidates[rng.randrange(len(candidates))]
        else:
            arm = max(candidates, key=lambda each: self._utility(draws[each], beliefs.get(each, NO_BELIEF)))
        return Selection(arm=arm, theta=draws[arm])

    def propensities(self, beliefs: Mapping[str, Belief]) -> dict[str, float]:
        """Return the probability of each arm, for off-policy evaluation of recorded choices."""
        arms = {arm: self._scaled(belief) for arm, belief in beliefs.items()}
        best = {arm: _is_largest(arm, arms) for arm in arms}
        total = sum(best.values()) or 1.0
        share = min(1.0, self.floor * len(arms))
        return {arm: (1 - share) * chance / total + share / len(arms) for arm, chance in best.items()}

    def _draw(self, belief: Belief, rng: random.Random) -> float:
        return rng.betavariate(self.prior[0] + belief.alpha, self.prior[1] + belief.beta)

    def _utility(self, theta: float, belief: Belief) -> float:
        return theta if self.value_usd is None else theta * self.value_usd - belief.mean_cost_usd

    def _scaled(self, belief: Belief) -> _Scaled:
        shift = 0.0 if self.value_usd is None else belief.mean_cost_usd / self.value_usd
        return _Scaled(self.prior[0] + belief.alpha, self.prior[1] + belief.beta, shift)


# --- propensities -------------------------------------------------------------------------------------------

_POINTS = 64


@attrs.frozen
class _Scaled:
    """Beta distribution, shifted by the cost of its arm."""

    a: float
    b: float
    shift: float

    def grid(self) -> list[tuple[float, float]]:
        """Return points of the distribution with their probability mass."""
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
        """Return the probability of a draw below another arm's point."""
        return _regularized_beta(self.a, self.b, x + self.shift)


def _is_largest(arm: str, arms: Mapping[str, _Scaled]) -> float:
    own, others = arms[arm], [other for name, other in arms.items() if name != arm]
    return sum(mass * math.prod(other.below(x - own.shift) for other in others) for x, mass in own.grid())


def _regularized_beta(a: float, b: float, x: float) -> float:
    """Return the share of Beta(a, b) below x, by its continued fraction."""
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


# --- Agent selection by remaining budget --------------------------------------------------------------------------


@suggests_options
@attrs.frozen(kw_only=True)
class ByBudget:
    """Choose an arm by budget level, or by the level above."""

    abundant: str
    """Arm of the level `"abundant"`."""
    normal: str | None = None
    """Arm of the level `"normal"`."""
    scarce: str | None = None
    """Arm of the level `"scarce"`."""
    critical: str | None = None
    """Arm of the level `"critical"`."""

    def __attrs_post_init__(self) -> None:
        for level, arm in attrs.asdict(self).items():
            if arm is not None and (not isinstance(arm, str) or not arm):
                raise DeclarationError(f"ByBudget: {level} must be the name of an arm, not {brief_repr(arm)}")

    @property
    def arms(self) -> Mapping[BudgetLevel, str]:
        """Return the arm of each level."""
        normal = self.normal or self.abundant
        scarce = self.scarce or normal
        critical = self.critical or scarce
        return {"abundant": self.abundant, "normal": normal, "scarce": scarce, "critical": critical}

    def choose(
        self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: Budget, rng: object
    ) -> Selection:
        """Return the arm of the budget's level, or the first untried one."""
        arm = self.arms[budget.level]
        return Selection(arm=arm if arm in candidates else candidates[0])


def _checked_count(_: object, attribute: AttrsField, value: V) -> None:
    if not is_count(value, at_least=2):
        raise DeclarationError(f"Votes: n must be a whole number of at least 2, not {brief_repr(value)}")


def _checked_key(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not callable(value):
        raise DeclarationError(f"Votes: key must be a function of an output, not {brief_repr(value)}")


@suggests_options
@attrs.frozen
class Votes:
    """Call the agent `n` times at once; agreement is the confidence."""

    n: int = attrs.field(validator=_checked_count)
    """Number of calls."""
    key: Callable[[Any], Any] | None = attrs.field(default=None, validator=_checked_key)
    """Comparison key of an answer; the answer itself by default."""


@attrs.frozen
class Vote:
    """One answer with its comparison key."""

    index: int
    compared: object


@attrs.frozen
class MajorityVote:
    """The answer that won."""

    index: int
    """The place of its first vote."""
    votes: int
    share: float


def majority(votes: Sequence[Vote], asked: int) -> MajorityVote | None:
    """Return the most frequent of `asked` votes, or None without an answer."""
    groups: list[list[Vote]] = []
    for vote in sorted(votes, key=lambda each: each.index):
        group = next((each for each in groups if same_answer(each[0].compared, vote.compared)), None)
        if group is None:
            groups.append([vote])
        else:
            group.append(vote)
    if not groups:
        return None
    winner = max(groups, key=len)  # the first of the largest
    return MajorityVote(index=winner[0].index, votes=len(winner), share=len(winner) / asked)


def same_answer(one: object, other: object) -> bool:
    """Return whether two answers are equal, by their JSON or by `==`."""
    text = canonical(one)
    if text is not None:
        return text == canonical(other)
    return type(one) is type(other) and bool(one == other)


def confidence_in(value: object) -> tuple[float | None, str]:
    """Return a confidence from 0 to 1, or its absence's reason."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, f"its confidence is no number: {value!r:.100}"
    if not 0.0 <= value <= 1.0:  # nor is it if it is not a number
        return None, f"its confidence is not between 0 and 1: {value!r}"
    return float(value), ""


def field_of(output: object, name: str) -> object:
    """Return the field of an output (dict or attributes), or None."""
    if isinstance(output, dict):
        return output.get(name)
    return getattr(output, name, None)


class Beliefs(Protocol):
    """Optional: statistics of agents for selections.

    A store that has them adds the `evidence` of an append in the transaction that writes it, one statement for each, so
    no outcome is lost between processes and none counts twice.
    """

    def beliefs(self, name: str, category: str) -> dict[str, Belief]:
        """Return every used arm's statistics with its idle time."""

    def reward(self, run_id: RunId, path: StepPath, *, record: Record, evidence: Evidence) -> None:
        """Append a `rewarded` record and its evidence, once per path; then `NoRewardDue`.

        No lease is needed, as for `answer`. Raise `RunNotFound` if there is no such run.
        """
