"""The step actor: one step from request to report.

Rules:

1. A step that settled in an earlier part of the run is not done again: its record is its report.
2. A span is opened in the ledger before anything else happens, and settled before anybody is told.
3. An outcome is written to the journal before it is told to hooks, watchers and the parent.
4. Attempts follow one another by the pure decisions of `core.attempts`; the actor only carries them out.
5. A step whose cancellation was requested never settles as a success, whatever its code returned.
"""

from __future__ import annotations

import logging
from typing import Any, assert_never

import attrs
import trio
from outcome import Error

from ..bridge.guard import guarded, holds_vanished
from ..context.isolation import isolated, updated
from ..core import paths
from ..core.attempts import (
    Accept,
    Attempt,
    Done,
    Escalate,
    Failed,
    HandOver,
    Restart,
    Stopped,
    UseFallback,
    decide,
    escalating,
)
from ..core.events import (
    AttemptEnded,
    AttemptStarted,
    RunPaused,
    StepEnded,
    StepFallback,
    StepRetry,
    StepStarted,
    StepUnstoppable,
)
from ..core.outcomes import Aborted, Failure, Paused, StepResult, Success, TerminalOutcome
from ..core.payloads import PreStep
from ..core.quota import QUOTA_LOCK, Quota
from ..core.tokens import approval_hash, make_token
from ..core.usage import NO_USAGE, Usage
from ..core.wire import message_of
from ..dsl.callplan import CallPlan, plan_agent
from ..dsl.declared import Declared
from ..dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel
from ..dsl.pipeline import Pipeline
from ..dsl.redirect import Redirect
from ..dsl.step import Step
from ..errors import ContextError, InfiniteRedirectError, NotSerializable, StepTimeout
from .agent_call import call_agent, joined, leaked_mock
from .children import Children
from .composites import Work, branch_on, loop_until, map_over, parallel, sequence, vetoed
from .journal import Pause, Recorded
from .messages import Request, Settled, Tally
from .run import Run
from .telling import tell, tell_late, tell_later
from .usercode import ask_planned, failure_of, given, with_context_copy

logger = logging.getLogger("flujo_actors")


@attrs.frozen(eq=False)
class StepActors:
    """Performs the steps of one run."""

    run: Run

    def children(self, tally: Tally) -> Children:
        """A nursery for the actors of one composite, which counts in `tally`."""
        return Children(self, tally)

    async def perform(self, request: Request) -> Settled:
        """Do the step and say how it ended; see the module's rules."""
        run = self.run
        recorded = run.journal.recall(request.path)
        if recorded is not None:
            _charge(request.quotas, _usage(recorded.outcome))
            context = request.context if recorded.same_context else recorded.context
            return Settled(index=request.index, outcome=recorded.outcome, context=context)
        request = self._with_own_limits(request)
        run.ledger.start(request.path, request.parent)
        run.journal.started(request.path, request.name)
        run.emit(StepStarted, request.path, step_name=request.name, input=request.data)
        if run.hooks:
            refused = await run.hooks.tell(_pre_step(run, request))
            if refused is not None:
                return await self._settle(request, refused, request.context)
        outcome, context = await self._outcome(request)
        return await self._settle(request, outcome, context)

    def _with_own_limits(self, request: Request) -> Request:
        limits = None if isinstance(request.step, Pipeline) else request.step.usage_limits
        if limits is None:
            return request
        quota = self.run.quota(limits, owner=f"step {request.name!r}")
        return attrs.evolve(request, quotas=(*request.quotas, quota))

    def abandon(self, request: Request) -> Settled:
        """Settle a step that was cut short."""
        if request.tally.settled is not None:
            return request.tally.settled
        outcome = Aborted(reason=f"step {request.name!r} was cancelled")
        if request.path in self.run.ledger:
            self.run.ledger.settle(request.path)
            self._emit_ended(request, outcome)
            tell_later(self.run, request, outcome)
        return Settled(
            index=request.index,
            outcome=outcome,
            context=request.context,
            cut_short=True,
            unfinished=_unfinished(request, outcome),
        )

    # --- from attempts to an outcome ---

    async def _outcome(self, request: Request) -> tuple[TerminalOutcome, Any]:
        tally, begun = request.tally, trio.current_time()
        if isinstance(request.step, Pipeline):
            tally.attempts = 1
            ended = await sequence(self, request.step, _work(request, tally, request.data))
        else:
            ended = await self._attempts(request, request.step, tally)
        return await self._conclude(request, ended, tally, trio.current_time() - begun)

    async def _attempts(self, request: Request, step: Declared, tally: Tally) -> Attempt:
        continued = await self._after_pause(request, step)
        if continued is not None:
            return continued
        data = request.data
        if step.input is not None:
            resolved = await given(self.run, step.input, data, request.context)
            if isinstance(resolved, Error):
                return failure_of(self.run, resolved.error, what=f"The input of step {step.name!r}")
            data = resolved.value
        feedback: str | None = None
        turns = Turns(step)
        earlier = self._failed_earlier(request)
        while True:
            ended = earlier or await self._next_attempt(request, step, data, feedback, turns.plan)
            decision = decide(
                ended,
                failures=tally.attempts - turns.redirects,
                max_retries=step.max_retries,
                backoff=step.backoff,
                has_fallback=step.fallback is not None,
                lost=isinstance(ended, Failed) and holds_vanished(ended.error),
                rng=self.run.rng,
            )
            if isinstance(decision, Accept | Escalate):
                return ended
            assert isinstance(ended, Failed)
            if earlier is None and ended.redirect is None:  # to which agent it goes cannot be written down
                await self._remember_failed(request, ended)
            earlier, feedback = None, ended.feedback
            match decision:
                case Restart(after=seconds):
                    self._emit_retry(request, tally.attempts, seconds, feedback)
                    await trio.sleep(seconds)
                case HandOver(to=agent):
                    circle = turns.hand_over(agent)
                    if circle is not None:
                        return Failed(error=circle, feedback=str(circle), output=ended.output)
                case UseFallback():
                    return await self._fall_back(request, step, ended, tally, data)
                case _:
                    assert_never(decision)

    async def _after_pause(self, request: Request, step: Declared) -> Attempt | None:
        """How a step that paused in an earlier part of the run goes on: with its answer, or waiting."""
        answered = self.run.journal.answered(request.path)
        pause = self.run.journal.waiting(request.path) if answered is None else answered.pause
        if pause is None:
            return None
        request.tally.attempts, request.tally.usage = pause.attempts, pause.usage
        _charge(request.quotas, pause.usage)
        if answered is None:
            return Stopped(outcome=pause.paused)
        if answered.refused is not None:
            return failure_of(self.run, answered.refused, what=f"The answer to step {step.name!r}")
        return await self._finish(step, Done(output=answered.answer, context=request.context))

    async def _next_attempt(
        self, request: Request, step: Declared, data: Any, feedback: str | None, plan: CallPlan | None
    ) -> Attempt:
        request.tally.attempts += 1
        ended = await self._attempt(request, step, _work(request, request.tally, data, feedback, plan))
        await self._note_swallowed_cancellation(request)
        return ended

    async def _remember_failed(self, request: Request, failed: Failed) -> None:
        """Write down the attempts so far: whatever the step does next may outlive this part of the run."""
        noted = {"refused": request.tally.refused}
        result = _result(
            request, request.tally, 0.0, output=None, metadata=noted, success=False, feedback=failed.feedback
        )
        failure = Failure(error=failed.error, feedback=failed.feedback, step_result=result)
        record = Recorded(outcome=failure, context=request.context, same_context=True)
        await self.run.journal.settled(paths.tried(request.path), record)

    def _failed_earlier(self, request: Request) -> Failed | None:
        """The last of the attempts that an earlier part of the run made, all of them counted."""
        tried = self.run.journal.recall(paths.tried(request.path))
        if tried is None or not isinstance(tried.outcome, Failure) or tried.outcome.step_result is None:
            return None
        failure, result = tried.outcome, tried.outcome.step_result
        tally = request.tally
        tally.attempts, tally.usage, tally.history = result.attempts, result.usage, list(result.step_history)
        tally.refused = result.metadata.get("refused", 0)
        _charge(request.quotas, tally.usage)
        return Failed(error=failure.error, feedback=failure.feedback or "")

    async def _attempt(self, request: Request, step: Declared, work: Work) -> Attempt:
        work.tally.pieces, work.tally.questions = [], 0
        if isinstance(step, Step) and "transaction" in (work.plan or step.plan).named and self.run.journal.durable:
            return await self._in_transaction(request, step, work)
        return await self._timed_attempt(request, step, work)

    async def _in_transaction(self, request: Request, step: Step, work: Work) -> Attempt:
        """An attempt that writes through the store: kept for the outcome if it succeeds, undone if not."""
        transaction = await self.run.journal.begin(step.name)
        done = False
        try:
            ended = await self._timed_attempt(request, step, attrs.evolve(work, transaction=transaction))
            await self._note_swallowed_cancellation(request)
            done = isinstance(ended, Done)
        finally:
            if done:
                work.tally.transaction = transaction
            else:
                await transaction.rollback()
        return ended

    async def _timed_attempt(self, request: Request, step: Declared, work: Work) -> Attempt:
        run = self.run
        run.emit(AttemptStarted, request.path, step_name=step.name, attempt=work.attempt)
        if step.timeout_s is None:
            ended = await self._work(step, work)
        else:
            with trio.move_on_after(step.timeout_s) as scope:
                ended = await self._work(step, work)
            if scope.cancel_called:
                ended = self._timed_out(step, work, ignored=not scope.cancelled_caught)
                veto = await tell_late(run) if run.untold else None
                ended = ended if veto is None else vetoed(veto)
        if run.telemetry.enabled:
            status, text = _status(ended)
            run.emit(
                AttemptEnded,
                request.path,
                step_name=step.name,
                attempt=work.attempt,
                status=status,
                feedback=text,
            )
        return ended

    async def _work(self, step: Declared, work: Work) -> Attempt:
        if step.shows_context:
            copied = await guarded(_isolated, work.context)
            if isinstance(copied, Error):
                return failure_of(self.run, copied.error, what="Copying the context")
            work = attrs.evolve(work, context=copied.value)
        if step.bare:
            return await self._of_its_kind(step, work)
        for plan in step.processors.before_plans:
            got = await ask_planned(self.run, plan, work.data, work.context)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, what=f"A processor of step {step.name!r}")
            work = attrs.evolve(work, data=got.value)
        ended = await self._of_its_kind(step, work)
        if not isinstance(ended, Done):
            return ended
        finished = await self._finish(step, ended)
        work.tally.refused += isinstance(finished, Failed)
        return finished

    async def _of_its_kind(self, step: Declared, work: Work) -> Attempt:
        match step:
            case Step():
                return await call_agent(self.run, step, work)
            case Parallel():
                return await parallel(self, step, work)
            case MapOver():
                return await map_over(self, step, work)
            case BranchOn():
                return await branch_on(self, step, work)
            case LoopUntil():
                return await loop_until(self, step, work)
            case HumanInTheLoop():
                return await self._ask_a_person(step, work)
            case _:
                raise TypeError(f"the runtime does not know steps of type {type(step).__name__}")

    async def _ask_a_person(self, step: HumanInTheLoop, work: Work) -> Attempt:
        if isinstance(step.message, str):
            return Stopped(outcome=Paused(message=step.message))
        asked = await with_context_copy(self.run, step.message, work.data, work.context)
        if isinstance(asked, Error):
            return failure_of(self.run, asked.error, what=f"The message of step {step.name!r}")
        return Stopped(outcome=Paused(message=str(asked.value)))

    async def _finish(self, step: Declared, done: Done) -> Attempt:
        """Processors, validators and the context update on an output."""
        output, context = done.output, done.context
        for plan in step.processors.after_plans:
            got = await ask_planned(self.run, plan, output, context)
            if isinstance(got, Error):
                return failure_of(self.run, got.error, what=f"A processor of step {step.name!r}")
            output = got.value
        leaked = leaked_mock(step.name, output) if step.processors.after_plans else None
        if leaked is not None:
            return leaked
        for plan in step.checks:
            got = await ask_planned(self.run, plan, output, context)
            reason = _objection(got)
            if isinstance(reason, Redirect):
                text = self.run.redact(reason.feedback)
                return Failed(error=None, feedback=text, output=output, redirect=reason.to)
            if reason is not None:
                error = got.error if isinstance(got, Error) else None
                return Failed(error=error, feedback=self.run.redact(f"Validation failed: {reason}"), output=output)
        if step.updates_context:
            try:
                context = updated(context, output, step_name=step.name)
            except ContextError as error:
                return Failed(error=error, feedback=str(error), output=output)
        return attrs.evolve(done, output=output, context=context)

    def _timed_out(self, step: Declared, work: Work, *, ignored: bool) -> Failed:
        text = f"attempt {work.attempt} of step {step.name!r} took longer than timeout_s={step.timeout_s:g}"
        if ignored:
            text += "; it did not stop when it was cancelled"
            self._report_unstoppable(work.name, work.span)
        error = StepTimeout(text)
        partial = joined(work.tally.pieces) if work.tally.pieces else None
        return Failed(error=error, feedback=failure_of(self.run, error).feedback, output=partial)

    # --- the fallback ---

    async def _fall_back(self, request: Request, step: Declared, failed: Failed, tally: Tally, data: Any) -> Attempt:
        assert step.fallback is not None
        name = step.fallback.name or f"{step.name} (fallback)"
        self.run.emit(StepFallback, request.path, step_name=step.name, feedback=failed.feedback, fallback_name=name)
        async with self.children(tally) as children:
            children.spawn(
                Request(
                    step=step.fallback,
                    name=name,
                    path=paths.fallback(request.path),
                    parent=request.path,
                    data=data,
                    context=request.context,
                    quotas=request.quotas,
                )
            )
            settled = await children.settled()
        _take_over(tally, settled.result)
        match settled.verdict:
            case Success(step_result=result):
                noted = {**result.metadata, "fallback_triggered": True, "original_error": failed.feedback}
                return Done(output=result.output, context=settled.context, metadata=noted)
            case Failure(error=error, feedback=feedback):
                noted = {"fallback_triggered": True, "original_error": failed.feedback}
                text = f"{failed.feedback}; then fallback {name!r} failed: {feedback}"
                control = escalating(error)
                return Failed(error=control or failed.error, feedback=text, output=failed.output, metadata=noted)
            case Paused() | Aborted() as outcome:
                return Stopped(outcome=outcome)

    # --- settling ---

    async def _conclude(
        self, request: Request, ended: Attempt, tally: Tally, latency_s: float
    ) -> tuple[TerminalOutcome, Any]:
        match ended:
            case Done(output=output, context=context, metadata=metadata):
                result = _result(request, tally, latency_s, output=output, metadata=metadata)
                return Success(step_result=result), context
            case Failed(error=error, feedback=feedback, output=output, metadata=metadata):
                result = _result(
                    request,
                    tally,
                    latency_s,
                    output=output,
                    metadata=metadata,
                    success=False,
                    feedback=feedback,
                )
                return Failure(error=error, feedback=feedback, step_result=result), request.context
            case Stopped(outcome=Paused() as paused, place=place):
                return await self._pause(request, paused, tally, place or request.path), request.context
            case Stopped(outcome=aborted):
                return aborted, request.context
            case _:
                assert_never(ended)

    async def _pause(self, request: Request, paused: Paused, tally: Tally, place: paths.StepPath) -> Paused:
        """The step that pauses gets a token; those around it hand it on."""
        if paused.state_token is not None:
            return paused
        asked = approval_hash(paused.message, request.data)
        paused = Paused(message=paused.message, state_token=make_token(self.run.run_id, place, asked=asked))
        schema = request.step.input_schema if isinstance(request.step, HumanInTheLoop) else None
        self.run.emit(RunPaused, request.path, step_name=request.name, message=paused.message)
        await self.run.journal.paused(
            Pause(
                path=place,
                step_name=request.name,
                paused=paused,
                input_schema=schema,
                attempts=tally.attempts,
                usage=tally.usage,
            )
        )
        return paused

    async def _settle(self, request: Request, outcome: TerminalOutcome, context: Any) -> Settled:
        run = self.run
        run.ledger.settle(request.path)
        if isinstance(outcome, Success | Failure) and not _escalates(outcome):
            outcome, context = await self._remember(request, outcome, context)
        if run.telemetry.enabled:
            self._emit_ended(request, outcome)
        settled = Settled(
            index=request.index, outcome=outcome, context=context, unfinished=_unfinished(request, outcome)
        )
        if run.outlet is None and not run.hooks:
            return settled
        request.tally.settled = settled
        overruled = await tell(run, request, outcome)
        return settled if overruled is None else attrs.evolve(settled, overruled=overruled)

    async def _remember(self, request: Request, outcome: Success | Failure, context: Any) -> tuple[Any, Any]:
        same = context is request.context
        record = Recorded(outcome=outcome, context=context, same_context=same)
        try:
            kept = await self._written(request, record)
        except NotSerializable as error:
            if request.tally.transaction is not None:
                await request.tally.transaction.rollback()
            failed = self._cannot_be_stored(request, error)
            kept = await self.run.journal.settled(
                request.path, Recorded(outcome=failed, context=request.context, same_context=True)
            )
        return kept.outcome, request.context if kept.same_context else kept.context

    async def _written(self, request: Request, record: Recorded) -> Recorded:
        """Write down how the step ended, in its own transaction if it has one."""
        if request.tally.transaction is None:
            return await self.run.journal.settled(request.path, record)
        await request.tally.transaction.commit(request.path, record)
        return record

    def _cannot_be_stored(self, request: Request, error: NotSerializable) -> Failure:
        text = self.run.redact(f"The step succeeded, but what it left cannot be stored: {message_of(error)}")
        failed = Failed(error=error, feedback=text)
        result = _result(request, request.tally, 0.0, output=None, metadata={}, success=False, feedback=text)
        return Failure(error=failed.error, feedback=text, step_result=result)

    # --- reporting ---

    async def _note_swallowed_cancellation(self, request: Request) -> None:
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._report_unstoppable(request.name, request.path)
            raise

    def _report_unstoppable(self, name: str, path: paths.StepPath) -> None:
        text = "it ended only after its cancellation was requested; what it returned is not used"
        logger.info("step %r of run %s: %s", name, self.run.run_id, text)
        self.run.emit(StepUnstoppable, path, step_name=name, feedback=text)

    def _emit_retry(self, request: Request, attempt: int, seconds: float, feedback: str) -> None:
        self.run.emit(
            StepRetry,
            request.path,
            step_name=request.name,
            attempt=attempt,
            delay_s=seconds,
            feedback=feedback,
        )

    def _emit_ended(self, request: Request, outcome: TerminalOutcome) -> None:
        facts: dict[str, Any]
        match outcome:
            case Success(step_result=result):
                facts = {"status": "success", "usage": result.usage, "output": result.output}
            case Failure(feedback=feedback, step_result=partial):
                facts = {"status": "failure", "feedback": feedback}
                if partial is not None:
                    facts["usage"] = partial.usage
            case Paused():
                facts = {"status": "paused"}
            case Aborted(reason=reason):
                facts = {"status": "aborted", "feedback": reason}
            case _:
                assert_never(outcome)
        self.run.emit(StepEnded, request.path, step_name=request.name, attempts=request.tally.attempts, **facts)


def _pre_step(run: Run, request: Request) -> PreStep:
    return PreStep(
        run_id=run.run_id,
        step_name=request.name,
        path=request.path,
        input=request.data,
        context=request.context,
    )


def _work(request: Request, tally: Tally, data: Any, feedback: str | None = None, plan: CallPlan | None = None) -> Work:
    return Work(
        name=request.name,
        span=request.path,
        path=paths.attempt(request.path, tally.attempts),
        data=data,
        context=request.context,
        tally=tally,
        attempt=tally.attempts,
        feedback=feedback,
        quotas=request.quotas,
        plan=plan,
        for_object=request.for_object,
    )


async def _isolated(context: Any) -> Any:
    return isolated(context)


def _objection(got: Any) -> str | Redirect | None:
    """Why a validator refuses, or where it sends the work; `None` if it is content."""
    if isinstance(got, Error):
        return f"{type(got.error).__name__}: {message_of(got.error)}"
    verdict = got.value
    if verdict is None or verdict is True:
        return None
    return verdict if isinstance(verdict, str | Redirect) else "the validator returned False"


class Turns:
    """Which agents of one step have had their turn."""

    def __init__(self, step: Declared) -> None:
        self._step = step
        self._had = [step.agent] if isinstance(step, Step) else []
        self.plan: CallPlan | None = None
        self.redirects = 0

    def hand_over(self, agent: Any) -> InfiniteRedirectError | None:
        """Give the next turn to `agent`, unless it had one."""
        if any(agent is earlier for earlier in self._had):
            return InfiniteRedirectError(
                f"step {self._step.name!r} was redirected to an agent that had its turn, after {self.redirects + 1} "
                "redirects; let the validator accept, or refuse without a redirect"
            )
        self._had.append(agent)
        self.redirects += 1
        self.plan = plan_agent(agent, step_name=self._step.name)
        return None


def _unfinished(request: Request, outcome: TerminalOutcome) -> StepResult | None:
    if isinstance(outcome, Success | Failure) or request.tally.usage is NO_USAGE:
        return None
    text = outcome.message if isinstance(outcome, Paused) else outcome.reason
    return _result(request, request.tally, 0.0, output=None, metadata={}, success=False, feedback=text)


def _usage(outcome: TerminalOutcome) -> Usage:
    result = outcome.step_result if isinstance(outcome, Success | Failure) else None
    return NO_USAGE if result is None else result.usage


def _charge(quotas: tuple[Quota, ...], usage: Usage) -> None:
    """Count what an earlier part of the run has used."""
    with QUOTA_LOCK:
        for quota in quotas:
            quota.spend(usage)


def _take_over(tally: Tally, result: StepResult | None) -> None:
    if result is not None:
        tally.attempts += result.attempts
        tally.include(result)


def _escalates(outcome: Success | Failure) -> bool:
    return isinstance(outcome, Failure) and escalating(outcome.error) is not None


def _status(ended: Attempt) -> tuple[str, str | None]:
    match ended:
        case Done():
            return "success", None
        case Failed(feedback=feedback):
            return "failure", feedback
        case Stopped(outcome=outcome):
            return ("paused", outcome.message) if isinstance(outcome, Paused) else ("aborted", outcome.reason)
        case _:
            assert_never(ended)


def _result(
    request: Request,
    tally: Tally,
    latency_s: float,
    *,
    output: Any,
    metadata: Any,
    success: bool = True,
    feedback: str | None = None,
) -> StepResult:
    return StepResult(
        name=request.name,
        output=output,
        success=success,
        attempts=tally.attempts,
        latency_s=latency_s,
        token_counts=tally.usage.tokens,
        cost_usd=tally.usage.cost_usd,
        feedback=feedback,
        metadata=dict(metadata),
        step_history=tally.history,
        usage=tally.usage,
    )
