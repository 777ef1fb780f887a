"""A pipeline with whatever comes after its steps: what they did is undone, and its handlers are told.

Rules:

1. A pipeline that failed is undone from the inside: first its steps, then its handlers are told, and whoever stands
   around it decides about the rest.
2. What stops the run (an abort, a control error) stops it everywhere, so nobody is told and everything is undone at the
   top, in one go.
3. A process that is told to stop leaves a durable run as it is: it can be resumed. Without a store the run is over, so
   it is undone, within a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.failures import Cause, stack_trace
from .._core.outcomes import Aborted, Failure, Paused
from .._core.paths import ROOT
from .._core.undoing import ToUndo, in_order
from .._dsl.pipeline import Pipeline
from .._run.aftermath import Aftermath
from .._run.failure_facts import cause_of, failure_from
from .._run.messages import Request, Untold, work_of
from .._run.run import Run
from .children import Spawner, sequence
from .handling import Handling
from .tried import failed_earlier, remember_failed
from .undoing import take_back

logger = logging.getLogger("flujo_actors")


async def pipeline_ended(spawner: Spawner, pipeline: Pipeline, request: Request) -> Attempt:
    """How a pipeline ends that stands in another one, before its handlers are told."""
    earlier = failed_earlier(spawner.run, request) if spawner.run.resumed else None
    if earlier is None:
        ended = await sequence(spawner, pipeline, work_of(request, request.data))
    else:
        ended = earlier.ended
    if not isinstance(ended, Failed) or escalating(ended.error) is not None:
        return ended
    if earlier is None and (request.tally.left_inside() or pipeline.on_failure):
        await remember_failed(spawner.run, request, ended, final=True)
    return await take_back(spawner, work_of(request, request.data), ended.feedback) or ended


async def handled(spawner: Spawner, request: Request, failed: Failed) -> Attempt:
    """How a failed step or pipeline ends after its handlers; an error that stops the run is not theirs."""
    if escalating(failed.error) is not None:
        return failed
    if spawner.run.closing is not None and request.aside is None:
        return Stopped(outcome=Aborted(reason=spawner.run.closing))
    run, work = spawner.run, work_of(request, request.data)
    failure = failure_from(run, _told_to_handlers(run, request, failed))
    context = request.tally.context if request.path == ROOT else failed.context
    work = work if context is None else attrs.evolve(work, context=context)
    ended = await Handling(spawner, work, request.step.on_failure, failure).ended(failed)
    if isinstance(ended, Failed) and ended.context is not None and request.path == ROOT:
        request.tally.context = ended.context
    return ended


def _told_to_handlers(run: Run, request: Request, failed: Failed) -> Cause:
    """The failure of the step itself; of a pipeline, that of its step which failed."""
    aftermath = request.tally.aftermath = request.tally.aftermath or Aftermath()
    known = aftermath.cause
    if known is not None and isinstance(request.step, Pipeline):
        return known
    own = cause_of(request, Failure(error=failed.error, feedback=run.redact(failed.feedback)))
    own = own if known is None else attrs.evolve(own, at=known.at, stack_trace=known.stack_trace)
    aftermath.own = attrs.evolve(own, stack_trace=stack_trace(own))
    return aftermath.own


# --- the top ------------------------------------------------------------------------------------------------


async def run_ended(spawner: Spawner, request: Request, forward: Callable[[], Awaitable[Attempt]]) -> Attempt:
    """How the run's own pipeline ends: its steps, what is undone, its handlers."""
    ended: Attempt | None = None
    try:
        ended = await _ended(spawner, request, forward)
    finally:
        if ended is None:  # the caller has left, perhaps while it was being undone
            await _undo_in_time(spawner, request, "the run was cancelled")
    return ended


async def _ended(spawner: Spawner, request: Request, forward: Callable[[], Awaitable[Attempt]]) -> Attempt:
    run = spawner.run
    earlier = failed_earlier(run, request) if run.resumed else None
    ended = await forward() if earlier is None else earlier.ended
    if _interrupts(ended):
        await _undo_in_time(spawner, request, "the process was told to stop")
        return ended
    if isinstance(ended, Done) or (isinstance(ended, Stopped) and isinstance(ended.outcome, Paused)):
        return ended
    if isinstance(ended, Stopped) and not ended.undoes:
        return ended
    ended = await _after_failure(_unwatched(spawner), request, ended, known=earlier is not None)
    if isinstance(ended, Stopped) and isinstance(ended.outcome, Paused) and run.outlet is not None and not run.hooks:
        run.pausing.append(Untold(request=request, outcome=ended.outcome))  # they do hear of what waits for an answer
    return ended


async def _after_failure(spawner: Spawner, request: Request, ended: Failed | Stopped, *, known: bool) -> Attempt:
    handlers = request.step.on_failure
    if not known and (request.tally.left_inside() or handlers):
        await remember_failed(spawner.run, request, ended, final=True)
    reason = ended.feedback if isinstance(ended, Failed) else _reason(ended)
    waits = await take_back(spawner, work_of(request, request.data), reason)
    if waits is not None:
        return waits
    if spawner.run.closing is not None:
        return Stopped(outcome=Aborted(reason=spawner.run.closing))
    return await handled(spawner, request, ended) if handlers and isinstance(ended, Failed) else ended


def _unwatched(spawner: Spawner) -> Spawner:
    """Whoever watches the outcomes has been told of the step that failed, and nothing follows that."""
    return attrs.evolve(spawner, run=attrs.evolve(spawner.run, outlet=None)) if spawner.run.outlet else spawner  # type: ignore[misc]


def _reason(stopped: Stopped) -> str:
    assert not isinstance(stopped.outcome, Paused)
    return stopped.outcome.reason


def _interrupts(ended: Attempt) -> bool:
    return isinstance(ended, Failed) and isinstance(escalating(ended.error), KeyboardInterrupt | SystemExit)


async def _undo_in_time(spawner: Spawner, request: Request, reason: str) -> None:
    """Undo a run that nobody can resume, for as long as the settings allow; say in the log what came of it."""
    run, listed = spawner.run, in_order(request.tally.left_inside())
    if run.journal.durable or run.journal.asks or not listed:
        return
    with trio.CancelScope(shield=True, deadline=trio.current_time() + run.undo_grace_s):
        await take_back(_unwatched(spawner), work_of(request, request.data), reason)
    _say_what_is_left(spawner, reason, request.tally.left_inside())


def _say_what_is_left(spawner: Spawner, reason: str, left: Sequence[ToUndo]) -> None:
    run = spawner.run
    done = ", ".join(f"{each.step_name!r}" for each in run.undone.values() if each.success) or "nothing"
    logger.warning("run %s: %s, and it was undone: %s", run.run_id, reason, done)
    not_done = [f"{each.step_name!r}" for each in run.undone.values() if not each.success]
    not_done += [f"{each.name!r} (path {str(each.path)!r})" for each in in_order(left)]
    if not_done:
        logger.error(
            "run %s: not undone: %s; the setting run.undo_grace_s (%g s) says how long it may take",
            run.run_id,
            ", ".join(not_done),
            run.undo_grace_s,
        )
