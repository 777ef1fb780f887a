"""One call of a step's agent, and interpretation of its answer.

Sections:

- Refusal of unusable outputs: test doubles and unawaited objects.
- Chunk stream of one call: kept for the output, and published to readers.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from outcome import Error, Value

from ..._bridge.threads import in_thread
from ..._bridge.user_code_guard import guarded
from ..._core import seams
from ..._core.attempt_results import PLAIN, Attempt, AttemptFailed, AttemptStopped, AttemptSucceeded
from ..._core.error_info import message_of, tried
from ..._core.outcomes import (
    Aborted,
    Chunk,
    Failure,
    MakeChunk,
    Paused,
    StepResult,
    Success,
    checked_outcome,
    chunk_maker,
)
from ..._core.records.pause_tokens import idempotency_key
from ..._core.step_paths import known_outside
from ..._core.usage import NO_USAGE, Usage, counted, dollars, sanitized
from ..._dsl.call_plan import BUDGET, JUDGMENTS, LABELS, CallPlan
from ..._dsl.step_declaration import Step
from ...errors import MockDetectionError, NotAwaited
from .. import calls
from ..run.messages import AttemptInput, EventStream, StepState, work_of
from ..run.run_environment import Run
from ..run.step_results import budget_of, refusal, report_left_thread, scheduled_at, within_limits
from ..run.user_functions import assembled_of, failure_of

if TYPE_CHECKING:
    from ..._bridge.host_loop import ChunkConsumer
    from .aggregator import Aggregator


# --- Refusal of unusable outputs ----------------------------------------------------------------------------------


def refused_output(name: str, output: object) -> AttemptFailed | None:
    """Return the failure of such an output, or None."""
    if type(output) in PLAIN:
        return None
    return _leaked_mock(name, output) or _not_awaited(name, output)


def _leaked_mock(name: str, output: object) -> AttemptFailed | None:
    mock = sys.modules.get("unittest.mock")
    if mock is None or not isinstance(output, mock.NonCallableMock):
        return None
    text = f"step {name!r} returned a {type(output).__name__}: a test double leaked into the run"
    return AttemptFailed(error=MockDetectionError(text), feedback=text)


def _not_awaited(name: str, output: object) -> AttemptFailed | None:
    if not isinstance(output, Awaitable):
        return None
    what = getattr(output, "__qualname__", None)
    shown = f"{type(output).__name__} of {what!r}" if what else type(output).__name__
    text = f"step {name!r} returned a {shown} that was not awaited: write `return await …` where it is created"
    _release_reader(output)
    return AttemptFailed(error=NotAwaited(text), feedback=text)


def _release_reader(output: object) -> None:
    """Close an unawaited coroutine or cancel a task, without a warning."""
    end = getattr(output, "close", None) or getattr(output, "cancel", None)
    if end is not None:
        end()


# --- One call of a step's agent -----------------------------------------------------------------------------------


_OUTCOMES = (Success, Failure, Paused, Aborted, StepResult)


async def call_agent(run: Run, step: Step, work: AttemptInput) -> Attempt:
    """Call the agent by plan; structured answers become values."""
    plan = work.plan or step.plan
    if plan.shape == "model":
        if seams.on_call is not None:
            seams.on_call(run.run_id, work.span)
        return await calls.call_model_agent(run, step, work, plan.target)
    caller = PlainCaller(run=run, step=step, work=work, plan=plan)
    schema = step.processing.wanted
    if schema is None or not is_structured(run, step):
        return await caller.request(None)
    return await calls.structured_attempt(run, step, work, caller, schema)


def is_structured(run: Run, step: Step) -> bool:
    """Return whether the step's options and the settings allow structured output."""
    switches = step.processing
    return run.settings.aros.enabled and switches.structured_output != "off" and switches.enforcement != "off"


@attrs.frozen(kw_only=True, eq=False)
class PlainCaller:
    """An agent that is a function or an object with `run`."""

    run: Run
    step: Step
    work: AttemptInput
    plan: CallPlan
    validates: bool = False
    is_typed: bool = False
    can_repair: bool = False
    cut_off: bool = False
    last_repaired: None = None
    numbers: Iterator[int] = attrs.field(factory=itertools.count)
    """Numbers the chunks of the attempt."""

    @property
    def can_retry(self) -> bool:
        """Return whether an instruction would reach the agent."""
        return self._takes_feedback or (self.plan.takes_data and isinstance(self.work.data, str))

    @property
    def _takes_feedback(self) -> bool:
        return "feedback" in self.plan.named

    def is_about_content(self, failed: AttemptFailed) -> bool:
        """Return whether the agent raised a pydantic(-ai) error about a model's answer."""
        return _is_of_pydantic(failed.error) and calls.is_about_content(failed.error)

    def settled(self, output: object) -> None:
        """Do nothing: a plain agent's answer is its step's output."""

    async def repair(self, prompt: str) -> Attempt:
        """Refuse: a plain agent has no model."""
        return AttemptFailed(error=None, feedback="there is no model to repair with")

    async def validate(self, value: object) -> Attempt:
        """Return a plain agent does not judge its outputs."""
        return AttemptSucceeded(output=value, context=self.work.context)

    async def request(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """Call the agent with an instruction as `feedback`, or in its text."""
        work = self._with_feedback(instruction)
        refused = refusal(work)
        if refused is not None:
            return refused
        work.state.chunks = []
        got = await self._call(work)
        if isinstance(got, Error):
            return _with_partial(self._failure(got.error), work.state)
        ended = answer_of(self.run, self.step.name, got.value, work)
        if isinstance(ended, AttemptFailed) and ended.output is None:
            ended = _with_partial(ended, work.state)
        return within_limits(ended, work) if work.quotas else ended

    def _with_feedback(self, instruction: str | None) -> AttemptInput:
        if instruction is None:
            return self.work
        if self._takes_feedback:
            return attrs.evolve(self.work, feedback=instruction)
        return attrs.evolve(self.work, data=f"{self.work.data}\n\n{instruction}")

    def _failure(self, error: BaseException) -> AttemptFailed:
        failed = failure_of(self.run, error, plan=self.plan)
        if self.step.processing.wanted is None or not self.is_about_content(failed):
            return failed
        own = calls.own_refusal(error)
        refusal = None if own is None else self.run.redact(own)
        return attrs.evolve(failed, output=calls.text_of_error(error) or None, refusal=refusal)

    async def _call(self, work: AttemptInput) -> Value[object] | Error:
        run, plan = self.run, self.plan
        if plan.stream is not None and run.is_watched(work.span):
            plan = plan.stream
        args = (work.data,) if plan.takes_data else ()
        keywords = _keywords(run, plan, work) if plan.keywords else {}
        if run.journal.lapsed:
            await run.journal.confirm()
        if seams.on_call is not None:
            seams.on_call(run.run_id, work.span, cast("str | None", keywords.get("idempotency_key")))
        match plan.shape:
            case "async":
                return await guarded(_call_async, run, plan, args, keywords)
            case "sync":
                return await guarded(_call_sync, run, plan, args, keywords, work)
            case _:
                structured = self.step.processing.wanted is not None and is_structured(run, self.step)
                taker = taker_of(run, work, self.numbers, structured=structured)
                return await guarded(_call_stream, run, functools.partial(plan.target, *args, **keywords), taker)


def _is_of_pydantic(error: object) -> bool:
    """Return whether pydantic or pydantic-ai raised an error."""
    return any(kind.__module__.startswith("pydantic") for kind in type(error).__mro__)


def _keywords(run: Run, plan: CallPlan, work: AttemptInput) -> dict[str, object]:
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
        keywords["idempotency_key"] = idempotency_key(run.key_id, known_outside(work.span))
    if "scheduled_at" in plan.named:
        keywords["scheduled_at"] = scheduled_at()
    if plan.named & JUDGMENTS:
        wanted = plan.named & JUDGMENTS & (work.keywords.keys() | plan.required)
        keywords |= {name: work.keywords.get(name) for name in wanted}
    if BUDGET in plan.named:
        keywords[BUDGET] = budget_of(work.quotas)
    if LABELS in plan.named:
        keywords[LABELS] = run.labels
    if "failure" in plan.named or "undo" in plan.named:
        keywords.update(_handler_keywords(plan, work))
    if "transaction" in plan.named and work.transaction is not None:
        keywords["transaction"] = work.transaction.connection
    return keywords


def _handler_keywords(plan: CallPlan, work: AttemptInput) -> dict[str, object]:
    """Return the handler's failure and the compensation's entry by keyword, if taken."""
    found = {name: getattr(work.aside, name, None) for name in ("failure", "undo") if name in plan.named}
    return {name: each for name, each in found.items() if each is not None or name in plan.required}


async def _call_async(run: Run, plan: CallPlan, args: tuple[object, ...], keywords: dict[str, object]) -> object:
    answer = plan.target(*args, **keywords)
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


async def _call_sync(
    run: Run, plan: CallPlan, args: tuple[object, ...], keywords: dict[str, object], work: AttemptInput
) -> object:
    call = functools.partial(plan.target, *args, **keywords)
    left = functools.partial(report_left_thread, run, work.name, work.span)
    answer = await in_thread(
        call, label=work.name, limit=run.sync_step_threads, if_left=left, waited=run.journal.confirm
    )
    return await run.host.finish(answer) if isinstance(answer, Awaitable) else answer


# --- streams ------------------------------------------------------------------------------------------------


async def _call_stream(run: Run, make: Callable[[], object], taker: ChunkStream | Aggregator) -> object:
    takes: ChunkConsumer[object, Any] = taker
    final = await taker.within(functools.partial(run.host.read, make, takes, _OUTCOMES))
    return taker.result() if final is None else final


def taker_of(run: Run, work: AttemptInput, numbers: Iterator[int], *, structured: bool) -> ChunkStream | Aggregator:
    """Return a stream's consumer; a structured one is bounded and previewed."""
    if not structured or not run.settings.aros.streaming.aggregate_structured:
        return ChunkStream(run, work, numbers=numbers)
    return calls.Aggregator(run, work, numbers=numbers)


def joined(chunks: Sequence[Any]) -> str | bytes | list[Any]:
    """Return a stream's output: text, bytes or list; `""` if empty."""
    if all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    if all(isinstance(chunk, bytes) for chunk in chunks):
        return b"".join(chunks)
    return list(chunks)


def _with_partial(failed: AttemptFailed, state: StepState) -> AttemptFailed:
    if not state.chunks:
        return failed
    return attrs.evolve(failed, output=joined(state.chunks))


# --- answers ------------------------------------------------------------------------------------------------


def answer_of(run: Run, name: str, value: object, work: AttemptInput) -> Attempt:
    """Return the meaning of an answer: an output or an outcome."""
    if type(value) in PLAIN:
        return AttemptSucceeded(output=value, context=work.context)
    got = tried(_attempt_for, name, value, work)
    if isinstance(got, Error):
        return failure_of(run, got.error, subject=f"The answer of step {name!r} cannot be read")
    return got.value


def plain_attempt(run: Run, state: StepState, got: Value[object] | Error) -> Attempt:
    """Return the attempt of a plain call's result."""
    if isinstance(got, Error):
        return failure_of(run, got.error)
    return answer_of(run, state.name, got.value, work_of(state, state.data))


def _attempt_for(name: str, value: Any, work: AttemptInput) -> Attempt:
    if isinstance(value, _OUTCOMES):
        checked_outcome(value)
    match value:
        case Success(step_result=result):
            return _result_of(name, result, work)
        case StepResult():
            return _result_of(name, value, work)
        case Failure():
            return _own_failure(name, value, work)
        case Paused(message=message):
            return AttemptStopped(outcome=Paused(message=message), context=work.context)
        case Aborted():
            return AttemptStopped(outcome=value)
    refused = refused_output(name, value)
    if refused is not None:
        return refused
    if _is_run_result(value):
        work.spend(_run_usage(value))
        return AttemptSucceeded(output=value.output, context=work.context)
    work.spend(_reported_usage(value))
    return AttemptSucceeded(output=value, context=work.context)


def _result_of(name: str, result: StepResult, work: AttemptInput) -> Attempt:
    work.spend(_usage_of(result))
    if not result.success:
        return AttemptFailed(
            error=None, feedback=result.feedback or f"step {name!r} reported a failure", output=result.output
        )
    refused = refused_output(name, result.output)
    return refused or AttemptSucceeded(output=result.output, context=work.context, metadata=dict(result.metadata))


def _own_failure(name: str, failure: Failure, work: AttemptInput) -> AttemptFailed:
    result = failure.step_result
    if result is not None:
        work.spend(_usage_of(result))
    text = failure.feedback or (result and result.feedback) or f"step {name!r} reported a failure"
    if failure.feedback is None and isinstance(failure.error, BaseException):
        text = f"Agent execution failed with {type(failure.error).__name__}: {message_of(failure.error)}"
    return AttemptFailed(error=failure.error, feedback=text, output=None if result is None else result.output)


def _usage_of(result: StepResult) -> Usage:
    """Return the usage of a user's result, from either place."""
    if result.usage is not NO_USAGE and result.usage != NO_USAGE:
        return result.usage
    if not result.token_counts and not result.cost_usd:
        return NO_USAGE
    return Usage(input_tokens=result.token_counts, cost_usd=result.cost_usd)


def _reported_usage(value: object) -> Usage:
    """Return the usage that an output object carries as `token_counts` and `cost_usd`."""
    tokens, cost = getattr(value, "token_counts", 0), getattr(value, "cost_usd", 0.0)
    if isinstance(tokens, int) and isinstance(cost, int | float) and (tokens or cost):
        return Usage(input_tokens=counted(tokens), cost_usd=dollars(cost))
    return NO_USAGE


def _is_run_result(value: object) -> bool:
    """Return whether a function returned the result of its own pydantic-ai agent."""
    pydantic_ai = sys.modules.get("pydantic_ai")
    return pydantic_ai is not None and isinstance(value, pydantic_ai.AgentRunResult)


def _run_usage(result: Any) -> Usage:
    usage = result.usage
    return sanitized(
        Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            requests=usage.requests,
            tool_calls=usage.tool_calls,
            cost_usd=float(usage.cost or 0.0),
        )
    )


# --- Chunk stream of one call -------------------------------------------------------------------------------------


T = TypeVar("T")


class ChunkStream:
    """Consumer of one call's chunks; `numbers` spans the attempt's calls.

    Nothing is made without a receiver: no chunk without a reader, no text without watchers.
    """

    __slots__ = ("_chunks", "accept", "box")

    def __init__(self, run: Run, work: AttemptInput, *, numbers: Iterator[int]) -> None:
        self.box = run.chunks_of(work.span)
        """Channel of the chunks, if there is a reader."""
        self._chunks: list[object] = []
        work.state.chunks = self._chunks
        self.accept = _publisher(
            run, work, self._chunks, self.box, chunk_maker(work.name, work.attempt, numbers, work.span)
        )

    async def within(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read to the end; there are no bounds."""
        return await read()

    def result(self) -> object:
        """Return all that the stream delivered."""
        return joined(self._chunks)


def _publisher(
    run: Run, work: AttemptInput, chunks: list[object], box: EventStream | None, chunk_of: MakeChunk
) -> Callable[[object], Chunk | None]:
    """Return a function that publishes a chunk, or returns it unsent."""
    # A closure, as `chunk_maker` is: it is called for each chunk.
    keep, show, path, attempt = chunks.append, run.show, work.span, work.attempt

    def accept(chunk: object) -> Chunk | None:
        keep(chunk)
        show(path, attempt, chunk)
        if box is None or box.offer(message := chunk_of(chunk)):
            return None
        return message

    return accept
