"""Results and events of a step, from attempts, usage and children.

Sections:

- Failure facts for handlers and compensations, from the records.
- Failure notes and log lines.
- Call sizes of an earlier session, known to limits from the start.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, assert_never

import attrs

from ... import _core
from ..._bridge.user_code_guard import contains_left_scope
from ..._core import seams
from ..._core.attempt_results import Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded, escalating
from ..._core.error_info import error_type_of, message_of, place_of, put_note
from ..._core.failure_info import Cause, StepFailure, stack_trace
from ..._core.locks import QUOTA_LOCK
from ..._core.outcomes import Aborted, ErrorInfo, Failure, Paused, StepResult, StoredResults, Success, TerminalOutcome
from ..._core.quota import NOTHING, Amount, Quota
from ..._core.step_paths import StepPath
from ..._core.usage import NO_USAGE, Budget, Resources, Usage
from ..._core.validators import nearest
from ..._dsl.call_plan import BUDGET, CallPlan, scope_keywords_of
from ..._dsl.declaration_tree import walk_steps
from ..._dsl.declared_step import Declared
from ..._dsl.pipeline import AnyStep
from ..._dsl.step_declaration import Step
from ..context.copies import own
from .messages import AttemptInput, StepState, input_of
from .run_environment import Run


def caller_of(plan: CallPlan, name: str) -> str:
    """Return the quota key of a step's calls, by agent."""
    return f"agent {id(plan.target):x}" if plan.shape == "model" else f"step {name}"


def budget_of(quotas: tuple[Quota, ...]) -> Budget:
    """Return the remaining budget under all these limits, the run's first."""
    if not quotas:
        return Budget()
    with QUOTA_LOCK:
        left: dict[str, float] = {}
        for quota in quotas:
            for resource, (spent, limit) in quota.limited().items():
                left[resource] = min(max(0, limit - spent), left.get(resource, math.inf))
        fraction = min(quota.fraction for quota in quotas)
        return Budget(fraction=fraction, remaining=Resources(**left), spent=quotas[0].used())


def budget_for(step: Declared, name: str, quotas: tuple[Quota, ...]) -> dict[str, Budget]:
    """Return the budget as a keyword, if the step's function takes it."""
    return {BUDGET: budget_of(quotas)} if name in step.budget_functions else {}


def refusal(work: AttemptInput) -> AttemptFailed | None:
    """Return the refusal of a call by a limit, or None."""
    refusing = next((quota for quota in work.quotas if quota.refuses(work.caller)), None)
    if refusing is None:
        return None
    error = refusing.error(work.caller)
    return AttemptFailed(error=error, feedback=str(error))


def within_limits(ended: Attempt, work: AttemptInput) -> Attempt:
    """Return the attempt, unless its reported usage exceeds a limit."""
    exceeded = next((quota for quota in work.quotas if quota.exceeded), None)
    if exceeded is None:
        return ended
    error = exceeded.error()
    return AttemptFailed(
        error=error, feedback=str(error), output=None if isinstance(ended, AttemptStopped) else ended.output
    )


def result_of(
    state: StepState,
    output: object = None,
    latency_s: float = 0.0,
    metadata: Any = (),
    *,
    success: bool = True,
    feedback: str | None = None,
) -> StepResult:
    """Return the step's result, with everything its actor has counted."""
    usage = state.usage
    return StepResult(
        name=state.name,
        output=output,
        success=success,
        attempts=state.attempts,
        latency_s=latency_s,
        token_counts=0 if usage is NO_USAGE else usage.tokens,
        cost_usd=usage.cost_usd,
        feedback=feedback,
        metadata=dict(metadata) if metadata else {},
        step_history=state.history,
        usage=usage,
        transcript=state.transcript,
    )


def redacted_attempt(run: Run, ended: Attempt) -> Attempt:
    """Return an attempt's end with redacted texts: reasons may quote errors."""
    match ended:
        case AttemptFailed(feedback=str() as said):
            return attrs.evolve(ended, feedback=run.redact(said))
        case AttemptStopped(outcome=Aborted(reason=str() as said)):
            return attrs.evolve(ended, outcome=Aborted(reason=run.redact(said)))
        case AttemptStopped(outcome=Paused(message=str() as said) as paused):
            return attrs.evolve(ended, outcome=attrs.evolve(paused, message=run.redact(said)))
    return ended


def unfinished_result(state: StepState, outcome: TerminalOutcome) -> StepResult | None:
    """Return the usage of a paused or aborted step, if any."""
    if state.usage is NO_USAGE or isinstance(outcome, (Success, Failure)):
        return None
    text = outcome.message if isinstance(outcome, Paused) else outcome.reason
    return result_of(state, success=False, feedback=text)


def result_in(outcome: TerminalOutcome) -> StepResult | None:
    """Return the result of an outcome's step, if any."""
    return outcome.step_result if isinstance(outcome, Success | Failure) else None


def charge(state: StepState, usage: Usage, history: Iterable[StepResult] = ()) -> None:
    """Count the usage of an earlier session, and learn its call sizes."""
    if not state.quotas or usage is NO_USAGE:
        return

    known = () if isinstance(history, StoredResults) else tuple(history)
    sizes = sizes_in(state.step, StepResult(name=state.name, usage=usage, step_history=known))
    with QUOTA_LOCK:
        for quota in state.quotas:
            quota.recall(usage)
            for caller, size in sizes.items():
                quota.learn(caller, size)


def recall_usage(quotas: Iterable[Quota], usage: Usage) -> None:
    """Count the usage of items of an earlier session."""
    with QUOTA_LOCK:
        for quota in quotas:
            quota.recall(usage)


# --- events -------------------------------------------------------------------------------------------------


def report_left_thread(run: Run, name: str, path: StepPath) -> None:
    """Report a thread that outlives its step's cancellation."""
    text = "its thread cannot be stopped and continues; its return value is ignored"
    run.emit("step.unstoppable", path, step_name=name, what="thread", feedback=text)


def emit_attempt_ended(run: Run, state: StepState, ended: Attempt, number: int) -> None:
    """Emit the end of an attempt."""
    status, text = _status(ended)
    error = error_type_of(ended.error) if isinstance(ended, AttemptFailed) else None
    facts = {"attempt": number, "status": status, "feedback": text, "error_type": error}
    run.emit("attempt.ended", state.path, step_name=state.name, **facts)


def _status(ended: Attempt) -> tuple[str, str | None]:
    match ended:
        case AttemptSucceeded():
            return "success", None
        case AttemptFailed(feedback=feedback):
            return "failure", feedback
        case AttemptStopped(outcome=outcome):
            return ("paused", None) if isinstance(outcome, Paused) else ("aborted", outcome.reason)
        case _:
            assert_never(ended)


def emit_step_ended(run: Run, state: StepState, outcome: TerminalOutcome) -> None:
    """Emit the end of a step."""
    facts: dict[str, Any]
    match outcome:
        case Success(step_result=result):
            facts = {"status": "success", "usage": result.usage, "output": result.output}
        case Failure(feedback=feedback, step_result=partial, error=error):
            facts = {"status": "failure", "feedback": feedback, "error_type": error_type_of(error)}
            if partial is not None:
                facts["usage"] = partial.usage
        case Paused():
            facts = {"status": "paused"}
        case Aborted(reason=reason):
            facts = {"status": "aborted", "feedback": reason}
        case _:
            assert_never(outcome)
    run.emit("step.ended", state.path, step_name=state.name, attempts=state.attempts, **facts)


# --- Failure facts for handlers and compensations -----------------------------------------------------------------


def cause_of(state: StepState, failure: Failure) -> Cause:
    """Return the failed step with the input of its attempts."""
    return Cause(
        name=state.name,
        path=state.path,
        attempts=state.attempts,
        input=input_of(state),
        feedback=failure.feedback or "",
        at=dt.datetime.fromtimestamp(seams.clock.time(), dt.UTC),
        error=failure.error,
    )


def failure_from(run: Run, cause: Cause) -> StepFailure:
    """Return the redacted facts of a failure."""
    error = cause.error
    return StepFailure(
        run_id=run.run_id,
        step_name=cause.name,
        path=cause.path,
        error_type=error_type_of(error) or "",
        message=run.redact(_message(error)) or cause.feedback,
        stack_trace=run.redact(stack_trace(cause)),
        at=cause.at,
        attempts=cause.attempts,
        input=cause.input,
        feedback=cause.feedback,
        error=error,
    )


def _message(error: BaseException | ErrorInfo | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, ErrorInfo) else message_of(error)


# --- Failure notes and log lines ----------------------------------------------------------------------------------
# A step that failed because of a nested step reports nothing: the nested one did.


logger = logging.getLogger("flujo_actors")

_NOTE = "flujo_actors: "
"""Prefix of the note on an exception."""

LONGEST_IN_LOG = 20_000
"""Maximum characters of feedback in a log line."""


def report_failure(run: Run, state: StepState, error: BaseException | ErrorInfo | None, feedback: str) -> None:
    """Add the location to the exception; log it unless raised."""
    where = f"run {run.run_id!r}, path {str(state.path)!r}, attempt {state.attempts}"
    if isinstance(error, BaseException):
        put_note(error, _NOTE, where)
    if escalating(error) is None:
        text = f"step {state.name!r} failed{_place(error)} ({where}): {_shortened(feedback)}"
        logger.log(_level(error), "%s", run.redact(text))


def report_fallback(run: Run, state: StepState, error: BaseException | ErrorInfo | None, feedback: str) -> None:
    """Log the reason of a fallback, whose success hides it."""
    where = f"run {run.run_id!r}, path {str(state.path)!r}, attempt {state.attempts}"
    text = f"step {state.name!r} goes to its fallback; it failed{_place(error)} ({where}): {_shortened(feedback)}"
    logger.info("%s", run.redact(text))


def _shortened(feedback: str) -> str:
    more = len(feedback) - LONGEST_IN_LOG
    return feedback if more <= 0 else f"{feedback[:LONGEST_IN_LOG]} … and {more:,} more characters"


def _level(error: object) -> int:
    """Return the log level; lower for a closing loop's steps."""
    return logging.INFO if contains_left_scope(error) else logging.WARNING


def _place(error: BaseException | ErrorInfo | None) -> str:
    place = place_of(error) if isinstance(error, BaseException) else None
    return "" if place is None else f" at {place}"


# --- Call sizes of an earlier session -----------------------------------------------------------------------------


def sizes_in(step: AnyStep, result: StepResult) -> dict[str | None, Amount]:
    """Return the largest call per caller in a result; overall under `None`."""
    callers = _callers(step)
    sizes: dict[str | None, Amount] = {None: _size(result.usage)}
    for each in _nested(result):
        caller = callers.get(each.name)
        if caller is not None:
            sizes[caller] = sizes.get(caller, NOTHING).largest(_size(each.usage))
    return sizes


def _callers(step: AnyStep) -> dict[str, str | None]:
    """Return the caller of each step name; `None` if ambiguous."""
    callers: dict[str, str | None] = {}
    for each in walk_steps(step):
        if isinstance(each, Step):
            caller = caller_of(each.plan, each.name)
            callers[each.name] = caller if callers.get(each.name, caller) == caller else None
    return callers


def _nested(result: StepResult) -> Iterator[StepResult]:
    pending = [result]
    while pending:
        found = pending.pop()
        yield found
        pending.extend(found.step_history)


def _size(usage: Usage) -> Amount:
    return Amount(tokens=usage.largest_request_tokens, cost_usd=usage.largest_request_usd)


class StepOutputs:
    """Outputs of settled steps in scope. Every attribute is a step's name."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> object:
        try:
            return own(self._scope.output(name))
        except LookupError:
            raise UnknownStep(_unknown(name, self)) from None

    def __getattr__(self, name: str) -> object:
        try:
            return own(self._scope.output(name))
        except LookupError:
            raise AttributeError(_unknown(name, self)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._scope.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.names())

    def __len__(self) -> int:
        return len(self._scope.names())

    def __repr__(self) -> str:
        return f"StepOutputs({', '.join(self)})"


class UnknownStep(KeyError):
    """No step of this name has settled in the scope."""

    def __str__(self) -> str:
        return str(self.args[0])


def _unknown(name: object, steps: StepOutputs) -> str:
    known = list(steps)
    near = nearest(str(name), known)
    hint = f"did you mean {near!r}?" if near else f"there is {', '.join(map(repr, known)) or 'none yet'}"
    return f"no step {name!r} has settled before this one, in its own sequence or around it; {hint}"


SCHEDULED_AT: ContextVar[Any] = ContextVar("flujo.scheduled_at")
"""Instant and zone of a scheduled run; its remote steps carry it."""


def scheduled_at() -> dt.datetime | None:
    """Return the current run's scheduled time in its zone, or None."""
    given = SCHEDULED_AT.get(None)
    return None if given is None else _core.local_time(*given)


def set_scheduled(carried: Mapping[str, object]) -> None:
    """Set the scheduled time of the run that the current task executes."""
    if SCHEDULED_AT.name in carried or SCHEDULED_AT.get(None) is not None:
        SCHEDULED_AT.set(carried.get(SCHEDULED_AT.name))


@attrs.frozen(kw_only=True, eq=False)
class Scope:
    """Scope at one position of a run; see the module's rules."""

    run_input: object = None
    item: object = None
    """The item of the nearest map around; `None` outside of maps."""
    outer: Scope | None = None
    outputs: dict[str, Any] = attrs.field(factory=dict)
    """Of the steps of this sequence, as they settle."""

    @classmethod
    def of_run(cls, data: object) -> Scope:
        """Return a run's outermost scope with this input."""
        return cls(run_input=own(data))

    def inner(self) -> Scope:
        """Return the scope of a sequence inside."""
        return Scope(run_input=self.run_input, item=self.item, outer=self)

    def of_item(self, item: object) -> Scope:
        """Return the scope of one item of a map."""
        return Scope(run_input=self.run_input, item=own(item), outer=self)

    def settle(self, name: str, output: object) -> None:
        """Take note of a step's output, as it is now."""
        self.outputs[name] = own(output)

    def output(self, name: str) -> object:
        """Return the named step's output in scope, or raise `LookupError`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outputs:
                return scope.outputs[name]
            scope = scope.outer
        raise LookupError(name)

    def names(self) -> dict[str, None]:
        """Return the steps in scope, outer ones first."""
        around = {} if self.outer is None else self.outer.names()
        return {**around, **dict.fromkeys(self.outputs)}

    def asked_by(self, fn: Callable[..., object]) -> dict[str, object]:
        """Return the scope keywords that a function takes."""
        asked = scope_keywords_of(fn)
        offered: dict[str, Callable[[], object]] = {
            "steps": lambda: StepOutputs(self),
            "item": lambda: own(self.item),
            "run_input": lambda: own(self.run_input),
            "scheduled_at": scheduled_at,
        }
        return {name: offered[name]() for name in asked}
