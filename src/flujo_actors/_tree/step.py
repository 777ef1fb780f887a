"""The step actor: one step from request to report.

Rules:

1. A step that settled in an earlier part of the run is not done again: its record is its report.
2. A span is opened in the ledger before anything else happens, and settled before anybody is told.
3. An outcome is written to the journal before it is told to hooks, watchers and the parent. Where nobody else is told
   and the parent settles at once, both are written together (`_dsl.closing`).
4. Attempts follow one another by the pure decisions of `_core.decisions`; the actor only carries them out.
5. A step whose cancellation was requested never settles as a success, whatever its code returned.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, assert_never

import attrs
import trio

from .._context.isolation import own
from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.error_info import message_of
from .._core.outcomes import Aborted, ErrorInfo, Failure, Paused, Success, TerminalOutcome
from .._core.paths import StepPath
from .._core.pause_tokens import approval_hash, make_token
from .._dsl.pipeline import Pipeline
from .._dsl.step import Step
from .._durable.journal import OpenTransaction, Pause, Recorded
from .._run.messages import Bill, Completed, Request, Settled, work_of
from .._run.notify import tell, tell_later, tell_start
from .._run.reports import charge, emit_step_ended, result_in, result_of, told, unfinished_result
from .._run.run import note_swallowed_cancellation
from ..errors import NotSerializable, TransactionRefused
from .children import Children, InTurn, sequence
from .short_way import ShortWay

if TYPE_CHECKING:
    from .._core.failures import Cause
    from .._core.questions import Question
    from .._core.selection import Evidence
    from .._core.undoing import ToUndo
    from .._run.hooks import Hooks
    from .retries import Attempts


NOTHING_CLOSES: frozenset[StepPath] = frozenset()


@attrs.frozen(eq=False)
class StepActors(ShortWay):
    """Performs the steps of one run."""

    closing: frozenset[StepPath] = NOTHING_CLOSES
    """The steps that may be written down together with what is around them."""
    _ended_in: dict[StepPath | None, int] = attrs.field(factory=dict, init=False)
    """How many branches of parallel steps have ended."""

    def children(self, bill: Bill) -> Children:
        """A nursery for the actors of one composite, which counts in `bill`."""
        return Children(self, bill)

    def in_turn(self, bill: Bill) -> InTurn:
        """The same for a composite that has one child at a time."""
        return InTurn(self, bill)

    def perform(self, request: Request) -> Coroutine[Any, Any, Settled]:
        """Do the step and say how it ended; see the module's rules."""
        if self.is_just_a_call(request):
            return self.just_call(request)
        if self.is_just_a_question(request) and _short_question().is_short(self.run, request):
            asked: Coroutine[Any, Any, Settled] = _short_question().just_ask(self, request)
            return asked
        return self._perform(request)

    def needs_no_task(self, request: Request) -> bool:
        """Whether there is nothing in or beside the step that would be performed in its task."""
        return isinstance(request.step, Step) and request.step.is_alone

    async def _perform(self, request: Request) -> Settled:
        run = self.run
        recorded = run.journal.recall(request.path) if run.resumed else None
        if recorded is not None:
            return self._recalled(request, recorded)
        request = self._with_own_limits(request)
        if request.degraded:
            from .degraded_data import as_asked  # loads pydantic, as whoever degraded the data did

            request = as_asked(request)
        run.ledger.start(request.path, request.parent)
        run.journal.started(request.path, request.name, request.of)
        run.emit("step.started", request.path, step_name=request.name, input=request.data)
        if run.tells_starts:
            await tell_start(run, request)
        if run.hooks:
            refused = await _told_before(run.hooks, request)
            if refused is not None:
                return await self.settle(request, refused, request.context)
        outcome, context = await self._outcome(request)
        return await self.settle(request, outcome, context)

    def _with_own_limits(self, request: Request) -> Request:
        limits = request.step.usage_limits
        if limits is None:
            return request
        quota = self.run.quota(limits, owner=f"step {request.name!r}", path=request.path, step_name=request.name)
        return request.changed(around=attrs.evolve(request.around, quotas=(*request.quotas, quota)))

    def abandon(self, request: Request) -> Settled:
        """Settle a step that was cut short."""
        if request.tally.settled is not None:
            return request.tally.settled
        outcome = Aborted(reason=f"step {request.name!r} was cancelled")
        if request.path in self.run.ledger:
            request.tally.attempts = request.tally.attempts or int(self.is_just_a_call(request))
            self.run.ledger.settle(request.path)
            emit_step_ended(self.run, request, outcome)
            tell_later(self.run, request, outcome)
        return Settled(
            index=request.index,
            outcome=outcome,
            context=request.context,
            cut_short=True,
            unfinished=unfinished_result(request, outcome),
            undo=_left(request, outcome, request.context, request.tally.attempts),
        )

    # --- the only attempt ---

    def is_just_a_question(self, request: Request) -> bool:
        """Whether the step is one question to a model agent, in a run that nobody listens to."""
        return self.run.quiet and isinstance(request.step, Step) and request.step.is_just_a_question

    async def _just_ask(self, request: Request) -> Attempt:
        """The only attempt of a step that is one question to a model agent: there is nothing to decide after it."""
        from .._calls.model import call_model_agent  # loads pydantic-ai, which only model agents need

        run, step = self.run, request.step
        assert isinstance(step, Step)
        request.tally.attempts = 1
        data = request.data if step.input is None else step.input
        ended = await call_model_agent(run, step, work_of(request, data), step.plan.target)
        await note_swallowed_cancellation(run, request)
        return ended

    # --- from attempts to an outcome ---

    async def _outcome(self, request: Request) -> tuple[TerminalOutcome, object]:
        begun = trio.current_time()
        if request.quotas:
            from .limited import limited  # what only runs with limits need

            ended = await limited(self.run, request, functools.partial(self._ended, request))
        else:
            ended = await self._ended(request)
        if request.step.on_failure and isinstance(ended, Failed):
            from .scopes import handled  # what only steps with handlers need

            ended = await handled(self, request, ended)
        return await self.concluded(request, ended, trio.current_time() - begun)

    async def play(self, request: Request) -> TerminalOutcome:
        """Do, for another process, what is to be done of its step: all but counting, telling and judging by hooks."""
        run = self.run
        run.ledger.start(request.path, request.parent)
        run.journal.started(request.path, request.name)
        begun = trio.current_time()
        ended = await self._ended(request)
        if request.quotas:
            from .limited import asking  # what only runs with limits need

            ended = asking(ended)
        outcome, context = await self.concluded(request, ended, trio.current_time() - begun)
        run.ledger.settle(request.path)
        if isinstance(outcome, (Success, Failure)) and not _escalates(outcome):
            undo = _left(request, outcome, context, request.tally.attempts)
            outcome, _, _ = await self.remember(request, outcome, context, undo)
        return outcome

    async def _ended(self, request: Request) -> Attempt:
        office = self.run.office
        if office is not None and office.takes(request):
            return await office.attempt(self.run, request)
        if isinstance(request.step, Pipeline):
            request.tally.attempts = 1
            return await self._of_pipeline(request, request.step)
        if self.is_just_a_question(request):
            return await self._just_ask(request)
        return await _attempts()(self, request, request.step).ended()

    def _of_pipeline(self, request: Request, pipeline: Pipeline) -> Awaitable[Attempt]:
        if not self.run.minds_failures:
            return sequence(self, pipeline, work_of(request, request.data))
        from .scopes import pipeline_ended  # what only runs with handlers or compensations need

        return pipeline_ended(self, pipeline, request)

    async def concluded(self, request: Request, ended: Attempt, latency_s: float) -> tuple[TerminalOutcome, object]:
        match told(self.run, ended):
            case Done(output=output, context=context, metadata=metadata):
                result = result_of(request, output=output, latency_s=latency_s, metadata=metadata)
                return Success(step_result=result), context
            case Failed(error=error, feedback=text, output=output, metadata=metadata, of_child=of_child) as failed:
                result = result_of(
                    request, output=output, latency_s=latency_s, metadata=metadata, success=False, feedback=text
                )
                if not of_child:
                    self._report(request, error, text)
                context = request.context if failed.context is None else failed.context
                return Failure(error=error, feedback=text, step_result=result), context
            case Stopped(outcome=Paused() as paused, place=place, question=question, context=context):
                return await self._paused(request, paused, place or request.path, question, context), request.context
            case Stopped(outcome=aborted):
                return aborted, request.context
            case unknown:
                assert_never(unknown)

    async def _paused(
        self, request: Request, paused: Paused, place: StepPath, question: Question | None, context: Any
    ) -> Paused | Failure:
        written = None if context is request.context else context
        try:
            return await self.pause(request, paused, place, question, written)
        except NotSerializable as error:
            request.tally.pauses = False
            return self._cannot_be_stored(request, error, what="paused")

    async def pause(
        self,
        request: Request,
        paused: Paused,
        place: StepPath,
        question: Question | None = None,
        context: Any = None,
    ) -> Paused:
        """The step that pauses gets a token; those around it hand it on. What it wrote by then waits with it."""
        if paused.state_token is not None:
            return paused
        request.tally.pauses = True
        asked = approval_hash(paused.message, request.data, before=self.run.journal.times_answered(place))
        paused = Paused(message=paused.message, state_token=make_token(self.run.run_id, place, asked=asked))
        schema = getattr(request.step, "input_schema", None) if question is None else question.schema
        await self.run.journal.paused(
            Pause(
                path=place,
                step_name=request.name,
                paused=paused,
                input_schema=schema,
                attempts=request.tally.attempts,
                usage=request.tally.usage,
                question=question,
                context=context,
            )
        )
        self.run.emit("run.paused", request.path, step_name=request.name, message=paused.message)
        return paused

    async def settle(self, request: Request, outcome: TerminalOutcome, context: object) -> Settled:
        run = self.run
        run.ledger.settle(request.path)
        undo = _left(request, outcome, context, request.tally.attempts)
        if isinstance(outcome, (Success, Failure)) and not _escalates(outcome):
            outcome, context, undo = await self.remember(request, outcome, context, undo)
        if run.telemetry.enabled:
            emit_step_ended(run, request, outcome)
        settled = Settled(
            index=request.index,
            outcome=outcome,
            context=context,
            unfinished=None if isinstance(outcome, (Success, Failure)) else unfinished_result(request, outcome),
            undo=undo,
            cause=self._cause(request, outcome) if run.minds_failures and type(outcome) is Failure else None,
        )
        if run.outlet is None and not run.hooks:
            return settled
        request.tally.settled = settled
        overruled = await tell(run, request, outcome)
        return settled if overruled is None else attrs.evolve(settled, overruled=overruled)

    def _cause(self, request: Request, outcome: TerminalOutcome) -> Cause | None:
        """What those around a failed step are told: of a pipeline, which of its steps it was."""
        if not isinstance(outcome, Failure):
            return None
        from .._run.failure_facts import cause_of  # what only runs with handlers or compensations need

        aftermath = request.tally.aftermath
        if aftermath is None:
            return cause_of(request, outcome)
        inner = aftermath.cause if isinstance(request.step, Pipeline) else aftermath.own
        return inner or cause_of(request, outcome)

    def _inner_cause(self, request: Request, outcome: TerminalOutcome) -> Cause | None:
        """Which step of a pipeline failed: nobody looks into the pipeline again once it has settled."""
        return self._cause(request, outcome) if isinstance(request.step, Pipeline) else None

    async def remember(
        self, request: Request, outcome: Success | Failure, context: object, undo: tuple[ToUndo | Completed, ...]
    ) -> tuple[Any, Any, tuple[ToUndo | Completed, ...]]:
        run, same = self.run, context is request.context
        evidence = self._learned(request) if request.evidence else ()
        cause = self._inner_cause(request, outcome) if run.minds_failures else None
        record = Recorded(
            outcome=outcome,
            context=context,
            same_context=same,
            undo=_spelled_out(undo) if run.journal.durable else undo,
            cause=cause,
            evidence=evidence,
        )
        try:
            closes = request.path in self.closing and self._closes(request, record)
            kept = run.journal.hold(request.path, record) if closes else await self._written(request, record)
        except (NotSerializable, TransactionRefused) as error:
            failed = self._cannot_be_stored(request, error)
            undo = _left(request, failed, request.context, request.tally.attempts)
            told = Recorded(outcome=failed, context=request.context, same_context=True, undo=_spelled_out(undo))
            kept = await run.journal.settled(request.path, told)
        return kept.outcome, request.context if kept.same_context else kept.context, undo

    def _learned(self, request: Request) -> tuple[Evidence, ...]:
        from .._run.beliefs import taken_evidence  # what only runs with selections need

        return taken_evidence(self.run, request)

    def _closes(self, request: Request, record: Recorded) -> bool:
        """Whether what is around the step settles at once, now that it has (rule 3)."""
        if request.of and not self._is_last(request):
            return False
        return type(record.outcome) is Success and not record.evidence and request.transaction is None

    def _is_last(self, request: Request) -> bool:
        """Count a branch that has ended; whether it was the last one."""
        ended = self._ended_in[request.parent] = self._ended_in.get(request.parent, 0) + 1
        return ended == request.of

    def _written(self, request: Request, record: Recorded) -> Awaitable[Recorded]:
        """Write down how the step ended, in its own transaction if it has one."""
        transaction = request.transaction
        if transaction is None:
            return self.run.journal.settled(request.path, record)
        return _committed(transaction, request.path, record)

    def _cannot_be_stored(
        self, request: Request, error: NotSerializable | TransactionRefused, what: str = "succeeded"
    ) -> Failure:
        text = self.run.redact(f"The step {what}, but what it left cannot be stored: {message_of(error)}")
        result = result_of(request, success=False, feedback=text)
        self._report(request, error, text)
        return Failure(error=error, feedback=text, step_result=result)

    def _recalled(self, request: Request, recorded: Recorded) -> Settled:
        """The report of a step that settled in an earlier part of the run."""
        result = result_in(recorded.outcome)
        if result is not None:
            charge(request, result.usage, result.step_history)
            request.tally.attempts = result.attempts
        context = request.context if recorded.same_context else recorded.context
        undo = recorded.undo or _left(request, recorded.outcome, context, request.tally.attempts)
        return Settled(
            index=request.index,
            outcome=recorded.outcome,
            context=context,
            undo=tuple(undo),
            cause=self._recalled_cause(request, recorded) if self.run.minds_failures else None,
        )

    def _recalled_cause(self, request: Request, recorded: Recorded) -> Cause | None:
        if recorded.cause is None or not isinstance(recorded.outcome, Failure):
            return self._cause(request, recorded.outcome)
        return attrs.evolve(recorded.cause, error=recorded.outcome.error)

    def _report(self, request: Request, error: BaseException | ErrorInfo | None, feedback: str) -> None:
        from .._run.failure_reports import report_failure  # what only runs with a failure need

        report_failure(self.run, request, error, feedback)


@functools.cache  # an import statement takes a microsecond every time
def _attempts() -> type[Attempts]:
    from .retries import Attempts  # what is around a call: retries, composites, threads, transactions

    return Attempts


@functools.cache
def _short_question() -> Any:
    from . import short_question  # loads pydantic-ai, which only model agents need

    return short_question


def _left(request: Request, outcome: TerminalOutcome, context: object, attempts: int) -> tuple[ToUndo | Completed, ...]:
    """What a step leaves to undo; most steps leave nothing, and pay for a look."""
    if request.step.compensate is None:
        if request.tally.aftermath is None:
            return ()
    elif isinstance(outcome, Success):
        return (_completed(request, outcome, context),)
    from .undoing import left  # what only runs with compensations need

    return left(request, outcome, context, attempts=attempts)


def _completed(request: Request, outcome: Success, context: object) -> Completed:
    tally, changed = request.tally, None if context is request.context else context
    made = None if tally.aftermath is None else tally.aftermath.input
    data = request.data if made is None else made[0]
    return Completed(request, data, own(outcome.step_result.output), tally.attempts, changed)


def _spelled_out(undo: tuple[ToUndo | Completed, ...]) -> tuple[ToUndo, ...]:
    if not undo:
        return ()
    from .._run.aftermath import spelled_out  # what only runs with compensations need

    return tuple(map(spelled_out, undo))


async def _committed(transaction: OpenTransaction, path: StepPath, record: Recorded) -> Recorded:
    await transaction.commit(path, record)
    return record


async def _told_before(hooks: Hooks, request: Request) -> Aborted | Failure | None:
    return await hooks.tell(
        "pre_step", step_name=request.name, path=request.path, input=request.data, context=request.context
    )


def _escalates(outcome: Success | Failure) -> bool:
    return isinstance(outcome, Failure) and escalating(outcome.error) is not None
