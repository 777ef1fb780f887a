"""Attempts of a step in order: retries, redirects, fallback.

Rules:

1. `_core.retry_decisions` decides the next action after an attempt; this module executes it.
2. A step that paused in an earlier session continues with its answer as the attempt's output. An answer
   that a processor or validator refuses is a failed attempt like any other: the step pauses again while retries are
   left, and uses its fallback after that.
3. Failed attempts are recorded before the next one, so that a resumed step neither repeats nor forgets them.
4. The fallback is a step of its own below this one; its usage and attempts count here.

Sections:

- Failed attempts: recorded before any further action, and read on resume.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, assert_never, cast

import attrs
import trio
from outcome import Error, Value

from ... import errors
from ..._bridge.user_code_guard import contains_left_scope, guarded
from ..._core import step_paths
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from ..._core.outcomes import Aborted, ErrorInfo, Failure, Paused, StepResult, Success
from ..._core.retry_decisions import (
    Accept,
    Decision,
    RedirectTo,
    RetryAttempt,
    RetryRule,
    Review,
    StopRun,
    UseFallback,
    decide,
    retry_subjects,
    rule_holds,
)
from ..._core.usage import NO_USAGE
from ..._dsl.call_plan import CallPlan, plan_agent
from ..._dsl.declared_step import Declared
from ..._dsl.step_declaration import Step
from ..._durable.journal import Pause, PauseAnswer, Recorded
from ...errors import InfiniteRedirectError
from .. import tree
from ..context.copies import own
from ..run.messages import CompensationState, StepRequest, StepState, work_of
from ..run.run_environment import Run, note_swallowed_cancellation
from ..run.step_results import budget_for, cause_of, charge, report_fallback, result_in, result_of
from ..run.user_functions import call, failure_of, given
from .attempt import AttemptRunner
from .step_supervisor import ROADS, WRAPPERS, Supervises

if TYPE_CHECKING:
    from ..._core.failure_info import Cause
    from ..._core.records.records import CacheEntry
    from ..run.retrieval_cache import StepCache


# --- Failed attempts ----------------------------------------------------------------------------------------------
# From its record on, an attempt is never repeated: the next action, a retry, the fallback, compensation or handlers,
# continues where an earlier session ended.


async def remember_failed(
    run: Run, state: StepState, ended: AttemptFailed | AttemptStopped, *, final: bool = False
) -> None:
    """Record the attempts so far, before a possibly longer action."""
    failure = _failure(state, ended, final=final)
    cause: Cause | None = None
    if run.handles_failures and isinstance(ended, AttemptFailed):
        compensation_state = state.compensation_state = state.compensation_state or CompensationState()
        cause = compensation_state.cause = compensation_state.cause or cause_of(state, failure)
    record = Recorded(
        outcome=failure,
        context=state.context,
        same_context=True,
        undo=state.nested_entries(),
        cause=cause,
        evidence=WRAPPERS["evidence"](run, state) if state.evidence else (),
    )
    await run.journal.settled(step_paths.tried(state.path), record)


def _failure(state: StepState, ended: AttemptFailed | AttemptStopped, *, final: bool) -> Failure:
    noted: dict[str, object] = {"refused": state.refused, "refusal": state.refusal}
    if final:
        noted["final"] = True
    if isinstance(ended, AttemptStopped):
        assert isinstance(ended.outcome, Aborted)
        ended = AttemptFailed(error=None, feedback=ended.outcome.reason)
        noted["aborted"] = True
    control = escalating(ended.error)
    if control is not None:
        noted["control"] = type(control).__name__
    low = "min_confidence" in ended.metadata  # its review needs the output and its confidence
    if low:
        noted["confidence"] = ended.metadata.get("confidence")
    output = ended.output if low else None
    result = result_of(state, output=output, metadata=noted, success=False, feedback=ended.feedback)
    return Failure(error=ended.error, feedback=ended.feedback, step_result=result)


@attrs.frozen(kw_only=True)
class RecordedFailure:
    """End of an earlier session's attempts."""

    ended: AttemptFailed | AttemptStopped
    final: bool
    """Whether nothing else was to be tried."""


def failed_earlier(run: Run, state: StepState) -> RecordedFailure | None:
    """Return the last attempt of an earlier session, all counted."""
    tried = run.journal.recall(step_paths.tried(state.path))
    if tried is None or not isinstance(tried.outcome, Failure) or tried.outcome.step_result is None:
        return None
    failure, result = tried.outcome, tried.outcome.step_result
    state.attempts, state.history = result.attempts, list(result.step_history)
    state.refused, state.refusal = result.metadata.get("refused", 0), result.metadata.get("refusal")
    if state.usage is NO_USAGE:  # otherwise it was counted with the pause about its limits
        state.usage = result.usage
        charge(state, state.usage, state.history)
    if tried.undo or tried.cause is not None:
        _restore_compensations(state, tried, failure)
    return RecordedFailure(ended=_ended(failure, result), final=bool(result.metadata.get("final")))


def _restore_compensations(state: StepState, tried: Recorded, failure: Failure) -> None:
    compensation_state = state.compensation_state = state.compensation_state or CompensationState()
    compensation_state.undo = {0: tried.undo} if tried.undo else {}
    compensation_state.cause = None if tried.cause is None else attrs.evolve(tried.cause, error=failure.error)


def _ended(failure: Failure, result: StepResult) -> AttemptFailed | AttemptStopped:
    text = failure.feedback or ""
    if result.metadata.get("aborted"):
        return AttemptStopped(outcome=Aborted(reason=text))
    error = _control(failure, result.metadata.get("control")) or failure.error
    noted = {"confidence": result.metadata["confidence"]} if "confidence" in result.metadata else {}
    return AttemptFailed(error=error, feedback=text, output=result.output, metadata=noted)


def _control(failure: Failure, name: object) -> BaseException | None:
    """Return the library's control error that stopped the run, if any."""
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not issubclass(kind, errors.ControlError):
        return None
    return kind(failure.error.message if isinstance(failure.error, ErrorInfo) else str(failure.error))


# --- Attempts of a step in order ----------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class AttemptLoop:
    """The attempts of one step; see the module's rules."""

    spawner: Supervises
    state: StepState
    step: Declared

    @property
    def run(self) -> Run:
        """Return the run the step belongs to."""
        return self.spawner.run

    async def ended(self) -> Attempt:
        """Return the end of the last attempt, the fallback's included."""
        state, step = self.state, self.step
        conflict, state.conflict = state.conflict, None
        continued = await self._after_pause() if self.run.resumed and conflict is None else conflict
        if continued is not None and not isinstance(continued, AttemptFailed):
            return continued
        earlier = failed_earlier(self.run, state) if self.run.resumed and continued is None else None
        if earlier is not None and not state.attempts:
            return earlier.ended  # it had no input, and its handlers have run
        resolved = await self._resolved()
        if isinstance(resolved, AttemptFailed):
            if step.on_failure:
                await remember_failed(self.run, state, resolved, final=True)
            return resolved
        if step.cache is not None and self.run.cache is not None and continued is None and earlier is None:
            return await self._from_cache(self.run.cache, resolved.value)
        return await self._attempts(resolved.value, continued, earlier)

    async def _from_cache(self, cache: StepCache, data: object) -> Attempt:
        """Return an earlier run's stored output, or execute and store."""
        state, step = self.state, self.step
        looked = await guarded(cache.found, self.run, step, data, state.context)
        if isinstance(looked, Error):
            return failure_of(self.run, looked.error, subject=f"The cache of step {step.name!r}")
        key, found = looked.value
        if found is None:
            ended = await self._attempts(data, None, None)
            if isinstance(ended, AttemptSucceeded):
                made = await guarded(_entry, cache, step, key, ended.output)
                state.cached = () if isinstance(made, Error) else (made.value,)
            return ended
        self.run.emit("step.cached", state.path, step_name=step.name)
        done = AttemptSucceeded(output=found.value, context=state.context, metadata={"cached": True})
        return await self._runner().updated_by(step, done)

    async def _attempts(
        self, data: object, continued: AttemptFailed | None, earlier: RecordedFailure | None
    ) -> Attempt:
        """Make attempts in order, after those of an earlier session."""
        feedback: str | None = self.state.keywords.get("feedback")  # feedback of an enclosing loop
        if feedback is not None:
            self.state.refusal = feedback
        turns = RedirectHistory(self.step)
        final = earlier is not None and earlier.final
        known = continued if earlier is None else earlier.ended
        while True:
            ended = known or await self._next(data, feedback, turns.plan)
            matched = True
            if self.step.retry_on is not None and isinstance(ended, AttemptFailed) and not (known and earlier):
                ended, matched = await self._matched(self.step.retry_on, ended)
            decision = self._decided(ended, turns, final=final, matched=matched)
            if isinstance(decision, StopRun) or not isinstance(ended, AttemptFailed):
                return ended
            stopped = await self._record_failed(ended, decision, is_written=known is not None and earlier is not None)
            if stopped is not None:
                return stopped
            known, feedback = None, ended.feedback
            match decision:
                case RetryAttempt(after=seconds):
                    self._emit_retry(seconds, feedback)
                    await trio.sleep(seconds if self.run.stopping is None and self.run.gate is None else 0)
                case RedirectTo(to=agent):
                    circle = turns.redirect_to(agent)
                    if circle is not None:
                        return AttemptFailed(error=circle, feedback=str(circle), output=ended.output)
                case Review():
                    reviewed = await self._reviewed(ended)
                    if not isinstance(reviewed, AttemptFailed):
                        return reviewed
                    known, final = reviewed, True
                case UseFallback():
                    return await self._fallen_back(ended, data)
                case Accept():
                    return ended
                case _:
                    assert_never(decision)

    async def _matched(self, rules: Iterable[RetryRule], failed: AttemptFailed) -> tuple[AttemptFailed, bool]:
        """Return the failure, and whether every part matches a rule.

        The exception of a rule replaces the failure, and there is no retry.
        """
        for chain in retry_subjects(failed):
            holds = await call(self.run, _any_holds, self.run, rules, chain)
            if isinstance(holds, Error):
                return failure_of(self.run, holds.error, subject=f"retry_on of step {self.step.name!r}"), False
            if not holds.value:
                return failed, False
        return failed, True

    def _decided(self, ended: Attempt, turns: RedirectHistory, *, final: bool, matched: bool) -> Decision:
        step, state = self.step, self.state
        return decide(
            ended,
            failures=state.attempts - turns.redirects - state.lost,
            max_retries=step.max_retries,
            backoff=step.backoff,
            has_fallback=step.fallback is not None,
            has_review=step.on_low_confidence is not None
            and isinstance(ended, AttemptFailed)
            and WRAPPERS["is_low"](ended.error),
            lost=final or (isinstance(ended, AttemptFailed) and contains_left_scope(ended.error)),
            matched=matched,
            rng=self.run.rng,
        )

    async def _reviewed(self, low: AttemptFailed) -> Attempt:
        """Return a low-confidence answer's review, validated like any output."""
        ended: Attempt = await WRAPPERS["review"](self.spawner, self.state, self.step, low)
        return await self._runner().validated(self.step, ended) if isinstance(ended, AttemptSucceeded) else ended

    async def _record_failed(
        self, failed: AttemptFailed, decision: Decision, *, is_written: bool
    ) -> AttemptStopped | AttemptFailed | None:
        """Record and compensate a failed attempt before anything else.

        Return the step's end if it has to wait for a person.
        """
        undoes = self.state.compensation_state is not None and bool(self.state.nested_entries())
        if isinstance(decision, Accept) and not undoes and not self.step.on_failure:
            return None  # nothing else happens
        if not is_written and failed.redirect is None:  # the target agent cannot be stored
            await remember_failed(self.run, self.state, failed, final=not isinstance(decision, RetryAttempt))
        return await self._compensate(failed) if undoes else None

    async def _resolved(self) -> Value[object] | AttemptFailed:
        """Return the step's input: its data, or its `input` value."""
        state, step = self.state, self.step
        if step.input is None:
            return Value(state.data)
        asked = budget_for(step, "input", state.quotas)
        resolved = await given(self.run, step.input, state.data, state.context, state.scope, **asked)
        if isinstance(resolved, Error):
            return failure_of(self.run, resolved.error, subject=f"The input of step {step.name!r}")
        data = resolved.value
        if state.degraded:
            data = tree.input_in_expected_form(step, data, state.degraded)
        if self.run.handles_failures:
            state.compensation_state = state.compensation_state or CompensationState()
            state.compensation_state.input = (data,)
        return Value(data)

    async def _compensate(self, failed: AttemptFailed) -> AttemptStopped | AttemptFailed | None:
        """Compensate the attempt before anything else."""
        work = work_of(self.state, self.state.data)
        compensated = WRAPPERS["compensation"](self.spawner, work, failed.feedback)
        ended: AttemptStopped | AttemptFailed | None = await compensated
        return ended

    async def _after_pause(self) -> Attempt | None:
        """Continue a paused step of an earlier session, answered or waiting.

        A pause about its limits belongs to `limited`.
        """
        state, step = self.state, self.step
        answered = self.run.journal.answered(state.path)
        pause = self.run.journal.waiting(state.path) if answered is None else answered.pause
        if pause is None or pause.attempts <= self._attempts_failed() or pause.is_about_limits:
            return None
        state.attempts, state.usage = pause.attempts, pause.usage
        charge(state, pause.usage)
        if pause.question is not None and pause.question.wait is not None:
            return await self._waited(pause, answered)
        if answered is None:
            return AttemptStopped(outcome=pause.paused)
        if pause.question is not None and pause.question.kind == "approval":
            return await self._approved(answered)
        if answered.refused is not None:
            return failure_of(self.run, answered.refused, subject=f"The answer to step {step.name!r}")
        ended = await self._runner().resume(step, answered.answer, pause.context)
        if isinstance(ended, AttemptFailed) and ended.refusal is not None:
            state.refusal = ended.refusal
        return ended

    async def _waited(self, pause: Pause, answered: PauseAnswer | None) -> Attempt:
        """Continue a wait; its output is validated like any."""
        ended: Attempt = await WRAPPERS["wait"](self.spawner, self.state, self.step, pause, answered)
        return await self._runner().validated(self.step, ended) if isinstance(ended, AttemptSucceeded) else ended

    async def _approved(self, answered: PauseAnswer) -> Attempt:
        """Continue an approval with its decision, validated like any output."""
        ended: Attempt = await WRAPPERS["approval"](self.spawner, self.state, self.step, answered)
        return await self._runner().validated(self.step, ended) if isinstance(ended, AttemptSucceeded) else ended

    def _attempts_failed(self) -> int:
        """Return the number of failed attempts of an earlier session."""
        tried = self.run.journal.recall(step_paths.tried(self.state.path))
        result = None if tried is None else result_in(tried.outcome)
        return 0 if result is None else result.attempts

    async def _next(self, data: Any, feedback: str | None, plan: CallPlan | None) -> Attempt:
        self.state.attempts += 1
        if self.state.compensation_state is not None:
            self.state.compensation_state.cause = None
        share = own(data) if self.step.may_read_again else data
        work = work_of(self.state, share, feedback=feedback, plan=plan)
        ended = await self._runner().attempt(self.step, work)
        await note_swallowed_cancellation(self.run, self.state)
        if isinstance(ended, AttemptFailed) and ended.refusal is not None:
            self.state.refusal = ended.refusal
        if self.state.selected is not None:
            await WRAPPERS["reward"](self.run, self.state, self.step, ended)
        return ended

    def _runner(self) -> AttemptRunner:
        return AttemptRunner(self.spawner, self.state)

    async def _fallen_back(self, failed: AttemptFailed, data: object) -> Attempt:
        """Run the fallback; a failed one is compensated like any attempt."""
        ended = await self._fall_back(failed, data)
        if (
            not isinstance(ended, AttemptFailed)
            or escalating(ended.error) is not None
            or not self.state.nested_entries()
        ):
            return ended
        return await self._compensate(ended) or ended

    async def _fall_back(self, failed: AttemptFailed, data: object) -> Attempt:
        state, step = self.state, self.step
        assert step.fallback is not None
        if state.compensation_state is not None:
            state.compensation_state.cause = None  # of the attempts before it
        state.conversation = None  # its messages are not those of the output
        name = step.fallback.name or f"{step.name} (fallback)"
        report_fallback(self.run, state, failed.error, failed.feedback)
        self.run.emit("step.fallback", state.path, step_name=step.name, feedback=failed.feedback, fallback_name=name)
        fallback = StepRequest(
            step=step.fallback,
            name=name,
            path=step_paths.fallback(state.path),
            parent=state.path,
            data=data,
            context=state.context,
            around=state.around,
            degraded=state.degraded,
        )
        async with self.spawner.children(state) as children:
            settled = await children.one(fallback)
            _merge(state, settled.result)  # here: leaving the block may raise, and the usage counts all the same
        match settled.verdict:
            case Success(step_result=result):
                noted = {**result.metadata, "fallback_triggered": True, "original_error": failed.feedback}
                return AttemptSucceeded(output=result.output, context=settled.context, metadata=noted)
            case Failure(error=error, feedback=feedback):
                noted = {"fallback_triggered": True, "original_error": failed.feedback}
                text = f"{failed.feedback}; then fallback {name!r} failed: {feedback}"
                control = escalating(error)
                return AttemptFailed(error=control or failed.error, feedback=text, output=failed.output, metadata=noted)
            case Paused() | Aborted() as outcome:
                return AttemptStopped(outcome=outcome)

    def _emit_retry(self, seconds: float, feedback: str) -> None:
        self.run.emit(
            "step.retry",
            self.state.path,
            step_name=self.state.name,
            attempt=self.state.attempts,
            delay_s=seconds,
            feedback=feedback,
        )


async def _entry(cache: StepCache, step: Declared, key: str, output: object) -> CacheEntry:
    return cache.entry(step, key, output)


async def _any_holds(run: Run, rules: Iterable[RetryRule], chain: Sequence[BaseException | ErrorInfo]) -> bool:
    for rule in rules:
        for error in chain:
            if isinstance(rule, type | int):
                holds = rule_holds(rule, error)
            elif isinstance(error, ErrorInfo):
                holds = False  # a function needs the exception itself
            else:
                answer: Any = rule(error)
                holds = bool(await run.host.finish(answer) if isinstance(answer, Awaitable) else answer)
            if holds:
                return True
    return False


class RedirectHistory:
    """Agents of one step that were used, for redirects."""

    def __init__(self, step: Declared) -> None:
        self._step = step
        self._had = [step.agent] if isinstance(step, Step) else []
        self.plan: CallPlan | None = None
        self.redirects = 0

    def redirect_to(self, agent: object) -> InfiniteRedirectError | None:
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


def _merge(state: StepState, result: StepResult | None) -> None:
    if result is not None:
        state.attempts += result.attempts
        state.include(result)


@ROADS.entry("attempts")
def make_attempts(spawner: Supervises, state: StepState) -> Awaitable[Attempt]:
    """Make the attempts of a step with options around its call."""
    return AttemptLoop(spawner, state, cast("Declared", state.step)).ended()
