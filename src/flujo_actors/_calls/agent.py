"""One call of a step's agent, and what its answer means."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
from outcome import Error, Value

from .._bridge.guard import guarded
from .._bridge.threads import in_thread
from .._core.attempts import PLAIN, Attempt, Done, Failed, Stopped
from .._core.error_info import message_of
from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success
from .._core.paths import known_outside
from .._core.pause_tokens import idempotency_key
from .._core.usage import NO_USAGE, Usage
from .._dsl.call_plan import BUDGET, TOLD, CallPlan
from .._dsl.step import Step
from .._run.limits import budget_of, refusal, within_limits
from .._run.messages import Tally, Work
from .._run.reports import report_left_thread
from .._run.run import Run
from .._run.user_calls import assembled_of, failure_of
from .refused_outputs import refused_output

if TYPE_CHECKING:
    from .aggregator import Aggregator
    from .shown_pieces import ShownPieces

_OUTCOMES = (Success, Failure, Paused, Aborted, StepResult)


async def call_agent(run: Run, step: Step, work: Work) -> Attempt:
    """Call the agent as its plan says, and bring its answer to a value if the step is a structured one."""
    plan = work.plan or step.plan
    if plan.shape == "model":
        from .model import call_model_agent  # loads pydantic-ai, which only model agents need

        return await call_model_agent(run, step, work, plan.target)
    caller = PlainCaller(run=run, step=step, work=work, plan=plan)
    schema = step.processing.wanted
    if schema is None or not is_structured(run, step):
        return await caller.ask(None)
    from .structured import structured_attempt  # loads pydantic, which only structured steps need

    return await structured_attempt(run, step, work, caller, schema)


def is_structured(run: Run, step: Step) -> bool:
    """Whether the step's switches and the settings allow its output to be read as a value."""
    switches = step.processing
    return run.settings.aros.enabled and switches.structured_output != "off" and switches.enforcement != "off"


@attrs.frozen(kw_only=True, eq=False)
class PlainCaller:
    """An agent that is a function or an object with `run`."""

    run: Run
    step: Step
    work: Work
    plan: CallPlan
    validates: bool = False
    is_typed: bool = False
    can_repair: bool = False
    cut_off: bool = False
    numbers: Iterator[int] = attrs.field(factory=itertools.count)
    """Numbers the chunks of the attempt."""

    @property
    def can_ask_again(self) -> bool:
        """Whether an instruction would reach the agent."""
        return self._takes_feedback or (self.plan.takes_data and isinstance(self.work.data, str))

    @property
    def _takes_feedback(self) -> bool:
        return "feedback" in self.plan.named

    def is_about_content(self, failed: Failed) -> bool:
        """Whether the agent raised what pydantic or pydantic-ai raise about a model's answer."""
        known = _content_errors(failed.error)
        return known is not None and bool(known.is_about_content(failed.error))

    def settled(self, output: object) -> None:
        """A plain agent's answers are told as its step's output."""

    async def repair(self, prompt: str) -> Attempt:
        """There is no model behind a plain agent."""
        return Failed(error=None, feedback="there is no model to repair with")

    async def judge(self, value: object) -> Attempt:
        """A plain agent does not judge its outputs."""
        return Done(output=value, context=self.work.context)

    async def ask(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """One call of the agent; an instruction reaches it as `feedback`, else at the end of its text."""
        work = self._told(instruction)
        refused = refusal(work)
        if refused is not None:
            return refused
        work.tally.pieces = []
        got = await self._call(work)
        if isinstance(got, Error):
            return _with_partial(self._failure(got.error), work.tally)
        ended = answer_of(self.run, self.step.name, got.value, work)
        if isinstance(ended, Failed) and ended.output is None:
            ended = _with_partial(ended, work.tally)
        return within_limits(ended, work) if work.quotas else ended

    def _told(self, instruction: str | None) -> Work:
        if instruction is None:
            return self.work
        if self._takes_feedback:
            return attrs.evolve(self.work, feedback=instruction)
        return attrs.evolve(self.work, data=f"{self.work.data}\n\n{instruction}")

    def _failure(self, error: BaseException) -> Failed:
        failed = failure_of(self.run, error, plan=self.plan)
        if self.step.processing.wanted is None or not self.is_about_content(failed):
            return failed
        known, own = _content_errors(error), _content_errors(error).own_refusal(error)
        refusal = None if own is None else self.run.redact(own)
        return attrs.evolve(failed, output=known.text_of_error(error) or None, refusal=refusal)

    async def _call(self, work: Work) -> Value[object] | Error:
        run, plan = self.run, self.plan
        if plan.stream is not None and run.is_seen(work.span):
            plan = plan.stream
        args = (work.data,) if plan.takes_data else ()
        keywords = _keywords(run, plan, work) if plan.keywords else {}
        match plan.shape:
            case "async":
                return await guarded(_call_async, run, plan, args, keywords)
            case "sync":
                return await guarded(_call_sync, run, plan, args, keywords, work)
            case _:
                structured = self.step.processing.wanted is not None and is_structured(run, self.step)
                taker = taker_of(run, work, self.numbers, structured=structured)
                return await guarded(_call_stream, run, functools.partial(plan.target, *args, **keywords), taker)


def _content_errors(error: object) -> Any:
    """The module that knows errors about answers, if the error is of a library that raises such."""
    if not any(kind.__module__.startswith("pydantic") for kind in type(error).__mro__):
        return None
    from .._agents import provider_errors  # loads pydantic-ai, which others need not

    return provider_errors


def _keywords(run: Run, plan: CallPlan, work: Work) -> dict[str, object]:
    keywords: dict[str, object] = {}
    if "context" in plan.keywords:
        keywords["context"] = work.context
    if "resources" in plan.named or ("resources" in plan.keywords and run.resources is not None):
        keywords["resources"] = run.resources
    if "feedback" in plan.named:
        keywords["feedback"] = work.feedback
    if "assembled" in plan.named:
        keywords["assembled"] = assembled_of(work.assembly)
    if "idempotency_key" in plan.named:
        keywords["idempotency_key"] = idempotency_key(run.run_id, known_outside(work.span))
    if plan.named & TOLD:
        wanted = plan.named & TOLD & (work.told.keys() | plan.required)
        keywords |= {name: work.told.get(name) for name in wanted}
    if BUDGET in plan.named:
        keywords[BUDGET] = budget_of(work.quotas)
    if "failure" in plan.named or "undo" in plan.named:
        keywords.update(_beside(plan, work))
    if "transaction" in plan.named and work.transaction is not None:
        keywords["transaction"] = work.transaction.connection
    return keywords


def _beside(plan: CallPlan, work: Work) -> dict[str, object]:
    """What is asked for of a handler's failure and a compensation's undo; a default is left where there is none."""
    found = {name: getattr(work.aside, name, None) for name in ("failure", "undo") if name in plan.named}
    return {name: each for name, each in found.items() if each is not None or name in plan.required}


async def _call_async(run: Run, plan: CallPlan, args: tuple[object, ...], keywords: dict[str, object]) -> object:
    answer = plan.target(*args, **keywords)
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


async def _call_sync(
    run: Run, plan: CallPlan, args: tuple[object, ...], keywords: dict[str, object], work: Work
) -> object:
    call = functools.partial(plan.target, *args, **keywords)
    left = functools.partial(report_left_thread, run, work.name, work.span)
    answer = await in_thread(call, label=work.name, pace=plan.pace, limit=run.sync_step_threads, if_left=left)
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


# --- streams ------------------------------------------------------------------------------------------------


async def _call_stream(run: Run, make: Callable[[], object], taker: ShownPieces | Aggregator) -> object:
    final = await taker.within(functools.partial(run.host.read, make, taker, _OUTCOMES))
    return taker.whole() if final is None else final


def taker_of(run: Run, work: Work, numbers: Iterator[int], *, structured: bool) -> ShownPieces | Aggregator:
    """Who takes the pieces of a stream: those of a structured one are bounded, and previewed."""
    if not structured or not run.settings.aros.streaming.aggregate_structured:
        from .shown_pieces import ShownPieces  # what only streams need

        return ShownPieces(run, work, numbers=numbers)
    from .aggregator import Aggregator  # loads pydantic, which only structured steps need

    return Aggregator(run, work, numbers=numbers)


def joined(pieces: list[Any]) -> str | bytes | list[Any]:
    """The output of a stream: text, bytes, or the list of its pieces; an empty stream is an empty text."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if all(isinstance(piece, bytes) for piece in pieces):
        return b"".join(pieces)
    return list(pieces)


def _with_partial(failed: Failed, tally: Tally) -> Failed:
    if not tally.pieces:
        return failed
    return attrs.evolve(failed, output=joined(tally.pieces))


# --- answers ------------------------------------------------------------------------------------------------


def answer_of(run: Run, name: str, value: object, work: Work) -> Attempt:
    """What an agent's answer means: an output, or an outcome that it decided on itself."""
    if type(value) in PLAIN:
        return Done(output=value, context=work.context)
    try:
        return _meaning_of(name, value, work)
    except Exception as error:  # user code: the attributes of an answer may do anything
        return failure_of(run, error, what=f"The answer of step {name!r} cannot be read")


def _meaning_of(name: str, value: Any, work: Work) -> Attempt:
    if isinstance(value, _OUTCOMES):
        from .._core.own_outcomes import checked_outcome  # few steps say themselves how they ended

        checked_outcome(value)
    match value:
        case Success(step_result=result):
            return _result_of(name, result, work)
        case StepResult():
            return _result_of(name, value, work)
        case Failure():
            return _own_failure(name, value, work)
        case Paused(message=message):
            return Stopped(outcome=Paused(message=message), context=work.context)
        case Aborted():
            return Stopped(outcome=value)
    refused = refused_output(name, value)
    if refused is not None:
        return refused
    if _is_run_result(value):
        work.spend(_run_usage(value))
        return Done(output=value.output, context=work.context)
    work.spend(_reported_usage(value))
    return Done(output=value, context=work.context)


def _result_of(name: str, result: StepResult, work: Work) -> Attempt:
    work.spend(_usage_of(result))
    if not result.success:
        return Failed(error=None, feedback=result.feedback or f"step {name!r} reported a failure", output=result.output)
    refused = refused_output(name, result.output)
    return refused or Done(output=result.output, context=work.context, metadata=dict(result.metadata))


def _own_failure(name: str, failure: Failure, work: Work) -> Failed:
    result = failure.step_result
    if result is not None:
        work.spend(_usage_of(result))
    text = failure.feedback or (result and result.feedback) or f"step {name!r} reported a failure"
    if failure.feedback is None and isinstance(failure.error, BaseException):
        text = f"Agent execution failed with {type(failure.error).__name__}: {message_of(failure.error)}"
    return Failed(error=failure.error, feedback=text, output=None if result is None else result.output)


def _usage_of(result: StepResult) -> Usage:
    """The usage of a result that user code made, which may say it in either place."""
    if result.usage is not NO_USAGE and result.usage != NO_USAGE:
        return result.usage
    if not result.token_counts and not result.cost_usd:
        return NO_USAGE
    return Usage(input_tokens=result.token_counts, cost_usd=result.cost_usd)


def _reported_usage(value: object) -> Usage:
    """The usage that an output object carries as `token_counts` and `cost_usd`."""
    tokens, cost = getattr(value, "token_counts", 0), getattr(value, "cost_usd", 0.0)
    if isinstance(tokens, int) and isinstance(cost, int | float) and (tokens or cost):
        return Usage(input_tokens=tokens, cost_usd=float(cost))
    return NO_USAGE


def _is_run_result(value: object) -> bool:
    """Whether a function returned the result of a pydantic-ai agent it called itself."""
    pydantic_ai = sys.modules.get("pydantic_ai")
    return pydantic_ai is not None and isinstance(value, pydantic_ai.AgentRunResult)


def _run_usage(result: Any) -> Usage:
    usage = result.usage
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        requests=usage.requests,
        tool_calls=usage.tool_calls,
        cost_usd=float(usage.cost or 0.0),
    )
