"""Usage limits around the calls of a step that are not metered one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.attempts import Attempt, Failed, Stopped
from .._core.quota import Quota
from .._dsl.call_plan import BUDGET, CallPlan
from .._dsl.declared import Declared
from .._locks import QUOTA_LOCK
from .messages import Work

if TYPE_CHECKING:
    from .._core.budgets import Budget


def caller_of(plan: CallPlan, name: str) -> str:
    """What quotas know the calls of a step by: those of one agent are about the same size, wherever it stands."""
    return f"agent {id(plan.target):x}" if plan.shape == "model" else f"step {name}"


def budget_of(quotas: tuple[Quota, ...]) -> Budget:
    """What may still be spent under all of these limits, the run's first."""
    from .._core.budgets import Budget, Resources  # what only those load who ask

    if not quotas:
        return Budget()
    with QUOTA_LOCK:
        left: dict[str, float] = {}
        for quota in quotas:
            for resource, (spent, limit) in quota.limited().items():
                left[resource] = min(max(0, limit - spent), left.get(resource, math.inf))
        fraction = min(quota.fraction for quota in quotas)
        return Budget(fraction=fraction, remaining=Resources(**left), spent=quotas[0].used())


def budget_for(step: Declared, name: str, quotas: tuple[Quota, ...]) -> dict[str, Budget]:
    """The budget as a keyword, if that function of the step asks for it."""
    return {BUDGET: budget_of(quotas)} if name in step.asks_for_budget else {}


def refusal(work: Work) -> Failed | None:
    """Why the call must not be made, if a limit stands against it."""
    refusing = next((quota for quota in work.quotas if quota.refuses(work.caller)), None)
    if refusing is None:
        return None
    error = refusing.error(work.caller)
    return Failed(error=error, feedback=str(error))


def within_limits(ended: Attempt, work: Work) -> Attempt:
    """The attempt, unless what it reported passes a limit."""
    exceeded = next((quota for quota in work.quotas if quota.exceeded), None)
    if exceeded is None:
        return ended
    error = exceeded.error()
    return Failed(error=error, feedback=str(error), output=None if isinstance(ended, Stopped) else ended.output)
