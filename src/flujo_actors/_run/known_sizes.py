"""How large the calls of an earlier part of the run were: limits go by them from the start, also in another process."""

from __future__ import annotations

from collections.abc import Iterator

from .._core.outcomes import StepResult
from .._core.quota import NOTHING, Amount
from .._core.usage import Usage
from .._dsl.pipeline import AnyStep
from .._dsl.step import Step
from .._dsl.tree import walk_steps
from .limits import caller_of


def sizes_in(step: AnyStep, result: StepResult) -> dict[str | None, Amount]:
    """The largest call of each caller in a result, as far as its name tells whose it was; of anybody under `None`."""
    callers = _callers(step)
    sizes: dict[str | None, Amount] = {None: _size(result.usage)}
    for each in _nested(result):
        caller = callers.get(each.name)
        if caller is not None:
            sizes[caller] = sizes.get(caller, NOTHING).largest(_size(each.usage))
    return sizes


def _callers(step: AnyStep) -> dict[str, str | None]:
    """Who calls in each step of that name; `None` where several steps of one name have different agents."""
    callers: dict[str, str | None] = {}
    for each in walk_steps(step):
        if isinstance(each, Step):
            caller = caller_of(each.plan, each.name)
            callers[each.name] = caller if callers.get(each.name, caller) == caller else None
    return callers


def _nested(result: StepResult) -> Iterator[StepResult]:
    pending = [result]
    while pending:
        found = pending.pop()
        yield found
        pending.extend(found.step_history)


def _size(usage: Usage) -> Amount:
    return Amount(tokens=usage.largest_request_tokens, cost_usd=usage.largest_request_usd)
