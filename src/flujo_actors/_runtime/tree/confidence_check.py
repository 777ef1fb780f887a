"""Confidence of an answer: evaluated after validators, compared, and reviewed if low.

Rules:

1. The number is a field of the output, the result of a function or an agent, or the share of votes.
2. An answer of low confidence is a refused attempt: it is retried, and reviewed when no retries are left.
3. No number, or one outside 0 to 1, is low; the feedback states it.
4. Votes are concurrent attempts, each with its processors and validators; failed ones are votes for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from outcome import Error

from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptSucceeded
from ..._core.error_info import message_of
from ..._core.outcomes import Failure, Success
from ..._core.policies.selection import Vote, Votes, confidence_in, field_of, majority
from ..._dsl.call_plan import plan_callable
from ..._dsl.declared_step import Declared
from ..._dsl.selection_step import DEFAULT_FIELD
from ..._dsl.step_declaration import Step
from ...errors import LowConfidence
from ..run.messages import AttemptInput, StepSettled, StepState, work_of
from ..run.user_functions import call, call_planned
from .composites import fan_out
from .step_supervisor import WRAPPERS, Supervises, ended_by, of_one_child, output_of


@WRAPPERS.entry("confidence")
async def with_confidence(
    spawner: Supervises, step: Declared, work: AttemptInput, attempt: Callable[[], Awaitable[Attempt]]
) -> Attempt:
    """Return the attempt, or the vote of several, refused below the threshold."""
    ended = await (voted(spawner, step, work, step.confidence) if isinstance(step.confidence, Votes) else attempt())
    return await _checked(spawner, step, work, ended) if isinstance(ended, AttemptSucceeded) else ended


async def _checked(spawner: Supervises, step: Declared, work: AttemptInput, done: AttemptSucceeded) -> Attempt:
    """Return the attempt with its confidence, or refused for a low one."""
    number, why = await _number(spawner, step, work, done)
    noted = {**done.metadata, "confidence": number}
    least = step.min_confidence
    if least is None:
        return attrs.evolve(done, metadata=noted)
    noted = {**noted, "min_confidence": least, "routed": False}
    if number is not None and number >= least:
        return attrs.evolve(done, metadata=noted)
    error = LowConfidence(number, least, why)
    text = spawner.run.redact(str(error))
    spawner.run.emit(
        "confidence.low",
        work.span,
        step_name=work.name,
        attempt=work.attempt,
        confidence=number,
        min_confidence=least,
        feedback=text,
    )
    return AttemptFailed(error=error, feedback=text, refusal=text, output=done.output, metadata=noted)


async def _number(
    spawner: Supervises, step: Declared, work: AttemptInput, done: AttemptSucceeded
) -> tuple[float | None, str]:
    source = step.confidence or DEFAULT_FIELD
    if isinstance(source, Votes):
        return confidence_in(done.metadata.get("confidence"))
    if isinstance(source, str):
        return confidence_in(field_of(done.output, source))
    if _is_plain(source):
        plan = plan_callable(source, step_name=f"{step.name} (confidence)")
        found = await call_planned(spawner.run, plan, done.output, done.context)
        if isinstance(found, Error):
            return None, f"its confidence is not known: {type(found.error).__name__}: {message_of(found.error)}"
        return confidence_in(found.value)
    return await _verdict(spawner, step, work, done)


def _is_plain(source: Any) -> bool:
    return callable(source) and not hasattr(source, "run")


async def _verdict(
    spawner: Supervises, step: Declared, work: AttemptInput, done: AttemptSucceeded
) -> tuple[float | None, str]:
    """Return an agent's verdict on the output, as a counted step."""
    judge: Step = Step(f"{step.name} (confidence)", step.confidence)
    path = step_paths.child(work.path, step_paths.JUDGE)
    request = work.child(judge, judge.name, path, done.output, done.context)
    settled = await of_one_child(spawner, work.state, request)
    match settled.verdict:
        case Success():
            found = output_of(settled)
            return confidence_in(found if isinstance(found, int | float) else field_of(found, DEFAULT_FIELD))
        case Failure(feedback=feedback):
            return None, f"its confidence is not known: {feedback}"
        case _:
            return None, "its confidence is not known: its judge did not end"


# --- votes --------------------------------------------------------------------------------------------------


async def voted(spawner: Supervises, step: Declared, work: AttemptInput, votes: Votes) -> Attempt:
    """Return the answer that most of the votes gave."""
    voter = attrs.evolve(
        step,
        input=None,
        max_retries=0,
        timeout_s=None,
        fallback=None,
        usage_limits=None,
        on_failure=(),
        compensate=None,
        min_confidence=None,
        confidence=None,
        on_low_confidence=None,
    )
    names = [f"{step.name} (vote {index + 1})" for index in range(votes.n)]
    requests = (
        work.child(voter, name, step_paths.item(work.path, index), work.data, work.context, index)
        for index, name in enumerate(names)
    )
    reports = await fan_out(spawner, work, requests, None, patient=True)
    compared = [await _compared(spawner, votes, settled) for settled in reports.listed.values()]
    elected = majority([vote for vote in compared if vote is not None], votes.n)
    if elected is None:
        first = next((each for each in reports.listed.values() if not isinstance(each.verdict, Success)), None)
        if first is None:
            return AttemptFailed(error=None, feedback=f"step {step.name!r}: no vote could be compared")
        return ended_by(work, names[first.index], first, work.context)
    winner = reports.listed[elected.index]
    noted = {"confidence": elected.share, "votes": elected.votes}
    return AttemptSucceeded(output=output_of(winner), context=winner.context, metadata=noted)


async def _compared(spawner: Supervises, votes: Votes, settled: StepSettled) -> Vote | None:
    """Return a vote with its comparison key; `None` if it failed."""
    if not isinstance(settled.verdict, Success):
        return None
    if votes.key is None:
        return Vote(settled.index, output_of(settled))
    found = await call(spawner.run, votes.key, output_of(settled))
    return None if isinstance(found, Error) else Vote(settled.index, found.value)


# --- reviews ------------------------------------------------------------------------------------------------


@WRAPPERS.entry("is_low")
def is_low(error: object) -> bool:
    """Return whether an attempt was refused for low confidence, in any process."""
    return isinstance(error, LowConfidence) or getattr(error, "type_name", None) == LowConfidence.__name__


@WRAPPERS.entry("review")
async def reviewed(spawner: Supervises, state: StepState, step: Declared, low: AttemptFailed) -> Attempt:
    """Return the result of reviewing an answer of low confidence."""
    assert step.on_low_confidence is not None
    review = step.on_low_confidence
    number = low.metadata.get("confidence")
    work = work_of(state, low.output)
    name = review.name or f"{step.name} (review)"
    child = work.child(review, name, step_paths.child(state.path, step_paths.REVIEW), low.output, state.context)
    settled = await of_one_child(spawner, state, child.with_keywords(confidence=number))
    if not isinstance(settled.verdict, Success):
        return ended_by(work, name, settled, state.context)
    noted = {"confidence": number, "min_confidence": step.min_confidence, "routed": True}
    return AttemptSucceeded(output=output_of(settled), context=settled.context, metadata=noted)
