"""Limits of a step or run: count, time and pauses.

Rules:

1. An agent's step is counted once for its path, before its agent is called; a refused one does not start.
2. Time is the work time of all sessions. When it is over, open steps are cancelled.
3. A pausing limit opens its pause where it was reached. With an answer the step begins its attempt again; earlier
   spending remains. Without one it tries all the same: another process may have answered the same pause.
4. `False` ends the run like a limit without a pause.
5. A limit that waits puts the step to sleep until its window ends. Then the step begins its attempt again. A window
   without any spending is not waited for: the next one would refuse the step, too.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped
from ..._core.locks import QUOTA_LOCK
from ..._core.outcomes import Paused
from ..._core.policies.approval_policy import QuestionSpec, about_limits, until_window_ends
from ..._core.quota import ONE_STEP, Quota
from ..._core.step_paths import ROOT, StepPath
from ..._core.usage import Usage
from ..._dsl.pipeline import Pipeline
from ..._dsl.step_declaration import Step
from ..._durable.store_executor import call_store
from ...errors import UsageLimitExceededError
from ..run.hooks import notify_late
from ..run.messages import AttemptInput, StepState
from ..run.run_environment import Run
from ..run.step_results import charge
from .step_supervisor import WRAPPERS, Supervises, sequence

_STEP = Usage(steps=1)

Ended = Callable[[], Awaitable[Attempt]]


@WRAPPERS.entry("limits")
async def limited(actors: PausingSupervisor, state: StepState, work: Ended) -> Attempt:
    """Run a step under limits; see the module's rules."""
    run = actors.run
    ended = await _resumed_pause(run, state) if run.resumed else None
    ended = ended or await _refused_start(run, state) or await _run_within(run, state, work)
    while True:
        asked = asking(ended)
        if not isinstance(asked, AttemptStopped) or asked.question is None or asked.question.kind != "budget":
            return asked
        stopped = await _until_next_window(actors, state, asked, asked.question)
        if stopped is not None:
            return stopped
        state.attempts = max(0, state.attempts - 1)
        ended = await _run_within(run, state, work)


async def _run_within(run: Run, state: StepState, work: Ended) -> Attempt:
    own = state.quotas[-1] if state.quotas[-1].path == state.path else None
    return await (work() if own is None else within_time(run, own, work))


async def _resumed_pause(run: Run, state: StepState) -> Attempt | None:
    """Apply the answer to a limit pause, or continue the wait."""
    answered = run.journal.answered(state.path)
    pause = run.journal.waiting(state.path) if answered is None else answered.pause
    if pause is None or not pause.is_about_limits:
        return None
    state.attempts = max(0, pause.attempts - 1)
    if getattr(state.step, "resumable", None) is None:  # units of a granular step count themselves
        state.usage = pause.usage
        charge(state, pause.usage)
    if pause.question is not None and pause.question.kind == "budget":
        woken = answered or await WRAPPERS["passed"](run, state, pause.question)
        if woken is None:
            return AttemptStopped(outcome=pause.paused)
        WRAPPERS["woken"](run, state, pause.question, woken)
        return None
    return ended_by_answer(pause.paused) if answered is not None and answered.answer is False else None


async def _until_next_window(
    actors: PausingSupervisor, state: StepState, asked: AttemptStopped, spec: QuestionSpec
) -> AttemptStopped | None:
    """Commit a refused step's wait, and wait for the window."""
    assert isinstance(asked.outcome, Paused)
    paused = await actors.pause(state, asked.outcome, state.path, spec)
    woken = await WRAPPERS["passed"](actors.run, state, spec)
    return AttemptStopped(outcome=paused) if woken is None else None


def ended_by_answer(paused: Paused) -> AttemptFailed:
    """Return the end of a run whose limits were not raised."""
    error = UsageLimitExceededError(paused.message)
    return AttemptFailed(error=error, feedback=str(error))


async def _refused_start(run: Run, state: StepState) -> AttemptFailed | None:
    """Count the step once; return its refusal, if any."""
    if not isinstance(state.step, Step) or state.usage.steps or _was_counted(run, state.path):
        return None
    limited = any(quota.limits.step_limit is not None for quota in state.quotas)
    shared = state.quotas[0].shared if limited else None
    if shared is None:
        refusing = _refusing_quota(state.quotas)
    else:
        refusing = await call_store(functools.partial(shared.spend_one, state.quotas, ONE_STEP))
    if refusing is not None:
        error = refusing.error(needed=ONE_STEP)
        return AttemptFailed(error=error, feedback=str(error))
    if limited:
        state.spend(_STEP)  # so that the next session knows it
    return None


def _refusing_quota(quotas: tuple[Quota, ...]) -> Quota | None:
    """Count a step; return the refusing limit, if any."""
    with QUOTA_LOCK:
        refusing = next((quota for quota in quotas if not quota.allows(ONE_STEP)), None)
        if refusing is None:
            for quota in quotas:
                quota.begin(ONE_STEP)
    return refusing


def _was_counted(run: Run, path: StepPath) -> bool:
    """Return whether recorded attempts have counted the step."""
    return run.resumed and run.journal.recall(step_paths.tried(path)) is not None


# --- time ---------------------------------------------------------------------------------------------------


async def within_time(run: Run, quota: Quota, work: Ended) -> Attempt:
    """Run the work; cancel it when the budget's time is over."""
    limit = quota.limits.time_limit_s
    if limit is None:
        return await work()
    clock, times = trio.lowlevel.current_clock(), run.journal.times
    earlier, begun = times.of(quota.path), clock.current_time()
    quota.worked = lambda: earlier + clock.current_time() - begun  # also requested from another thread
    times.begin(quota.path, quota.worked)
    try:
        with trio.CancelScope(deadline=begun + limit - earlier) as scope:
            ended = await work()
    finally:
        times.end(quota.path)
    return await _out_of_time(run, quota) if scope.cancel_called else ended


async def _out_of_time(run: Run, quota: Quota) -> AttemptFailed:
    if run.pending:
        await notify_late(run)  # of the steps that were cut short
    error = quota.error()
    return AttemptFailed(error=error, feedback=str(error))


# --- pauses -------------------------------------------------------------------------------------------------


@WRAPPERS.entry("asking")
def asking(ended: Attempt) -> Attempt:
    """Return the attempt, or a pause for a reached limit that pauses."""
    error = ended.error if isinstance(ended, AttemptFailed) else None
    if not isinstance(error, UsageLimitExceededError) or not isinstance(error.reached, Quota):
        return ended
    quota = error.reached
    if quota.limits.when_reached == "wait" and quota.ends_at is not None and _is_in_use(quota):
        text = f"{error}. It continues in the next {quota.limits.window}."
        question = until_window_ends(quota.key, error.limits, quota.ends_at)
    elif quota.limits.when_reached == "pause":
        first = error.limits[0] if error.limits else "total_tokens_limit"
        text = f"{error}. Answer with new limits, as in {{{first!r}: …}}, or with False to end the run."
        question = about_limits(quota.key, error.limits)
    else:
        return ended
    return AttemptStopped(outcome=Paused(message=text), question=question)


def _is_in_use(quota: Quota) -> bool:
    """Return whether a window has spending or requests in flight."""
    used = quota.used()
    return any((used.cost_usd, used.tokens, used.requests, used.tool_calls))


def paused_before(run: Run) -> Attempt | None:
    """Return how a time-paused run continues; `None` with an answer."""
    answered = run.journal.answered(step_paths.ROOT)
    waiting = run.journal.waiting(step_paths.ROOT)
    if waiting is not None:
        return AttemptStopped(outcome=waiting.paused)
    if answered is not None and answered.answer is False:
        return ended_by_answer(answered.pause.paused)
    return None


def at_root(run: Run, ended: Attempt) -> AttemptStopped | None:
    """Return the pause of a run out of time, or None."""
    asked = asking(ended)
    if isinstance(asked, AttemptStopped) and asked is not ended and isinstance(asked.outcome, Paused):
        return attrs.evolve(asked, place=step_paths.ROOT)
    return None


class PausingSupervisor(Supervises, Protocol):
    """Supervisor that gives a pausing step its token."""

    def pause(
        self, state: StepState, paused: Paused, place: StepPath, question: QuestionSpec | None = None
    ) -> Awaitable[Paused]:
        """Give the pausing step a token."""


@WRAPPERS.entry("run_time")
async def run_in_time(actors: PausingSupervisor, pipeline: Pipeline, work: AttemptInput) -> Attempt:
    """Run the steps within the run's total work time."""
    before = paused_before(actors.run) if actors.run.resumed else None
    if before is not None:
        return before
    steps = functools.partial(sequence, actors, pipeline, work)
    ended = await within_time(actors.run, work.quotas[0], steps)
    asks = at_root(actors.run, ended)
    if asks is None or not isinstance(asks.outcome, Paused):
        return ended
    paused = await actors.pause(work.state, asks.outcome, ROOT, asks.question)
    return AttemptStopped(outcome=paused)
