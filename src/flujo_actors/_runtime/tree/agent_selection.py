"""Selection of one of several agents, and learning from its outcome.

Rules:

1. The choice is committed before its arm begins: a resumed attempt recalls it, regardless of later statistics.
2. An attempt prefers arms that were not tried in this step; when all were, all are candidates.
3. The result of an attempt, after validators, is the outcome of its arm. It is written with the step's own record, so
   that it counts once.
4. An arm that requests rotation (a loop was detected) is replaced by the next one in the same attempt.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

import attrs
from outcome import Error, Value

from ..._core import seams, step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptSucceeded, marks
from ..._core.error_info import message_of
from ..._core.outcomes import Failure, StepResult, Success
from ..._core.policies.selection import (
    DEFAULT_CATEGORY,
    NO_BELIEF,
    Belief,
    Evidence,
    Selection,
    decayed,
    generator,
    is_reward,
    read_statistics,
)
from ..._core.step_paths import StepPath
from ..._dsl.selection_step import SelectAgent
from ...errors import LoopDetected
from ..context.copies import own
from ..run.messages import AttemptInput, Selected, StepSettled, StepState
from ..run.run_environment import Run
from ..run.selection_statistics import taken_evidence
from ..run.step_results import budget_for, budget_of
from ..run.user_functions import call, failure_of, with_context_copy
from .step_supervisor import KINDS, WRAPPERS, Supervises, ended_by, of_one_child, output_of, texts_in

logger = logging.getLogger("flujo_actors")

WRAPPERS["evidence"] = taken_evidence


@KINDS.entry("selection")
async def select_agent(spawner: Supervises, step: SelectAgent, work: AttemptInput) -> Attempt:
    """Return the chosen arm, or its replacement."""
    category = DEFAULT_CATEGORY if step.category is None else await _category(spawner.run, step, step.category, work)
    if isinstance(category, AttemptFailed):
        return category
    for number in range(1, len(step.arms) + 1):
        choice = await _choice(spawner.run, step, work, category, number)
        if isinstance(choice, AttemptFailed):
            return choice
        settled = await _performed(spawner, step, work, choice)
        if number < len(step.arms) and _rotates(settled):
            await _reward_arm(spawner.run, work, step, settled)
            continue
        return _ended(work, choice, settled)
    raise AssertionError("the last arm gives way to none")


async def _category(run: Run, step: SelectAgent, tell: Callable[..., Any], work: AttemptInput) -> str | AttemptFailed:
    asked = budget_for(step, "category", work.quotas)
    found = await with_context_copy(run, tell, own(work.data), work.context, work.scope, **asked)
    found = found if isinstance(found, Error) else await call(run, str, found.value)
    return (
        failure_of(run, found.error, subject=f"The category of {step.name!r}")
        if isinstance(found, Error)
        else found.value
    )


async def _choice(
    run: Run, step: SelectAgent, work: AttemptInput, category: str, number: int
) -> Selection | AttemptFailed:
    place = step_paths.choice(work.path, number)
    kept = run.journal.chosen(place)
    if kept is not None:
        return _read(kept)
    assert run.beliefs is not None
    half_life = getattr(step.by, "idle_half_life_s", None)
    known = await run.beliefs.read(_name(step, work.span), category)
    beliefs = {arm: decayed(known.get(arm, NO_BELIEF), half_life) for arm in step.arms}
    tried = _tried(run, work, number)
    candidates = tuple(arm for arm in step.arms if arm not in tried) or tuple(step.arms)
    seed = getattr(step.by, "seed", None)
    rng = seams.generator if seed is None else generator(seed, run.run_id, place)
    seen = {arm: beliefs[arm] for arm in candidates}
    chosen = await call(run, step.by.choose, candidates, seen, budget_of(work.quotas), rng)
    if isinstance(chosen, Error):
        return failure_of(run, chosen.error, subject=f"The selection of {step.name!r}")
    return await _committed(run, step, work, place, chosen.value, category, seen)


async def _committed(
    run: Run,
    step: SelectAgent,
    work: AttemptInput,
    place: StepPath,
    chosen: Any,
    category: str,
    seen: dict[str, Belief],
) -> Selection | AttemptFailed:
    arm = getattr(chosen, "arm", None)
    if not isinstance(arm, str) or arm not in step.arms:
        known = ", ".join(map(repr, step.arms))
        return AttemptFailed(error=None, feedback=f"step {step.name!r} chose {arm!r}, but its arms are {known}")
    choice = Selection(arm=arm, theta=getattr(chosen, "theta", None), category=category, beliefs=seen)
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
    """Return the name of the statistics: as declared, or the declaration path."""
    if step.beliefs is None and "~" not in path:  # it is its own place
        return path
    return step.beliefs or step_paths.formatted(step_paths.in_declaration(path) or ())


def _tried(run: Run, work: AttemptInput, number: int) -> set[str]:
    """Return the arms tried by earlier attempts and rounds of this step."""
    if work.attempt == number == 1:
        return set()
    places = [
        *(step_paths.choice(step_paths.attempt(work.span, attempt), 1) for attempt in range(1, work.attempt)),
        *(step_paths.choice(work.path, earlier) for earlier in range(1, number)),
    ]
    return {_read(kept).arm for place in places if (kept := run.journal.chosen(place)) is not None}


def _written(choice: Selection, step: SelectAgent, name: str) -> str:
    """Return a choice's stored form, with later reward data."""
    beliefs = {
        arm: (belief.alpha, belief.beta, belief.observations, belief.mean_cost_usd)
        for arm, belief in choice.beliefs.items()
    }
    facts = {"arm": choice.arm, "theta": choice.theta, "category": choice.category, "beliefs": beliefs}
    later = {"name": name, "memory": getattr(step.by, "memory", None)}
    return json.dumps({**facts, **later, "later": step.reward == "later"})


def _read(text: str) -> Selection:
    return read_choice(json.loads(text))


def read_choice(data: dict[str, Any]) -> Selection:
    """Return a choice that was stored."""
    return Selection(
        arm=data["arm"], theta=data["theta"], category=data["category"], beliefs=read_statistics(data["beliefs"])
    )


async def _performed(spawner: Supervises, step: SelectAgent, work: AttemptInput, choice: Selection) -> StepSettled:
    path = step_paths.named(work.path, choice.arm)
    arm = work.child(step.arms[choice.arm], choice.arm, path, work.data, work.context, degraded=work.degraded)
    settled = await of_one_child(spawner, work.state, arm)
    if isinstance(settled.verdict, Success | Failure):
        work.state.selected = Selected(choice=choice, result=settled.result)
    return settled


def _rotates(settled: StepSettled) -> bool:
    error = settled.verdict.error if isinstance(settled.verdict, Failure) else None
    return isinstance(error, LoopDetected) and error.rotates


def _ended(work: AttemptInput, choice: Selection, settled: StepSettled) -> Attempt:
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
        return attrs.evolve(ended, metadata={"selection": selection}) if isinstance(ended, AttemptFailed) else ended
    output = output_of(settled)
    noted = {"selection": selection, **marks(output, texts_in(settled))}
    return AttemptSucceeded(output=output, context=settled.context, metadata=noted)


# --- rewards ------------------------------------------------------------------------------------------------


@WRAPPERS.entry("reward")
async def rewarded(run: Run, state: StepState, step: SelectAgent, ended: Attempt) -> None:
    """Record the reward of the attempt's arm, written with the step's continuation."""
    selected, state.selected = state.selected, None
    if selected is None or run.gate is not None or not isinstance(ended, AttemptSucceeded | AttemptFailed):
        return
    result = selected.result or StepResult(name=selected.choice.arm)
    if step.reward is None:
        _add(state, step, state.path, selected, result, 1.0 if isinstance(ended, AttemptSucceeded) else 0.0)
        return
    result = attrs.evolve(result, success=isinstance(ended, AttemptSucceeded), output=ended.output)
    context = ended.context if isinstance(ended, AttemptSucceeded) else state.context
    await _note(run, state, step, selected, result, context)


async def _reward_arm(run: Run, work: AttemptInput, step: SelectAgent, settled: StepSettled) -> None:
    """Record the outcome of a replaced arm."""
    selected, work.state.selected = work.state.selected, None
    if selected is not None and selected.result is not None and run.gate is None:
        value = None if step.reward == "later" else 0.0
        _add(work.state, step, work.span, selected, selected.result, value)


async def _note(
    run: Run, state: StepState, step: SelectAgent, selected: Selected, result: StepResult, context: Any
) -> None:
    if step.reward == "later":
        return
    value: Any = None
    if callable(step.reward):
        answer = await with_context_copy(run, step.reward, result, context)
        value = _checked_reward(run, step, answer)
    _add(state, step, state.path, selected, result, value)


def _checked_reward(run: Run, step: SelectAgent, answer: Value[Any] | Error) -> float | None:
    """Return a user function's reward, or None if it is invalid."""
    if isinstance(answer, Error):
        text = run.redact(f"{type(answer.error).__name__}: {message_of(answer.error)}")
        logger.warning("the reward of step %r failed, and nothing is learned: %s", step.name, text)
        return None
    if answer.value is not None and not is_reward(answer.value):
        logger.warning("the reward of step %r is %r, and not from 0 to 1: nothing is learned", step.name, answer.value)
        return None
    return None if answer.value is None else float(answer.value)


def _add(
    state: StepState, step: SelectAgent, path: StepPath, selected: Selected, result: StepResult, value: Any
) -> None:
    if value is None:
        return
    evidence = Evidence(
        name=_name(step, path),
        category=selected.choice.category,
        arm=selected.choice.arm,
        reward=float(value),
        cost_usd=result.cost_usd,
        memory=getattr(step.by, "memory", None),
    )
    state.evidence = (*state.evidence, evidence)
