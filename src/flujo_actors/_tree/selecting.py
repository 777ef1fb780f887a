"""Choosing one of several agents, and learning from what it came to.

Rules:

1. The choice is committed before its arm begins: a resumed attempt recalls it, whatever is believed by then.
2. An attempt prefers arms that were not tried in this step; when all were, all are candidates.
3. What an attempt came to, after validators, is the outcome of its arm. It is written with the step's own record, so
   that it counts once.
4. An arm that asks for rotation (a loop was found) gives way to the next one in the same attempt.
"""

from __future__ import annotations

import functools
import json
import logging
import random
from collections.abc import Callable
from typing import Any

import attrs
from outcome import Error, Value

from .._context.isolation import own
from .._core import paths
from .._core.attempts import Attempt, Done, Failed
from .._core.degraded import marks
from .._core.error_info import message_of
from .._core.outcomes import Failure, StepResult, Success
from .._core.paths import StepPath
from .._core.selection import (
    DEFAULT_CATEGORY,
    NO_BELIEF,
    Belief,
    Choice,
    Evidence,
    faded,
    generator,
    is_reward,
    read_beliefs,
)
from .._dsl.selections import SelectAgent
from .._run.limits import budget_for, budget_of
from .._run.messages import Request, Selected, Settled, Work
from .._run.run import Run
from .._run.user_calls import ask, failure_of, with_context_copy
from ..errors import LoopDetected
from .children import Spawner, ended_by, of_one_child, output_of, texts_in

logger = logging.getLogger("flujo_actors")

_chance = random.Random()
"""For selections without a seed."""


async def select_agent(spawner: Spawner, step: SelectAgent, work: Work) -> Attempt:
    """The arm that is chosen, and if it gives way, the next."""
    category = DEFAULT_CATEGORY if step.category is None else await _category(spawner.run, step, step.category, work)
    if isinstance(category, Failed):
        return category
    for number in range(1, len(step.arms) + 1):
        choice = await _choice(spawner.run, step, work, category, number)
        if isinstance(choice, Failed):
            return choice
        settled = await _performed(spawner, step, work, choice)
        if number < len(step.arms) and _rotates(settled):
            await _reward_arm(spawner.run, work, step, settled)
            continue
        return _ended(work, choice, settled)
    raise AssertionError("the last arm gives way to none")


async def _category(run: Run, step: SelectAgent, tell: Callable[..., Any], work: Work) -> str | Failed:
    asked = budget_for(step, "category", work.quotas)
    found = await with_context_copy(run, tell, own(work.data), work.context, work.scope, **asked)
    found = found if isinstance(found, Error) else await ask(run, str, found.value)
    return (
        failure_of(run, found.error, what=f"The category of {step.name!r}") if isinstance(found, Error) else found.value
    )


async def _choice(run: Run, step: SelectAgent, work: Work, category: str, number: int) -> Choice | Failed:
    place = paths.choice(work.path, number)
    kept = run.journal.chosen(place)
    if kept is not None:
        return _read(kept)
    assert run.beliefs is not None
    half_life = getattr(step.by, "idle_half_life_s", None)
    known = await run.beliefs.read(_name(step, work.span), category)
    beliefs = {arm: faded(known.get(arm, NO_BELIEF), half_life) for arm in step.arms}
    tried = _tried(run, work, number)
    candidates = tuple(arm for arm in step.arms if arm not in tried) or tuple(step.arms)
    seed = getattr(step.by, "seed", None)
    rng = _chance if seed is None else generator(seed, run.run_id, place)
    seen = {arm: beliefs[arm] for arm in candidates}
    chosen = await ask(run, step.by.choose, candidates, seen, budget_of(work.quotas), rng)
    if isinstance(chosen, Error):
        return failure_of(run, chosen.error, what=f"The selection of {step.name!r}")
    return await _committed(run, step, work, place, chosen.value, category, seen)


async def _committed(
    run: Run, step: SelectAgent, work: Work, place: StepPath, chosen: Any, category: str, seen: dict[str, Belief]
) -> Choice | Failed:
    arm = getattr(chosen, "arm", None)
    if not isinstance(arm, str) or arm not in step.arms:
        known = ", ".join(map(repr, step.arms))
        return Failed(error=None, feedback=f"step {step.name!r} chose {arm!r}, but its arms are {known}")
    choice = Choice(arm=arm, theta=getattr(chosen, "theta", None), category=category, beliefs=seen)
    await run.journal.choose(place, functools.partial(_written, choice, step, _name(step, work.span)))
    belief = seen.get(arm, NO_BELIEF)
    run.emit(
        "selection.chosen",
        work.span,
        step_name=work.name,
        arm=arm,
        category=category,
        theta=choice.theta,
        observations=belief.observations,
    )
    return choice


def _name(step: SelectAgent, path: StepPath) -> str:
    """What the beliefs are called: as declared, or by the place of the declaration."""
    if step.beliefs is None and "~" not in path:  # it is its own place
        return path
    return step.beliefs or paths.formatted(paths.in_declaration(path) or ())


def _tried(run: Run, work: Work, number: int) -> set[str]:
    """The arms that earlier attempts of this step have tried, and earlier rounds of this one."""
    if work.attempt == number == 1:
        return set()
    places = [
        *(paths.choice(paths.attempt(work.span, attempt), 1) for attempt in range(1, work.attempt)),
        *(paths.choice(work.path, earlier) for earlier in range(1, number)),
    ]
    return {_read(kept).arm for place in places if (kept := run.journal.chosen(place)) is not None}


def _written(choice: Choice, step: SelectAgent, name: str) -> str:
    """A choice as it is stored, with what a reward that is told later needs."""
    beliefs = {
        arm: (belief.alpha, belief.beta, belief.observations, belief.mean_cost_usd)
        for arm, belief in choice.beliefs.items()
    }
    said = {"arm": choice.arm, "theta": choice.theta, "category": choice.category, "beliefs": beliefs}
    later = {"name": name, "memory": getattr(step.by, "memory", None)}
    return json.dumps({**said, **later, "later": step.reward == "later"})


def _read(text: str) -> Choice:
    return read_choice(json.loads(text))


def read_choice(data: dict[str, Any]) -> Choice:
    """A choice that was stored."""
    return Choice(
        arm=data["arm"], theta=data["theta"], category=data["category"], beliefs=read_beliefs(data["beliefs"])
    )


async def _performed(spawner: Spawner, step: SelectAgent, work: Work, choice: Choice) -> Settled:
    path = paths.named(work.path, choice.arm)
    arm = work.child(step.arms[choice.arm], choice.arm, path, work.data, work.context, degraded=work.degraded)
    settled = await of_one_child(spawner, work.tally, arm)
    if isinstance(settled.verdict, Success | Failure):
        work.tally.selected = Selected(choice=choice, result=settled.result)
    return settled


def _rotates(settled: Settled) -> bool:
    error = settled.verdict.error if isinstance(settled.verdict, Failure) else None
    return isinstance(error, LoopDetected) and error.rotates


def _ended(work: Work, choice: Choice, settled: Settled) -> Attempt:
    belief = choice.beliefs.get(choice.arm, NO_BELIEF)
    selection = {
        "arm": choice.arm,
        "category": choice.category,
        "theta": choice.theta,
        "confidence": belief.confidence,
        "observations": belief.observations,
    }
    if not isinstance(settled.verdict, Success):
        ended = ended_by(work, choice.arm, settled, work.context)
        return attrs.evolve(ended, metadata={"selection": selection}) if isinstance(ended, Failed) else ended
    output = output_of(settled)
    noted = {"selection": selection, **marks(output, texts_in(settled))}
    return Done(output=output, context=settled.context, metadata=noted)


# --- rewards ------------------------------------------------------------------------------------------------


async def rewarded(run: Run, request: Request, step: SelectAgent, ended: Attempt) -> None:
    """Note what the attempt's arm was worth, to be written with how the step goes on."""
    selected, request.tally.selected = request.tally.selected, None
    if selected is None or not isinstance(ended, Done | Failed):
        return
    result = selected.result or StepResult(name=selected.choice.arm)
    if step.reward is None:
        _add(request.tally, step, request.path, selected, result, 1.0 if isinstance(ended, Done) else 0.0)
        return
    result = attrs.evolve(result, success=isinstance(ended, Done), output=ended.output)
    context = ended.context if isinstance(ended, Done) else request.context
    await _note(run, request, step, selected, result, context)


async def _reward_arm(run: Run, work: Work, step: SelectAgent, settled: Settled) -> None:
    """The outcome of an arm that gave way to another."""
    selected, work.tally.selected = work.tally.selected, None
    if selected is not None and selected.result is not None:
        value = None if step.reward == "later" else 0.0
        _add(work.tally, step, work.span, selected, selected.result, value)


async def _note(
    run: Run, request: Request, step: SelectAgent, selected: Selected, result: StepResult, context: Any
) -> None:
    if step.reward == "later":
        return
    value: Any = None
    if callable(step.reward):
        told = await with_context_copy(run, step.reward, result, context)
        value = _checked_reward(run, step, told)
    _add(request.tally, step, request.path, selected, result, value)


def _checked_reward(run: Run, step: SelectAgent, told: Value[Any] | Error) -> float | None:
    """What a function of the user's says; `None` if nothing can be learned from it."""
    if isinstance(told, Error):
        said = run.redact(f"{type(told.error).__name__}: {message_of(told.error)}")
        logger.warning("the reward of step %r failed, and nothing is learned: %s", step.name, said)
        return None
    if told.value is not None and not is_reward(told.value):
        logger.warning("the reward of step %r is %r, and not from 0 to 1: nothing is learned", step.name, told.value)
        return None
    return None if told.value is None else float(told.value)


def _add(tally: Any, step: SelectAgent, path: StepPath, selected: Selected, result: StepResult, value: Any) -> None:
    if value is None:
        return
    told = Evidence(
        name=_name(step, path),
        category=selected.choice.category,
        arm=selected.choice.arm,
        reward=float(value),
        cost_usd=result.cost_usd,
        memory=getattr(step.by, "memory", None),
    )
    tally.evidence = (*tally.evidence, told)
