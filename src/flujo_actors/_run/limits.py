"""Usage limits around the calls of a step that are not metered one by one."""

from __future__ import annotations

from .._core.attempts import Attempt, Failed, Stopped
from .._dsl.call_plan import CallPlan
from .work import Work


def caller_of(plan: CallPlan, name: str) -> str:
    """What quotas know the calls of a step by: those of one agent are about the same size, wherever it stands."""
    return f"agent {id(plan.target):x}" if plan.shape == "model" else f"step {name}"


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
