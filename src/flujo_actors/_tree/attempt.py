"""One attempt of a step: its context copy, its processors, its work, its validators.

Rules:

1. User code works on a copy of the context, which lives as long as the attempt.
2. The clock of `timeout_s` runs from the first processor to the last validator; an attempt past it is a failure, also
   if its code let the cancellation pass and returned something.
3. What a step writes through a transaction is undone unless the attempt ends in an output.
4. An attempt whose transaction the store lost (a connection, a lock) has written nothing: it is made again, which
   counts against no retries; lost too often, it is an error of the store, and the run can be resumed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio
from outcome import Error

from .._bridge.guard import guarded
from .._calls.agent import call_agent, joined
from .._calls.refused_outputs import refused_output
from .._context.isolation import isolated
from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.outcomes import Aborted
from .._dsl.call_plan import name_of
from .._dsl.declared import Declared
from .._dsl.redirect import Redirect
from .._dsl.step import Step
from .._durable.journal import OpenTransaction
from .._run.limits import within_limits
from .._run.messages import Assembly, Request, Work, work_of
from .._run.notify import tell_late
from .._run.reports import emit_attempt_ended, told
from .._run.run import Run, note_swallowed_cancellation, report_unstoppable
from .._run.user_calls import ask, ask_planned, failure_of, told_of
from ..errors import ContextError, StepTimeout, TransactionLost
from .children import Spawner, vetoed

LOST_AT_MOST = 3
"""How often a step is done again because the store lost its transaction."""


@attrs.frozen(eq=False)
class OneAttempt:
    """How a step makes an attempt; see the module's rules."""

    spawner: Spawner
    request: Request

    @property
    def run(self) -> Run:
        """The run the step belongs to."""
        return self.spawner.run

    async def attempt(self, step: Declared, work: Work) -> Attempt:
        """One attempt, with a time limit and a transaction if the step asks for them."""
        work.tally.pieces, work.tally.questions = [], 0
        if self.run.closing is not None and self._goes_no_further(step):
            return Stopped(outcome=Aborted(reason=self.run.closing))
        if isinstance(step, Step) and "transaction" in (work.plan or step.plan).named and self.run.journal.durable:
            return await self._in_transaction(step, work)
        return await self._timed(step, work)

    def _goes_no_further(self, step: Declared) -> bool:
        """Whether this would be forward work: what undoes is done, and what contains steps is looked into."""
        aside = self.request.aside
        return (aside is None or aside.undo is None) and not step.contains_steps

    async def _in_transaction(self, step: Step, work: Work) -> Attempt:
        """An attempt that writes through the store, made again if the store loses what it wrote (rule 4)."""
        while True:
            transaction = await self.run.journal.begin(step.name)
            ended = await self._through(transaction, step, work)
            if not isinstance(ended, TransactionLost):
                return ended
            work = self._again(work, ended)

    async def _through(self, transaction: OpenTransaction, step: Step, work: Work) -> Attempt | TransactionLost:
        """One attempt: what it wrote is kept for the outcome if it succeeds, undone if not."""
        try:
            ended = await self._timed(step, attrs.evolve(work, transaction=transaction))
            await note_swallowed_cancellation(self.run, self.request)
        except BaseException:
            await transaction.abandon()
            raise
        if isinstance(ended, Done):
            work.tally.transaction = transaction
            return ended
        return await _undone(transaction, ended) or ended

    def _again(self, work: Work, lost: TransactionLost) -> Work:
        tally = work.tally
        tally.lost += 1
        if tally.lost > LOST_AT_MOST:
            raise lost
        text = self.run.redact(str(lost))
        tally.attempts += 1
        self.run.emit(
            "step.retry", work.span, step_name=work.name, attempt=tally.attempts - 1, delay_s=0.0, feedback=text
        )
        tally.pieces, tally.questions = [], 0
        return attrs.evolve(work, attempt=tally.attempts)

    async def _timed(self, step: Declared, work: Work) -> Attempt:
        run = self.run
        run.emit("attempt.started", self.request.path, step_name=step.name, attempt=work.attempt)
        if step.timeout_s is None:
            ended = told(run, await self._work(step, work))
        else:
            ended = await self._in_time(step, work, functools.partial(self._work, step, work))
        if run.telemetry.enabled:
            emit_attempt_ended(run, self.request, ended, work.attempt)
        return ended

    async def _in_time(self, step: Declared, work: Work, do: Callable[[], Awaitable[Attempt]]) -> Attempt:
        """What an attempt comes to within the step's time limit (rule 2)."""
        with trio.move_on_after(math.inf if step.timeout_s is None else step.timeout_s) as scope:
            ended = await do()
            if trio.current_time() >= scope.deadline:  # code that blocks leaves trio no moment to see it pass
                scope.cancel()
        if scope.cancel_called:
            ended = self._timed_out(step, work, ignored=not scope.cancelled_caught)
            veto = await tell_late(self.run) if self.run.untold else None
            ended = ended if veto is None else vetoed(veto)
        return told(self.run, ended)

    async def _work(self, step: Declared, work: Work) -> Attempt:
        shown = step.shows_context or (work.plan is not None and work.plan.sees_context)
        own = await self._on_copy(work) if shown else work
        if isinstance(own, Failed):
            return own
        if isinstance(step, Step) and step.context_sources is not None:
            return await self._with_context(step, own)
        return await self._worked(step, own)

    async def _with_context(self, step: Step, work: Work) -> Attempt:
        """The attempt of a step whose agent is shown a context."""
        from .._calls.assembling import assembled_for, noted  # only for steps that have sources

        assembly = await assembled_for(self.run, step, work)
        if isinstance(assembly, Failed):
            return assembly
        refused = within_limits(Done(output=None, context=work.context), work)  # an embedder counts, too
        if isinstance(refused, Failed):
            return refused
        ended = await self._worked(step, attrs.evolve(work, assembly=assembly))
        if isinstance(ended, Stopped):
            return ended
        return attrs.evolve(ended, metadata={**ended.metadata, **noted(assembly)})

    async def _worked(self, step: Declared, work: Work) -> Attempt:
        if step.bare:
            return await self._of_its_kind(step, work)
        for plan in step.processors.before_plans:
            got = await ask_planned(self.run, plan, work.data, work.context, work.assembly)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, plan=plan, what=f"A processor of step {step.name!r}")
            work = attrs.evolve(work, data=got.value)
        if step.weighs:
            return await self._weighed(step, work)
        ended = await self._of_its_kind(step, work)
        if not isinstance(ended, Done):
            return ended
        finished = await self._finish(step, ended, work.assembly)
        work.tally.refused += isinstance(finished, Failed)
        return finished

    async def _weighed(self, step: Declared, work: Work) -> Attempt:
        """The attempt of a step that is asked how sure it is."""
        from .._core.votes import Votes  # what only such steps need
        from .confidence import voted, weighed

        if isinstance(step.confidence, Votes):
            ended = await voted(self.spawner, step, work, step.confidence)
        else:
            ended = await self._of_its_kind(step, work)
            ended = await self._finish(step, ended, work.assembly) if isinstance(ended, Done) else ended
        if isinstance(ended, Done):
            ended = await weighed(self.spawner, step, work, ended)
        work.tally.refused += isinstance(ended, Failed) and ended.refusal is not None
        return ended

    async def go_on(self, step: Declared, answer: object, context: object = None) -> Attempt:
        """The attempt that paused, with the answer for its output: on a copy of the context, and in time, like any.

        What the attempt had written into its own copy before it asked is gone on with.
        """
        work = work_of(self.request, answer)
        work = work if context is None else attrs.evolve(work, context=context)
        return await self._in_time(step, work, functools.partial(self._finish_with_answer, step, work))

    async def judged(self, step: Declared, done: Done) -> Attempt:
        """What an answer came to, after processors and validators."""
        if step.bare:
            return done
        work = attrs.evolve(work_of(self.request, done.output), context=done.context)
        own = await self._on_copy(work) if step.shows_context else work
        return own if isinstance(own, Failed) else await self._finish(step, attrs.evolve(done, context=own.context))

    async def _finish_with_answer(self, step: Declared, work: Work) -> Attempt:
        own = await self._on_copy(work) if step.shows_context else work
        return own if isinstance(own, Failed) else await self._finish(step, Done(output=own.data, context=own.context))

    async def _on_copy(self, work: Work) -> Work | Failed:
        """The same work on a copy of the context (rule 1)."""
        copied = await guarded(_isolated, work.context)
        if isinstance(copied, Error):
            return failure_of(self.run, copied.error, what="Copying the context")
        return attrs.evolve(work, context=copied.value)

    async def _of_its_kind(self, step: Declared, work: Work) -> Attempt:
        if isinstance(step, Step):
            return await call_agent(self.run, step, work)
        if work.plan is not None:  # a validator handed over what a step without an agent came to
            return await call_agent(self.run, Step(step.name, work.plan.target), work)
        return await _of_kind()(self.spawner, step, work)

    async def _finish(self, step: Declared, done: Done, assembly: Assembly | None = None) -> Attempt:
        """Processors, validators and the context update on an output."""
        output, context = done.output, done.context
        for plan in step.processors.after_plans:
            got = await ask_planned(self.run, plan, output, context, assembly)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, plan=plan, what=f"A processor of step {step.name!r}")
            output = got.value
        refused = refused_output(step.name, output) if step.processors.after_plans else None
        if refused is not None:
            return refused
        for check, plan in zip(step.validators, step.checks, strict=True):
            got = await ask_planned(self.run, plan, output, context, assembly)
            got = got if isinstance(got, Error) else await ask(self.run, _objection, check, got.value)
            reason = told_of(self.run, got.error, plan) if isinstance(got, Error) else got.value
            if isinstance(reason, Redirect):
                text = self.run.redact(reason.feedback)
                return Failed(error=None, feedback=text, refusal=text, output=output, redirect=reason.to)
            if reason is not None:
                error = got.error if isinstance(got, Error) else None
                text = self.run.redact(f"Validation failed: {reason}")
                return Failed(error=error, feedback=text, refusal=text, output=output)
        if step.updates_context:
            changed = await guarded(_updated, context, output, step.name)
            if isinstance(changed, Error):
                return self._not_updated(step, changed.error, output)
            context = changed.value
        if isinstance(step, Step) and step.remembers and assembly is not None:
            remembered = await guarded(_remembered, step, context, assembly)
            if isinstance(remembered, Error):
                return self._not_updated(step, remembered.error, output)
            context = remembered.value
        return attrs.evolve(done, output=output, context=context)

    def _not_updated(self, step: Declared, error: BaseException, output: object) -> Failed:
        if isinstance(error, ContextError):
            return Failed(error=error, feedback=str(error), output=output)
        failed = failure_of(self.run, error, what=f"Updating the context with the output of step {step.name!r}")
        return attrs.evolve(failed, output=output)

    def _timed_out(self, step: Declared, work: Work, *, ignored: bool) -> Failed:
        text = f"attempt {work.attempt} of step {step.name!r} took longer than timeout_s={step.timeout_s:g}"
        if ignored:
            text += "; it did not stop when it was cancelled"
            report_unstoppable(self.run, work.name, work.span)
        error = StepTimeout(text)
        partial = joined(work.tally.pieces) if work.tally.pieces else None
        return Failed(error=error, feedback=failure_of(self.run, error).feedback, output=partial)


@functools.cache  # an import statement takes a microsecond every time
def _of_kind() -> Callable[[Spawner, Declared, Work], Awaitable[Attempt]]:
    from .composites import attempt_of_kind  # the classes of all other kinds, and how contexts are merged

    return attempt_of_kind


async def _isolated(context: object) -> object:
    return isolated(context)


async def _undone(transaction: OpenTransaction, ended: Failed | Stopped) -> TransactionLost | None:
    """Take back what an attempt without an output wrote; what is behind its failure, if the store lost it."""
    if isinstance(ended, Failed) and isinstance(ended.error, StepTimeout):
        await transaction.abandon()
        return None
    lost = await transaction.rollback(ended.error if isinstance(ended, Failed) else None)
    return lost if isinstance(ended, Failed) and escalating(ended.error) is None else None


async def _remembered(step: Step, context: object, assembly: Assembly) -> object:
    from .._calls.remembering import remembered  # loads pydantic-ai, as the step's agent did

    return remembered(step, context, assembly)


async def _updated(context: object, output: object, step_name: str) -> object:
    from .._context.merging import updated  # only for those who change the context

    return updated(context, output, step_name=step_name)


def _objection(validator: Any, verdict: object) -> str | Redirect | None:
    """Why a validator refuses, or where it sends the work; `None` if it is content."""
    if verdict is None or verdict is True:
        return None
    if isinstance(verdict, Redirect) or (isinstance(verdict, str) and verdict):
        return verdict
    refused = f"validator {name_of(validator)!r} returned {verdict!r:.100}"
    return refused if verdict is False else f"{refused}, which says nothing: return True, False or a reason as text"
