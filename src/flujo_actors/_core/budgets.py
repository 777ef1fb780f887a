"""How much of a budget is left, as a value that code can look at: levels advise, only limits refuse."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

BudgetLevel: TypeAlias = Literal["abundant", "normal", "scarce", "critical"]
"""How much is left, by the resource of which least is left."""

_ABOVE: tuple[tuple[float, BudgetLevel], ...] = ((0.7, "abundant"), (0.3, "normal"), (0.1, "scarce"))
_ROUNDING = 1e-9


@attrs.frozen(kw_only=True)
class Resources:
    """An amount of everything that can be limited; `None` is without a limit."""

    cost_usd: float | None = None
    tokens: float | None = None
    requests: float | None = None
    tool_calls: float | None = None
    steps: float | None = None
    time_s: float | None = None


@attrs.frozen(kw_only=True)
class Budget:
    """What a step may still use, given to whoever asks for `budget` by name."""

    fraction: float = 1.0
    """The share that is left of the resource of which least is left."""
    remaining: Resources = attrs.field(factory=Resources)
    """What is left of each; `None` where there is no limit."""
    spent: Resources = attrs.field(factory=Resources)
    """What the run has used."""

    @property
    def level(self) -> BudgetLevel:
        """`abundant`, `normal`, `scarce` or `critical`."""
        return level_of(self.fraction)


def level_of(fraction: float) -> BudgetLevel:
    """The level of a share that is left."""
    for above, level in _ABOVE:
        if fraction > above + _ROUNDING:
            return level
    return "critical"


def share_left(spent: float, limit: float) -> float:
    """Which share of a limit is left; nothing is left of nothing."""
    return max(0.0, (limit - spent) / limit) if limit > 0 else 0.0
