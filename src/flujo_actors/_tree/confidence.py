"""How sure an answer is: asked for after validators, compared, and reviewed where it is too low.

Rules:

1. The number is a field of the output, what a function or an agent says of it, or the share of votes that gave it.
2. An answer that is not sure enough is a refused attempt: it is tried again, and reviewed when no tries are left.
3. No number, or one outside 0 to 1, is low; the feedback says so.
4. Votes are attempts at once, each with its processors and validators; those that fail are votes for nothing.
"""

from __future__ import annotations

from typing import Any

import attrs
from outcome import Error

from .._core import paths
from .._core.attempts import Attempt, Done, Failed
from .._core.error_info import message_of
from .._core.outcomes import Failure, Success
from .._core.votes import Vote, Votes, confidence_in, elect, field_of
from .._dsl.call_plan import plan_callable
from .._dsl.declared import Declared
from .._dsl.step import Step
from .._dsl.sureness import DEFAULT_FIELD
from .._run.messages import Request, Settled, Work, work_of
from .._run.user_calls import ask, ask_planned
from ..errors import LowConfidence
from .children import Spawner, ended_by, of_one_child, output_of
from .composites import fan_out


async def weighed(spawner: Spawner, step: Declared, work: Work, done: Done) -> Attempt:
    """The attempt with how sure it is, or refused because that is not enough."""
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
    return Failed(error=error, feedback=text, refusal=text, output=done.output, metadata=noted)


async def _number(spawner: Spawner, step: Declared, work: Work, done: Done) -> tuple[float | None, str]:
    source = step.confidence or DEFAULT_FIELD
    if isinstance(source, Votes):
        return confidence_in(done.metadata.get("confidence"))
    if isinstance(source, str):
        return confidence_in(field_of(done.output, source))
    if _is_plain(source):
        plan = plan_callable(source, step_name=f"{step.name} (confidence)")
        said = await ask_planned(spawner.run, plan, done.output, done.context)
        if isinstance(said, Error):
            return None, f"its confidence is not known: {type(said.error).__name__}: {message_of(said.error)}"
        return confidence_in(said.value)
    return await _judged(spawner, step, work, done)


def _is_plain(source: Any) -> bool:
    return callable(source) and not hasattr(source, "run")


async def _judged(spawner: Spawner, step: Declared, work: Work, done: Done) -> tuple[float | None, str]:
    """What an agent says of the output: a step of its own, counted like any."""
    judge: Step = Step(f"{step.name} (confidence)", step.confidence)
    path = paths.child(work.path, paths.JUDGE)
    request = work.child(judge, judge.name, path, done.output, done.context)
    settled = await of_one_child(spawner, work.tally, request)
    match settled.verdict:
        case Success():
            said = output_of(settled)
            return confidence_in(said if isinstance(said, int | float) else field_of(said, DEFAULT_FIELD))
        case Failure(feedback=feedback):
            return None, f"its confidence is not known: {feedback}"
        case _:
            return None, "its confidence is not known: whoever judges it did not come to an end"


# --- votes --------------------------------------------------------------------------------------------------


async def voted(spawner: Spawner, step: Declared, work: Work, votes: Votes) -> Attempt:
    """The answer that most of the votes gave."""
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
        work.child(voter, name, paths.item(work.path, index), work.data, work.context, index)
        for index, name in enumerate(names)
    )
    reports = await fan_out(spawner, work, requests, None, patient=True)
    compared = [await _compared(spawner, votes, settled) for settled in reports.values()]
    elected = elect([vote for vote in compared if vote is not None], votes.n)
    if elected is None:
        first = next((each for each in reports.values() if not isinstance(each.verdict, Success)), None)
        if first is None:
            return Failed(error=None, feedback=f"step {step.name!r}: no vote could be compared")
        return ended_by(work, names[first.index], first, work.context)
    winner = reports[elected.index]
    noted = {"confidence": elected.share, "votes": elected.votes}
    return Done(output=output_of(winner), context=winner.context, metadata=noted)


async def _compared(spawner: Spawner, votes: Votes, settled: Settled) -> Vote | None:
    """A vote and what it is compared by; `None` if it failed."""
    if not isinstance(settled.verdict, Success):
        return None
    if votes.key is None:
        return Vote(settled.index, output_of(settled))
    found = await ask(spawner.run, votes.key, output_of(settled))
    return None if isinstance(found, Error) else Vote(settled.index, found.value)


# --- reviews ------------------------------------------------------------------------------------------------


def is_low(error: object) -> bool:
    """Whether an attempt was refused because it was not sure enough, in this process or in an earlier one."""
    return isinstance(error, LowConfidence) or getattr(error, "type_name", None) == LowConfidence.__name__


async def reviewed(spawner: Spawner, request: Request, step: Declared, low: Failed) -> Attempt:
    """What a review makes of an answer that was not sure enough."""
    assert step.on_low_confidence is not None
    review = step.on_low_confidence
    number = low.metadata.get("confidence")
    work = work_of(request, low.output)
    name = review.name or f"{step.name} (review)"
    child = work.child(review, name, paths.child(request.path, paths.REVIEW), low.output, request.context)
    settled = await of_one_child(spawner, request.tally, child.telling(confidence=number))
    if not isinstance(settled.verdict, Success):
        return ended_by(work, name, settled, request.context)
    noted = {"confidence": number, "min_confidence": step.min_confidence, "routed": True}
    return Done(output=output_of(settled), context=settled.context, metadata=noted)
