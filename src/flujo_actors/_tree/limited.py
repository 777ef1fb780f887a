"""A step, or a run, under limits: steps are counted before they begin, time is watched, and a limit may ask.

Rules:

1. An agent's step is counted once for its path, before its agent is called; one that is not allowed is not begun.
2. Time is what was worked in all parts of the run. When it is over, whatever is open is cut short.
3. A limit that pauses asks where it was reached. With an answer the step begins its attempt again; what was spent by
   then stays spent. Without one it tries all the same: somebody may have answered the same question elsewhere.
4. `False` is the end that a limit without a question would have been.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import attrs
import trio

from .._core import paths
from .._core.attempts import Attempt, Failed, Stopped
from .._core.outcomes import Paused
from .._core.paths import StepPath
from .._core.questions import about_limits
from .._core.quota import ONE_STEP, Quota
from .._core.usage import Usage
from .._dsl.step import Step
from .._durable.store_wait import call_store
from .._locks import QUOTA_LOCK
from .._run.messages import Request
from .._run.notify import tell_late
from .._run.reports import charge
from .._run.run import Run
from ..errors import UsageLimitExceededError

_STEP = Usage(steps=1)

Ended = Callable[[], Awaitable[Attempt]]


async def limited(run: Run, request: Request, work: Ended) -> Attempt:
    """How a step of a run with limits ended; see the module's rules."""
    refused = _refused_earlier(run, request) if run.resumed else None
    refused = refused or await _not_begun(run, request)
    if refused is not None:
        return asking(refused)
    own = request.quotas[-1] if request.quotas[-1].path == request.path else None
    return asking(await (work() if own is None else within_time(run, own, work)))


def _refused_earlier(run: Run, request: Request) -> Failed | None:
    """What the answer to a question about limits means, if one was asked here; what was used by then is counted."""
    answered = run.journal.answered(request.path)
    pause = run.journal.waiting(request.path) if answered is None else answered.pause
    if pause is None or not pause.is_about_limits:
        return None
    request.tally.attempts, request.tally.usage = max(0, pause.attempts - 1), pause.usage
    charge(request, pause.usage)
    return ended_by_answer(pause.paused) if answered is not None and answered.answer is False else None


def ended_by_answer(paused: Paused) -> Failed:
    """The end of a run whose limits nobody wanted to raise."""
    error = UsageLimitExceededError(paused.message)
    return Failed(error=error, feedback=str(error))


async def _not_begun(run: Run, request: Request) -> Failed | None:
    """Count the step, unless it has been; why it may not begin, if it may not."""
    if not isinstance(request.step, Step) or request.tally.usage.steps or _was_tried(run, request.path):
        return None
    limited = any(quota.limits.step_limit is not None for quota in request.quotas)
    shared = request.quotas[0].shared if limited else None
    if shared is None:
        refusing = _begun(request.quotas)
    else:
        refusing = await call_store(functools.partial(shared.take_one, request.quotas, ONE_STEP))
    if refusing is not None:
        error = refusing.error(needed=ONE_STEP)
        return Failed(error=error, feedback=str(error))
    if limited:
        request.tally.spend(_STEP)  # so that it is known in the next part of the run
    return None


def _begun(quotas: tuple[Quota, ...]) -> Quota | None:
    """Count a step, or say which limit is against it."""
    with QUOTA_LOCK:
        refusing = next((quota for quota in quotas if not quota.allows(ONE_STEP)), None)
        if refusing is None:
            for quota in quotas:
                quota.begin(ONE_STEP)
    return refusing


def _was_tried(run: Run, path: StepPath) -> bool:
    """Whether earlier attempts are on record, which have counted the step."""
    return run.resumed and run.journal.recall(paths.tried(path)) is not None


# --- time ---------------------------------------------------------------------------------------------------


async def within_time(run: Run, quota: Quota, work: Ended) -> Attempt:
    """How the work ended, cut short when the time of the budget is over."""
    limit = quota.limits.time_limit_s
    if limit is None:
        return await work()
    clock, times = trio.lowlevel.current_clock(), run.journal.times
    earlier, begun = times.of(quota.path), clock.current_time()
    quota.worked = lambda: earlier + clock.current_time() - begun  # also asked for from another thread
    times.begin(quota.path, quota.worked)
    try:
        with trio.CancelScope(deadline=begun + limit - earlier) as scope:
            ended = await work()
    finally:
        times.end(quota.path)
    return await _out_of_time(run, quota) if scope.cancel_called else ended


async def _out_of_time(run: Run, quota: Quota) -> Failed:
    if run.untold:
        await tell_late(run)  # of the steps that were cut short
    error = quota.error()
    return Failed(error=error, feedback=str(error))


# --- asking instead of ending -------------------------------------------------------------------------------


def asking(ended: Attempt) -> Attempt:
    """The attempt, or the question that stands for it if a limit was reached that asks."""
    error = ended.error if isinstance(ended, Failed) else None
    if not isinstance(error, UsageLimitExceededError) or not isinstance(error.reached, Quota):
        return ended
    quota = error.reached
    if quota.limits.when_reached != "pause":
        return ended
    first = error.limits[0] if error.limits else "total_tokens_limit"
    text = f"{error}. Answer with new limits, as in {{{first!r}: …}}, or with False to end the run."
    question = about_limits(quota.path, error.limits)
    return Stopped(outcome=Paused(message=text), question=question)


def asked_before(run: Run) -> Attempt | None:
    """How a run that asked for more time goes on: it waits, it ends, or (`None`) it has its answer."""
    answered = run.journal.answered(paths.ROOT)
    waiting = run.journal.waiting(paths.ROOT)
    if waiting is not None:
        return Stopped(outcome=waiting.paused)
    if answered is not None and answered.answer is False:
        return ended_by_answer(answered.pause.paused)
    return None


def at_root(run: Run, ended: Attempt) -> Stopped | None:
    """The question of a run whose own time is over, if it asks."""
    asked = asking(ended)
    if isinstance(asked, Stopped) and asked is not ended and isinstance(asked.outcome, Paused):
        return attrs.evolve(asked, place=paths.ROOT)
    return None
