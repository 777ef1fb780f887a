"""Step that selects one of several agents, and confidence options.

Sections:

- Confidence of an answer: its source, threshold and review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, cast

import attrs

from .._core.policies.selection import ByBudget, ThompsonSampling, Votes
from .._core.step_paths import Named, Segment
from .._core.type_parameters import In, Out
from ..errors import DeclarationError
from .call_plan import check_takes_pair, plan_agent
from .declared_step import Declared, frozen_mapping
from .pipeline import AnyStep, Pipeline, StepLike, as_step, step_of
from .step_declaration import Step

Reward: TypeAlias = Callable[..., object] | Literal["later"] | None
"""Reward of an outcome: a function, later report, or success."""


def _as_arms(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    return frozen_mapping({name: _arm(name, each) for name, each in value.items()})


def _arm(name: Any, value: Any) -> AnyStep:
    """Return a step or pipeline unchanged, other values as a step."""
    if isinstance(value, Declared | Pipeline):
        return value
    return Step(name, value) if isinstance(name, str) and name else cast("AnyStep", value)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SelectAgent(Declared[In, Out]):
    """One of several arms, chosen by `by`."""

    arms: Mapping[str, AnyStep] = attrs.field(kw_only=False, converter=_as_arms)
    by: Any = attrs.field(factory=ThompsonSampling)
    """`ThompsonSampling(…)`, `ByBudget(…)`, or any object with `choose(candidates, beliefs, budget, rng) -> Choice`."""
    category: Callable[..., Any] | None = None
    """Category of an outcome: `(data, context) -> str`."""
    reward: Reward = None
    beliefs: str | None = None
    """Shared name of the statistics; by default the step's path."""

    kind: ClassVar[str] = "selection"

    def _inside(self) -> Iterable[tuple[Segment, AnyStep]]:
        """Return the arms."""
        return ((Named(name), arm) for name, arm in self.arms.items())

    def deciding(self) -> Iterator[tuple[str, object]]:
        """Yield the options of every step, and the category."""
        yield from Declared.deciding(self)
        yield "category", self.category

    def _check(self) -> None:
        where = f"step {self.name!r}"
        self._check_arms(where)
        if not callable(getattr(self.by, "choose", None)):
            raise DeclarationError(f"{where}: by must have choose(candidates, beliefs, budget, rng), not {self.by!r}")
        if self.category is not None:
            if not callable(self.category):
                raise DeclarationError(f"{where}: category must be a function of data and context")
            check_takes_pair(self.category, subject=f"{where}: category", first="data")
        if self.reward not in (None, "later"):
            if not callable(self.reward):
                raise DeclarationError(f'{where}: reward must be a function, "later" or None, not {self.reward!r}')
            check_takes_pair(self.reward, subject=f"{where}: reward", first="result")
        if self.beliefs is not None and (not isinstance(self.beliefs, str) or not self.beliefs):
            raise DeclarationError(f"{where}: beliefs must be a non-empty text or None, not {self.beliefs!r}")

    def _check_arms(self, where: str) -> None:
        if not isinstance(self.arms, Mapping) or not self.arms:
            raise DeclarationError(f"{where}: arms must be a dict of at least one arm, an agent or a step by name")
        for name, arm in self.arms.items():
            if not isinstance(name, str) or not name:
                raise DeclarationError(f"{where}: an arm is known by a text, not {name!r}")
            as_step(cast("StepLike", arm), where=f"arm {name!r} of {where}")
        self._check_rule(where)

    def _check_rule(self, where: str) -> None:
        if isinstance(self.by, ByBudget):
            unknown = sorted(set(self.by.arms.values()) - set(self.arms))
            if unknown:
                known = ", ".join(map(repr, self.arms))
                raise DeclarationError(f"{where}: ByBudget names {', '.join(map(repr, unknown))}, the arms are {known}")
        floor = getattr(self.by, "floor", 0.0)
        if isinstance(floor, float) and floor * len(self.arms) > 1:
            raise DeclarationError(f"{where}: a floor of {floor:g} for each of {len(self.arms)} arms is more than all")


# --- Confidence of an answer --------------------------------------------------------------------------------------


DEFAULT_FIELD = "confidence"
"""Default confidence field of an output."""


def as_review(value: object) -> AnyStep:
    """Return the review step; a list of steps becomes a pipeline."""
    if isinstance(value, Iterable) and not isinstance(value, str | Pipeline) and not callable(value):
        return _pipeline_of(cast("Iterable[StepLike]", value))
    return step_of(cast("StepLike", value))


def _pipeline_of(steps: Iterable[StepLike]) -> Pipeline:
    try:
        return Pipeline(steps)
    except DeclarationError as error:
        raise DeclarationError(f"on_low_confidence: {error}") from None


def check_confidence(step: Declared) -> None:
    """Refuse inconsistent confidence options of a step."""
    where, least = f"step {step.name!r}", step.min_confidence
    if least is not None:
        number = isinstance(least, int | float) and not isinstance(least, bool)
        if not number or not 0 <= least <= 1:
            raise DeclarationError(f"{where}: min_confidence must be a number from 0 to 1, not {least!r}")
    if step.on_low_confidence is not None:
        as_step(step.on_low_confidence, where=f"{where}: on_low_confidence")
        if least is None:
            raise DeclarationError(f"{where}: on_low_confidence needs a min_confidence to be below of")
    source = step.confidence
    if source == "":
        raise DeclarationError(f"{where}: confidence must name a field of the output, not an empty text")
    if source is not None and not isinstance(source, str | Votes):
        plan_agent(source, step_name=f"{step.name} (confidence)")  # refuses values that are not callable
