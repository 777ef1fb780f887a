"""What happens to budgets, selections, confidence and loops in a run, as events."""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs

from .budgets import BudgetLevel
from .event_places import InAttempt, InRun, InStep, content


@attrs.frozen(kw_only=True)
class BudgetLevelChanged(InRun):
    """What is left of a budget passed from one level to another; `path` is that of the step whose budget it is."""

    kind: ClassVar[Literal["budget.level"]] = "budget.level"
    step_name: str = ""
    level: BudgetLevel
    before: BudgetLevel
    fraction: float


@attrs.frozen(kw_only=True)
class SelectionChosen(InStep):
    """An agent was chosen; `observations` is how many outcomes of it were known then."""

    kind: ClassVar[Literal["selection.chosen"]] = "selection.chosen"
    arm: str
    category: str
    theta: float | None = None
    observations: int = 0


@attrs.frozen(kw_only=True)
class ConfidenceLow(InAttempt):
    """An answer was not sure enough; `confidence` is `None` if nobody knows how sure it was."""

    kind: ClassVar[Literal["confidence.low"]] = "confidence.low"
    confidence: float | None = None
    min_confidence: float
    feedback: str | None = None


@attrs.frozen(kw_only=True)
class LoopFound(InAttempt):
    """The same was done again and again; `reaction` is what a guard does about it, if there is one."""

    kind: ClassVar[Literal["loop.detected"]] = "loop.detected"
    loop: str
    times: int
    reaction: str | None = None
    cycle: tuple[str, ...] | None = content()
