"""A selection that goes by what is left of the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..errors import DeclarationError
from .budgets import Budget, BudgetLevel
from .selection import Belief, Choice


@attrs.frozen(kw_only=True)
class ByBudget:
    """Chooses an arm by how much of the budget is left; a level that is not named takes the arm of the one above."""

    abundant: str
    normal: str | None = None
    scarce: str | None = None
    critical: str | None = None

    def __attrs_post_init__(self) -> None:
        for level, arm in attrs.asdict(self).items():
            if arm is not None and (not isinstance(arm, str) or not arm):
                raise DeclarationError(f"ByBudget: {level} must be the name of an arm, not {arm!r}")

    @property
    def arms(self) -> Mapping[BudgetLevel, str]:
        """The arm of each level."""
        normal = self.normal or self.abundant
        scarce = self.scarce or normal
        critical = self.critical or scarce
        return {"abundant": self.abundant, "normal": normal, "scarce": scarce, "critical": critical}

    def choose(self, candidates: Sequence[str], beliefs: Mapping[str, Belief], budget: Budget, rng: object) -> Choice:
        """The arm of the budget's level; the first other one if that was tried already."""
        arm = self.arms[budget.level]
        return Choice(arm=arm if arm in candidates else candidates[0])
