"""The attempts of a step, one after the other: retries, redirects, the fallback.

Rules:

1. What comes after an attempt is decided by `_core.decisions`; here it is carried out.
2. A step that paused in an earlier part of the run goes on with its answer, as if its attempt had come to it. An answer
   that a processor or validator refuses is a failed attempt like any other: the step asks again while retries are
   left, and goes to its fallback after that.
3. Failed attempts are written down before the next one, so that a resumed step neither repeats nor forgets them.
4. The fallback is a step of its own below this one; its usage and attempts count here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never, cast

import attrs
import trio
from outcome import Error, Value

from .._bridge.guard import holds_vanished
from .._calls.agent import answer_of
from .._context.isolation import own
from .._core import paths
from .._core.attempts import Attempt, Done, Failed, Stopped, escalating
from .._core.decisions import Accept, Decision, Escalate, HandOver, Restart, Review, UseFallback, decide
from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success
from .._dsl.call_plan import CallPlan, plan_agent
from .._dsl.declared import Declared
from .._dsl.step import Step
from .._durable.journal import Answered
from .._run.limits import budget_for
from .._run.messages import Request, Tally, work_of
from .._run.reports import charge, result_in
from .._run.run import Run, note_swallowed_cancellation
from .._run.user_calls import failure_of, given
from ..errors import InfiniteRedirectError
from .attempt import OneAttempt
from .children import Spawner
from .tried import Earlier, failed_earlier, remember_failed

if TYPE_CHECKING:
    from .._dsl.selections import SelectAgent


@attrs.frozen(eq=False)
class Attempts:
    """The attempts of one step; see the module's rules."""

    spawner: Spawner
    request: Request
    step: Declared

    @property
    def run(self) -> Run:
        """The run the step belongs to."""
        return self.spawner.run

    async def ended(self) -> Attempt:
        """How the last attempt ended, the fallback's included."""
        request, step, tally = self.request, self.step, self.request.tally
        continued = await self._after_pause() if self.run.resumed else None
        if continued is not None and not isinstance(continued, Failed):
            return continued
        earlier = failed_earlier(self.run, request) if self.run.resumed and continued is None else None
        if earlier is not None and not tally.attempts:
            return earlier.ended  # it had nothing to work on, and its handlers have been told so
        resolved = await self._resolved()
        if isinstance(resolved, Failed):
            if step.on_failure:
                await remember_failed(self.run, request, resolved, final=True)
            return resolved
        return await self._tried(resolved.value, continued, earlier)

    async def _tried(self, data: object, continued: Failed | None, earlier: Earlier | None) -> Attempt:
        """One attempt after the other, beginning after those that an earlier part of the run made."""
        feedback: str | None = self.request.told.get("feedback")  # what a loop around it has to say
        if feedback is not None:
            self.request.tally.refusal = feedback
        turns = Turns(self.step)
        final = earlier is not None and earlier.final
        known = continued if earlier is None else earlier.ended
        while True:
            ended = known or await self._next(data, feedback, turns.plan)
            decision = self._decided(ended, turns, final=final)
            if isinstance(decision, Escalate) or not isinstance(ended, Failed):
                return ended
            stopped = await self._given_up(ended, decision, is_written=known is not None and earlier is not None)
            if stopped is not None:
                return stopped
            known, feedback = None, ended.feedback
            match decision:
                case Restart(after=seconds):
                    self._emit_retry(seconds, feedback)
                    await trio.sleep(seconds if self.run.closing is None else 0)
                case HandOver(to=agent):
                    circle = turns.hand_over(agent)
                    if circle is not None:
                        return Failed(error=circle, feedback=str(circle), output=ended.output)
                case Review():
                    reviewed = await self._reviewed(ended)
                    if not isinstance(reviewed, Failed):
                        return reviewed
                    known, final = reviewed, True
                case UseFallback():
                    return await self._fallen_back(ended, data)
                case Accept():
                    return ended
                case _:
                    assert_never(decision)

    def _decided(self, ended: Attempt, turns: Turns, *, final: bool) -> Decision:
        step, tally = self.step, self.request.tally
        return decide(
            ended,
            failures=tally.attempts - turns.redirects - tally.lost,
            max_retries=step.max_retries,
            backoff=step.backoff,
            has_fallback=step.fallback is not None,
            has_review=step.on_low_confidence is not None and isinstance(ended, Failed) and self._is_low(ended),
            lost=final or (isinstance(ended, Failed) and holds_vanished(ended.error)),
            rng=self.run.rng,
        )

    def _is_low(self, failed: Failed) -> bool:
        from .confidence import is_low  # what only steps with a review need

        return is_low(failed.error)

    async def _reviewed(self, low: Failed) -> Attempt:
        """What a review makes of an answer that was not sure enough, judged like any output."""
        from .confidence import reviewed  # as above

        ended = await reviewed(self.spawner, self.request, self.step, low)
        return await self._one().judged(self.step, ended) if isinstance(ended, Done) else ended

    async def _given_up(self, failed: Failed, decision: Decision, *, is_written: bool) -> Stopped | Failed | None:
        """Write down an attempt that failed, and undo it, before anything else happens; how the step ends, if it has to
        wait for a person."""
        undoes = self.request.tally.aftermath is not None and bool(self.request.tally.left_inside())
        if isinstance(decision, Accept) and not undoes and not self.step.on_failure:
            return None  # nothing else happens
        if not is_written and failed.redirect is None:  # to which agent it goes cannot be written down
            await remember_failed(self.run, self.request, failed, final=not isinstance(decision, Restart))
        return await self._take_back(failed) if undoes else None

    async def _resolved(self) -> Value[object] | Failed:
        """What the step works on: its data, or what its own `input` makes of it."""
        request, step = self.request, self.step
        if step.input is None:
            return Value(request.data)
        asked = budget_for(step, "input", request.quotas)
        resolved = await given(self.run, step.input, request.data, request.context, request.scope, **asked)
        if isinstance(resolved, Error):
            return failure_of(self.run, resolved.error, what=f"The input of step {step.name!r}")
        data = resolved.value
        if request.degraded:
            from .degraded_data import input_as_asked  # see `StepActors._perform`

            data = input_as_asked(step, data, request.degraded)
        if self.run.minds_failures:
            from .._run.aftermath import Aftermath  # what only runs with handlers or compensations need

            request.tally.aftermath = request.tally.aftermath or Aftermath()
            request.tally.aftermath.input = (data,)
        return Value(data)

    async def _take_back(self, failed: Failed) -> Stopped | Failed | None:
        """Undo what the attempt did, before anything else happens."""
        from .undoing import take_back  # what only runs with compensations need

        return await take_back(self.spawner, work_of(self.request, self.request.data), failed.feedback)

    async def _after_pause(self) -> Attempt | None:
        """How a step that paused in an earlier part of the run goes on: with its answer, or waiting.

        What it asked about its limits is for `limited` to go on with.
        """
        request, step = self.request, self.step
        answered = self.run.journal.answered(request.path)
        pause = self.run.journal.waiting(request.path) if answered is None else answered.pause
        if pause is None or pause.attempts <= self._attempts_failed() or pause.is_about_limits:
            return None
        request.tally.attempts, request.tally.usage = pause.attempts, pause.usage
        charge(request, pause.usage)
        if answered is None:
            return Stopped(outcome=pause.paused)
        if pause.question is not None and pause.question.kind == "approval":
            return await self._approved(answered)
        if answered.refused is not None:
            return failure_of(self.run, answered.refused, what=f"The answer to step {step.name!r}")
        ended = await self._one().go_on(step, answered.answer, pause.context)
        if isinstance(ended, Failed) and ended.refusal is not None:
            request.tally.refusal = ended.refusal
        return ended

    async def _approved(self, answered: Answered) -> Attempt:
        """How an approval goes on with what was decided, judged like any output."""
        from .._dsl.approvals import Approval  # what only runs with approvals need
        from .approvals import decided

        assert isinstance(self.step, Approval)
        ended = await decided(self.spawner, self.request, self.step, answered)
        return await self._one().judged(self.step, ended) if isinstance(ended, Done) else ended

    def _attempts_failed(self) -> int:
        """How many attempts an earlier part of the run gave up: what they had asked was answered, and refused."""
        tried = self.run.journal.recall(paths.tried(self.request.path))
        result = None if tried is None else result_in(tried.outcome)
        return 0 if result is None else result.attempts

    async def _next(self, data: Any, feedback: str | None, plan: CallPlan | None) -> Attempt:
        self.request.tally.attempts += 1
        if self.request.tally.aftermath is not None:
            self.request.tally.aftermath.cause = None
        share = own(data) if self.step.may_read_again else data
        work = work_of(self.request, share, feedback=feedback, plan=plan)
        ended = await self._one().attempt(self.step, work)
        await note_swallowed_cancellation(self.run, self.request)
        if isinstance(ended, Failed) and ended.refusal is not None:
            self.request.tally.refusal = ended.refusal
        if self.request.tally.selected is not None:
            await self._rewarded(ended)
        return ended

    async def _rewarded(self, ended: Attempt) -> None:
        """Learn from what the attempt's agent came to."""
        from .selecting import rewarded  # what only runs with selections need

        await rewarded(self.run, self.request, cast("SelectAgent", self.step), ended)

    def _one(self) -> OneAttempt:
        return OneAttempt(self.spawner, self.request)

    async def _fallen_back(self, failed: Failed, data: object) -> Attempt:
        """How the fallback ends; one that fails is undone, like any attempt."""
        ended = await self._fall_back(failed, data)
        if not isinstance(ended, Failed) or escalating(ended.error) is not None or not self.request.tally.left_inside():
            return ended
        return await self._take_back(ended) or ended

    async def _fall_back(self, failed: Failed, data: object) -> Attempt:
        from .._run.failure_reports import report_fallback  # what only runs with a failure need

        request, step, tally = self.request, self.step, self.request.tally
        assert step.fallback is not None
        if tally.aftermath is not None:
            tally.aftermath.cause = None  # of the attempts before it
        name = step.fallback.name or f"{step.name} (fallback)"
        report_fallback(self.run, request, failed.error, failed.feedback)
        self.run.emit("step.fallback", request.path, step_name=step.name, feedback=failed.feedback, fallback_name=name)
        fallback = Request(
            step=step.fallback,
            name=name,
            path=paths.fallback(request.path),
            parent=request.path,
            data=data,
            context=request.context,
            around=request.around,
            degraded=request.degraded,
        )
        async with self.spawner.in_turn(tally) as children:
            settled = await children.settled(fallback)
            _take_over(tally, settled.result)  # here: leaving the block may raise, and it was used all the same
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

    def _emit_retry(self, seconds: float, feedback: str) -> None:
        self.run.emit(
            "step.retry",
            self.request.path,
            step_name=self.request.name,
            attempt=self.request.tally.attempts,
            delay_s=seconds,
            feedback=feedback,
        )


class Turns:
    """Which agents of one step have had their turn."""

    def __init__(self, step: Declared) -> None:
        self._step = step
        self._had = [step.agent] if isinstance(step, Step) else []
        self.plan: CallPlan | None = None
        self.redirects = 0

    def hand_over(self, agent: object) -> InfiniteRedirectError | None:
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


def _take_over(tally: Tally, result: StepResult | None) -> None:
    if result is not None:
        tally.attempts += result.attempts
        tally.include(result)


def meant_by(run: Run, request: Request, got: Value[object] | Error) -> Attempt:
    """What the answer of a step that is just a call comes to."""
    if isinstance(got, Error):
        return failure_of(run, got.error)
    return answer_of(run, request.name, got.value, work_of(request, request.data))
