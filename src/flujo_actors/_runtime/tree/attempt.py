"""One attempt of a step: context copy, processors, work, validators.

Rules:

1. User code works on a copy of the context, which lives as long as the attempt.
2. The clock of `timeout_s` runs from the first processor to the last validator; an attempt past it is a failure, even
   if its code ignored the cancellation and returned a value.
3. Writes through a transaction are rolled back unless the attempt ends with an output.
4. An attempt whose transaction the store lost (a connection, a lock) has written nothing: it is repeated without using
   a retry; lost too often, it is an error of the store, and the run can be resumed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio
from outcome import Error

from ..._bridge.user_code_guard import guarded
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from ..._core.outcomes import Aborted
from ..._dsl.call_plan import name_of
from ..._dsl.declared_step import Declared
from ..._dsl.output_options import Redirect
from ..._dsl.step_declaration import Step
from ..._durable.journal import OpenTransaction
from ...errors import ContextError, StepTimeout, TransactionLost
from .. import calls
from ..calls.agent_call import call_agent, joined, refused_output
from ..context.copies import isolated
from ..context.merge import carried, updated
from ..run.hooks import notify_late
from ..run.messages import AssembledInput, AttemptInput, StepState, work_of
from ..run.run_environment import Run, note_swallowed_cancellation, report_unstoppable
from ..run.step_results import emit_attempt_ended, redacted_attempt, within_limits
from ..run.user_functions import call, call_planned, error_text, failure_of
from .step_supervisor import KINDS, WRAPPERS, Supervises, vetoed

WRAPPERS["carried"] = carried

LOST_AT_MOST = 3
"""Maximum number of repetitions after a lost transaction."""


@attrs.frozen(eq=False)
class AttemptRunner:
    """Execution of one attempt; see the module's rules."""

    spawner: Supervises
    state: StepState

    @property
    def run(self) -> Run:
        """Return the run the step belongs to."""
        return self.spawner.run

    async def attempt(self, step: Declared, work: AttemptInput) -> Attempt:
        """Run one attempt with the step's timeout and transaction, if any."""
        work.state.chunks, work.state.questions = [], 0
        if self.run.stopping is not None and self._is_stopped_forward_work(step):
            return AttemptStopped(outcome=Aborted(reason=self.run.stopping))
        if self.run.journal.lapsed:
            await self.run.journal.confirm()
        if isinstance(step, Step) and "transaction" in (work.plan or step.plan).named and self.run.journal.durable:
            return await self._in_transaction(step, work)
        return await self._timed(step, work)

    def _is_stopped_forward_work(self, step: Declared) -> bool:
        """Return whether this is forward work in a stopped run."""
        aside = self.state.aside
        return (aside is None or aside.undo is None) and not step.contains_steps

    async def _in_transaction(self, step: Step, work: AttemptInput) -> Attempt:
        """Run an attempt in a transaction; repeat after a loss (rule 4)."""
        while True:
            transaction = await self.run.journal.begin(step.name)
            ended = await self._through(transaction, step, work)
            if not isinstance(ended, TransactionLost):
                return ended
            work = self._again(work, ended)

    async def _through(self, transaction: OpenTransaction, step: Step, work: AttemptInput) -> Attempt | TransactionLost:
        """Run one attempt; keep its writes on success, else roll back."""
        try:
            ended = await self._timed(step, attrs.evolve(work, transaction=transaction))
            await note_swallowed_cancellation(self.run, self.state)
        except BaseException:
            await transaction.abandon()
            raise
        if isinstance(ended, AttemptSucceeded):
            work.state.transaction = transaction
            return ended
        return await _rolled_back(transaction, ended) or ended

    def _again(self, work: AttemptInput, lost: TransactionLost) -> AttemptInput:
        state = work.state
        state.lost += 1
        if state.lost > LOST_AT_MOST:
            raise lost
        text = self.run.redact(str(lost))
        state.attempts += 1
        self.run.emit(
            "step.retry", work.span, step_name=work.name, attempt=state.attempts - 1, delay_s=0.0, feedback=text
        )
        state.chunks, state.questions = [], 0
        return attrs.evolve(work, attempt=state.attempts)

    async def _timed(self, step: Declared, work: AttemptInput) -> Attempt:
        run = self.run
        run.emit("attempt.started", self.state.path, step_name=step.name, attempt=work.attempt)
        if step.timeout_s is None:
            ended = redacted_attempt(run, await self._prepare_and_run(step, work))
        else:
            ended = await self._in_time(step, work, functools.partial(self._prepare_and_run, step, work))
        if run.telemetry.enabled:
            emit_attempt_ended(run, self.state, ended, work.attempt)
        return ended

    async def _in_time(self, step: Declared, work: AttemptInput, do: Callable[[], Awaitable[Attempt]]) -> Attempt:
        """Run an attempt within the step's timeout (rule 2)."""
        with trio.move_on_after(math.inf if step.timeout_s is None else step.timeout_s) as scope:
            work.state.timeout = scope
            ended = await do()
            if trio.current_time() >= scope.deadline:  # code that blocks leaves trio no moment to see it pass
                scope.cancel()
        if scope.cancel_called:
            ended = self._timed_out(step, work, ignored=not scope.cancelled_caught)
            veto = await notify_late(self.run) if self.run.pending else None
            ended = ended if veto is None else vetoed(veto)
        return redacted_attempt(self.run, ended)

    async def _prepare_and_run(self, step: Declared, work: AttemptInput) -> Attempt:
        shown = step.shows_context or (work.plan is not None and work.plan.sees_context)
        own = await self._on_copy(work) if shown else work
        if isinstance(own, AttemptFailed):
            return own
        if isinstance(step, Step) and step.context_sources is not None:
            return await self._with_context(step, own)
        return await self._process_and_run(step, own)

    async def _with_context(self, step: Step, work: AttemptInput) -> Attempt:
        """Run the attempt of a step with context sources."""
        assembly = await calls.assembled_for(self.run, step, work)
        if isinstance(assembly, AttemptFailed):
            return assembly
        refused = within_limits(AttemptSucceeded(output=None, context=work.context), work)  # an embedder counts, too
        if isinstance(refused, AttemptFailed):
            return refused
        ended = await self._process_and_run(step, attrs.evolve(work, assembly=assembly))
        if isinstance(ended, AttemptStopped):
            return ended
        return attrs.evolve(ended, metadata={**ended.metadata, **calls.noted(assembly)})

    async def _process_and_run(self, step: Declared, work: AttemptInput) -> Attempt:
        if step.bare:
            return await self._of_its_kind(step, work)
        for plan in step.processors.before_plans:
            got = await call_planned(self.run, plan, work.data, work.context, work.assembly)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, plan=plan, subject=f"A processor of step {step.name!r}")
            work = attrs.evolve(work, data=got.value)
        if step.weighs:
            return await self._with_confidence(step, work)
        ended = await self._of_its_kind(step, work)
        if not isinstance(ended, AttemptSucceeded):
            return ended
        finished = await self._finish(step, ended, work.assembly)
        work.state.refused += isinstance(finished, AttemptFailed)
        return finished

    async def _with_confidence(self, step: Declared, work: AttemptInput) -> Attempt:
        """Run the attempt of a step with a confidence threshold."""
        finished = functools.partial(self._finished, step, work)
        ended: Attempt = await WRAPPERS["confidence"](self.spawner, step, work, finished)
        work.state.refused += isinstance(ended, AttemptFailed) and ended.refusal is not None
        return ended

    async def _finished(self, step: Declared, work: AttemptInput) -> Attempt:
        ended = await self._of_its_kind(step, work)
        return await self._finish(step, ended, work.assembly) if isinstance(ended, AttemptSucceeded) else ended

    async def resume(self, step: Declared, answer: object, context: object = None) -> Attempt:
        """Continue the paused attempt with the answer as its output.

        It uses a context copy and a timeout like any attempt, including changes made before the pause.
        """
        work = work_of(self.state, answer)
        work = work if context is None else attrs.evolve(work, context=context)
        return await self._in_time(step, work, functools.partial(self._finish_with_answer, step, work))

    async def validated(self, step: Declared, done: AttemptSucceeded) -> Attempt:
        """Return an answer after processors and validators."""
        if step.bare:
            return done
        work = attrs.evolve(work_of(self.state, done.output), context=done.context)
        own = await self._on_copy(work) if step.shows_context else work
        return (
            own if isinstance(own, AttemptFailed) else await self._finish(step, attrs.evolve(done, context=own.context))
        )

    async def updated_by(self, step: Declared, done: AttemptSucceeded) -> Attempt:
        """Return a stored output after the context update."""
        if not step.updates_context:
            return done
        copied = await guarded(_isolated, done.context)
        changed = copied if isinstance(copied, Error) else await guarded(_updated, copied.value, done.output, step.name)
        if isinstance(changed, Error):
            return self._not_updated(step, changed.error, done.output)
        return attrs.evolve(done, context=changed.value)

    async def _finish_with_answer(self, step: Declared, work: AttemptInput) -> Attempt:
        own = await self._on_copy(work) if step.shows_context else work
        return (
            own
            if isinstance(own, AttemptFailed)
            else await self._finish(step, AttemptSucceeded(output=own.data, context=own.context))
        )

    async def _on_copy(self, work: AttemptInput) -> AttemptInput | AttemptFailed:
        """Return the same work on a copy of the context (rule 1)."""
        copied = await guarded(_isolated, work.context)
        if isinstance(copied, Error):
            return failure_of(self.run, copied.error, subject="Copying the context")
        return attrs.evolve(work, context=copied.value)

    async def _of_its_kind(self, step: Declared, work: AttemptInput) -> Attempt:
        if isinstance(step, Step):
            return await call_agent(self.run, step, work)
        if work.plan is not None:  # a validator redirected a step without an agent
            return await call_agent(self.run, Step(step.name, work.plan.target), work)
        ended: Attempt = await KINDS[step.kind](self.spawner, step, work)
        return ended

    async def _finish(self, step: Declared, done: AttemptSucceeded, assembly: AssembledInput | None = None) -> Attempt:
        """Processors, validators and the context update on an output."""
        output, context = done.output, done.context
        for plan in step.processors.after_plans:
            got = await call_planned(self.run, plan, output, context, assembly)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, plan=plan, subject=f"A processor of step {step.name!r}")
            output = got.value
        refused = refused_output(step.name, output) if step.processors.after_plans else None
        if refused is not None:
            return refused
        for check, plan in zip(step.validators, step.checks, strict=True):
            got = await call_planned(self.run, plan, output, context, assembly)
            got = got if isinstance(got, Error) else await call(self.run, _objection, check, got.value)
            reason = error_text(self.run, got.error, plan) if isinstance(got, Error) else got.value
            if isinstance(reason, Redirect):
                text = self.run.redact(reason.feedback)
                return AttemptFailed(error=None, feedback=text, refusal=text, output=output, redirect=reason.to)
            if reason is not None:
                error = got.error if isinstance(got, Error) else None
                text = self.run.redact(f"Validation failed: {reason}")
                return AttemptFailed(error=error, feedback=text, refusal=text, output=output)
        if step.updates_context:
            changed = await guarded(_updated, context, output, step.name)
            if isinstance(changed, Error):
                return self._not_updated(step, changed.error, output)
            context = changed.value
        if isinstance(step, Step) and step.remembers and assembly is not None:
            remembered = await guarded(_remembered, step, context, self.state)
            if isinstance(remembered, Error):
                return self._not_updated(step, remembered.error, output)
            context = remembered.value
        return attrs.evolve(done, output=output, context=context)

    def _not_updated(self, step: Declared, error: BaseException, output: object) -> AttemptFailed:
        if isinstance(error, ContextError):
            return AttemptFailed(error=error, feedback=str(error), output=output)
        failed = failure_of(self.run, error, subject=f"Updating the context with the output of step {step.name!r}")
        return attrs.evolve(failed, output=output)

    def _timed_out(self, step: Declared, work: AttemptInput, *, ignored: bool) -> AttemptFailed:
        text = f"attempt {work.attempt} of step {step.name!r} took longer than timeout_s={step.timeout_s:g}"
        if ignored:
            text += "; it did not stop when it was cancelled"
            report_unstoppable(self.run, work.name, work.span)
        error = StepTimeout(text)
        partial = joined(work.state.chunks) if work.state.chunks else None
        return AttemptFailed(error=error, feedback=failure_of(self.run, error).feedback, output=partial)


async def _isolated(context: object) -> object:
    return isolated(context)


async def _rolled_back(transaction: OpenTransaction, ended: AttemptFailed | AttemptStopped) -> TransactionLost | None:
    """Roll back an attempt without output; return the store's loss."""
    if isinstance(ended, AttemptFailed) and isinstance(ended.error, StepTimeout):
        await transaction.abandon()
        return None
    lost = await transaction.rollback(ended.error if isinstance(ended, AttemptFailed) else None)
    return lost if isinstance(ended, AttemptFailed) and escalating(ended.error) is None else None


async def _remembered(step: Step, context: object, state: StepState) -> object:
    return calls.remembered(step, context, state.new_messages)


async def _updated(context: object, output: object, step_name: str) -> object:
    return updated(context, output, step_name=step_name)


def _objection(validator: Any, verdict: object) -> str | Redirect | None:
    """Return a validator's refusal or redirect; `None` if it accepts."""
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Redirect) or (isinstance(verdict, str) and verdict):
        return verdict
    refused = f"validator {name_of(validator)!r} returned {verdict!r:.100}"
    return refused if verdict is False else f"{refused}, which is no verdict: return True, False or a reason as text"
