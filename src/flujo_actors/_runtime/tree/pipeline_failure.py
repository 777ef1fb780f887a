"""End of a pipeline: compensation of its steps, then its handlers.

Rules:

1. A failed pipeline is compensated from the inside: first its steps, then its handlers run, and its parent
   decides about the rest.
2. A stop of the run (an abort, a control error) stops it everywhere, so no handler runs and everything is compensated
   at the top, in one pass.
3. A stopped process leaves a durable run unchanged: it can be resumed. Without a store the run is over, so
   it is compensated within a timeout.

Sections:

- Failure handlers of a step or pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from ..._core.failure_info import Cause, Recovered, StepFailure, ToUndo, in_order, stack_trace
from ..._core.outcomes import Aborted, Failure, Paused, Success
from ..._core.step_paths import ROOT
from ..._dsl.pipeline import AnyStep, Pipeline
from ..run.messages import (
    AttemptInput,
    CompensationState,
    HandlerScope,
    InheritedScope,
    PendingNotification,
    StepRequest,
    StepSettled,
    StepState,
    work_of,
)
from ..run.run_environment import Run
from ..run.step_results import cause_of, failure_from
from .attempt_loop import failed_earlier, remember_failed
from .compensation import compensate_attempt
from .step_supervisor import WRAPPERS, Supervises, of_one_child, sequence

# --- Failure handlers of a step or pipeline -----------------------------------------------------------------------
# Rules:
#
# 1. They run one after the other, when the last attempt has failed and been compensated, and the fallback too. Not
#    for
#    pauses, aborts and errors that stop the run.
# 2. Each is a step of its own below the failed one, and gets the `StepFailure` as its data; nested callables may
#    take `failure` by name.
# 3. A handler that returns `Recovered` makes the step a success with that output; later ones are not run.
# 4. A failed handler is recorded, and the next one is run: the original failure is never replaced.
# 5. Their context changes are kept.


@attrs.define(eq=False)
class FailureHandlers:
    """The handlers of one failed step; see the module's rules."""

    spawner: Supervises
    work: AttemptInput
    handlers: tuple[AnyStep, ...]
    failure: StepFailure
    _context: object = attrs.field(init=False)
    _failed: dict[str, str] = attrs.field(factory=dict, init=False)

    @_context.default
    def _as_it_was(self) -> object:
        return self.work.context

    async def ended(self, failed: AttemptFailed) -> Attempt:
        """Run the handlers; return the end of the step."""
        for number, handler in enumerate(self.handlers, start=1):
            settled = await self._run_handler(handler, number)
            match settled.verdict:
                case Success(step_result=result):
                    self._context = settled.context
                    if isinstance(result.output, Recovered):
                        return self._recovered(failed, result.output, handler)
                case Failure(error=error, feedback=feedback):
                    if escalating(error) is not None:
                        return AttemptFailed(error=error, feedback=feedback or "")
                    self._note(handler, number, feedback or "")
                case Paused() | Aborted() as outcome:
                    return AttemptStopped(outcome=outcome)
            self._drop_entries()
        return attrs.evolve(failed, metadata=self._noted(failed.metadata), context=self._remaining(failed))

    async def _run_handler(self, handler: AnyStep, number: int) -> StepSettled:
        work = self.work
        request = StepRequest(
            step=handler,
            name=handler.name or f"{work.name} (handler {number})".strip(),
            path=step_paths.handler(work.span, number),
            parent=work.span,
            data=self.failure,
            context=self._context,
            around=InheritedScope(
                quotas=work.quotas,
                aside=HandlerScope(failure=self.failure, undo=None if work.aside is None else work.aside.undo),
            ),
        )
        return await of_one_child(self.spawner, work.state, request)

    def _recovered(self, failed: AttemptFailed, recovered: Recovered, handler: AnyStep) -> AttemptSucceeded:
        work, run = self.work, self.spawner.run
        run.emit("step.recovered", work.span, step_name=work.name, handler_name=handler.name or "")
        noted = {**self._noted(failed.metadata), "recovered": True, "original_error": failed.feedback}
        return AttemptSucceeded(output=recovered.output, context=self._context, metadata=noted)

    def _note(self, handler: AnyStep, number: int, feedback: str) -> None:
        name = handler.name or f"handler {number}"
        self._failed[name] = feedback
        self.spawner.run.emit(
            "handler.failed", self.work.span, step_name=self.work.name, handler_name=name, feedback=feedback
        )

    def _noted(self, metadata: Mapping[str, object]) -> dict[str, object]:
        return {**metadata, **({"failed_handlers": self._failed} if self._failed else {})}

    def _remaining(self, failed: AttemptFailed) -> object:
        return failed.context if self._context is self.work.context else self._context

    def _drop_entries(self) -> None:
        """Drop a handler's compensation entries, which failed work excludes."""
        if self.work.state.compensation_state is not None:
            self.work.state.compensation_state.undo.clear()


# --- End of a pipeline --------------------------------------------------------------------------------------------


logger = logging.getLogger("flujo_actors")


@WRAPPERS.entry("pipeline_failure")
async def pipeline_ended(spawner: Supervises, pipeline: Pipeline, state: StepState) -> Attempt:
    """Return the end of a nested pipeline, before its handlers."""
    earlier = failed_earlier(spawner.run, state) if spawner.run.resumed else None
    if earlier is None:
        ended = await sequence(spawner, pipeline, work_of(state, state.data))
    else:
        ended = earlier.ended
    if not isinstance(ended, AttemptFailed) or escalating(ended.error) is not None:
        return ended
    if earlier is None and (state.nested_entries() or pipeline.on_failure):
        await remember_failed(spawner.run, state, ended, final=True)
    return await compensate_attempt(spawner, work_of(state, state.data), ended.feedback) or ended


@WRAPPERS.entry("handlers")
async def handled(spawner: Supervises, state: StepState, failed: AttemptFailed) -> Attempt:
    """Return the end of a failed step or pipeline after its handlers.

    An error that stops the run does not reach them.
    """
    if escalating(failed.error) is not None:
        return failed
    if spawner.run.stopping is not None and state.aside is None:
        return AttemptStopped(outcome=Aborted(reason=spawner.run.stopping))
    run, work = spawner.run, work_of(state, state.data)
    failure = failure_from(run, _failure_for_handlers(run, state, failed))
    context = state.last_context if state.path == ROOT else failed.context
    work = work if context is None else attrs.evolve(work, context=context)
    ended = await FailureHandlers(spawner, work, state.step.on_failure, failure).ended(failed)
    if isinstance(ended, AttemptFailed) and ended.context is not None and state.path == ROOT:
        state.last_context = ended.context
    return ended


def _failure_for_handlers(run: Run, state: StepState, failed: AttemptFailed) -> Cause:
    """Return the failure of the step, or its pipeline's step."""
    compensation_state = state.compensation_state = state.compensation_state or CompensationState()
    known = compensation_state.cause
    if known is not None and isinstance(state.step, Pipeline):
        return known
    own = cause_of(state, Failure(error=failed.error, feedback=run.redact(failed.feedback)))
    own = own if known is None else attrs.evolve(own, at=known.at, stack_trace=known.stack_trace)
    compensation_state.own = attrs.evolve(own, stack_trace=stack_trace(own))
    return compensation_state.own


# --- the top ------------------------------------------------------------------------------------------------


@WRAPPERS.entry("run_failure")
async def run_ended(spawner: Supervises, state: StepState, forward: Callable[[], Awaitable[Attempt]]) -> Attempt:
    """Return the end of the run's own pipeline: steps, compensation, handlers."""
    ended: Attempt | None = None
    try:
        ended = await _ended(spawner, state, forward)
    finally:
        if ended is None:  # the caller has left, perhaps during compensation
            await _compensate_in_time(spawner, state, "the run was cancelled")
    return ended


async def _ended(spawner: Supervises, state: StepState, forward: Callable[[], Awaitable[Attempt]]) -> Attempt:
    run = spawner.run
    earlier = failed_earlier(run, state) if run.resumed else None
    ended = await forward() if earlier is None else earlier.ended
    if _interrupts(ended):
        await _compensate_in_time(spawner, state, "the process was stopped")
        return ended
    if isinstance(ended, AttemptSucceeded) or (isinstance(ended, AttemptStopped) and isinstance(ended.outcome, Paused)):
        return ended
    if isinstance(ended, AttemptStopped) and not ended.undoes:
        return ended
    ended = await _after_failure(_unwatched(spawner), state, ended, known=earlier is not None)
    if (
        isinstance(ended, AttemptStopped)
        and isinstance(ended.outcome, Paused)
        and run.event_stream is not None
        and not run.hooks
    ):
        run.pausing.append(
            PendingNotification(request=state.request, outcome=ended.outcome)
        )  # they do receive open pauses
    return ended


async def _after_failure(
    spawner: Supervises, state: StepState, ended: AttemptFailed | AttemptStopped, *, known: bool
) -> Attempt:
    handlers = state.step.on_failure
    if not known and (state.nested_entries() or handlers):
        await remember_failed(spawner.run, state, ended, final=True)
    reason = ended.feedback if isinstance(ended, AttemptFailed) else _reason(ended)
    waits = await compensate_attempt(spawner, work_of(state, state.data), reason)
    if waits is not None:
        return waits
    if spawner.run.stopping is not None:
        return AttemptStopped(outcome=Aborted(reason=spawner.run.stopping))
    return await handled(spawner, state, ended) if handlers and isinstance(ended, AttemptFailed) else ended


def _unwatched(spawner: Supervises) -> Supervises:
    """Return a spawner without a reader, after the failed step."""
    if not spawner.run.event_stream:
        return spawner
    return attrs.evolve(spawner, run=attrs.evolve(spawner.run, event_stream=None))  # type: ignore[misc]


def _reason(stopped: AttemptStopped) -> str:
    assert not isinstance(stopped.outcome, Paused)
    return stopped.outcome.reason


def _interrupts(ended: Attempt) -> bool:
    return isinstance(ended, AttemptFailed) and isinstance(escalating(ended.error), KeyboardInterrupt | SystemExit)


async def _compensate_in_time(spawner: Supervises, state: StepState, reason: str) -> None:
    """Compensate an unresumable run within a timeout; log the result."""
    run, listed = spawner.run, in_order(state.nested_entries())
    if run.journal.durable or run.journal.asks or not listed:
        return
    with trio.CancelScope(shield=True, deadline=trio.current_time() + run.undo_grace_s):
        await compensate_attempt(_unwatched(spawner), work_of(state, state.data), reason)
    _log_uncompensated(spawner, reason, state.nested_entries())


def _log_uncompensated(spawner: Supervises, reason: str, left: Sequence[ToUndo]) -> None:
    run = spawner.run
    done = ", ".join(f"{each.step_name!r}" for each in run.compensated.values() if each.success) or "nothing"
    logger.warning("run %s: %s, and it was undone: %s", run.run_id, reason, done)
    not_done = [f"{each.step_name!r}" for each in run.compensated.values() if not each.success]
    not_done += [f"{each.name!r} (path {str(each.path)!r})" for each in in_order(left)]
    if not_done:
        logger.error(
            "run %s: not undone: %s; the setting run.undo_grace_s (%g s) is its timeout",
            run.run_id,
            ", ".join(not_done),
            run.undo_grace_s,
        )
