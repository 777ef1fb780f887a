"""Case runs of an evaluation: started, continued, answered, judged.

Rules:

1. A case is a run of the user's pipeline under an id of its own. A run that has ended is read, never repeated; one that
   a dead process left is resumed; one that the budget stopped is retried.
2. With a store, the facts of a run are read from it, so that a continued evaluation sees the same values.
3. With a queue, workers execute the runs, and this process waits.
4. A question is answered from `metadata["answers"]` by its path; without an answer the run stays paused. A run whose
   question has an answer already, from a person or from a call that died, is resumed.
5. An error of one case is its status. An error of the store ends the evaluation, which can be continued.
6. Only public names of pydantic-evals are used. `EvaluatorContext` requires `_span_tree`, which is an error here: a
   case may run in another process, whose spans are not known.
7. A synchronous evaluator is called in a thread, which a cancelled evaluation leaves behind; an asynchronous one on
   the loop of the run.
8. An evaluator with a field `model` is called on a copy whose model is metered, on an asyncio loop or in a thread. If
   the field is empty, the evaluator chooses the model, and the responses of its agent run are charged when it ends.
9. An exception of an evaluator is its failure, also a cancellation that no caller requested. A request that the budget
   refused leaves the judgement open.

Sections:

- Evaluators and their metered models.
- Reports of pydantic-evals.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import trio
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import capture_run_messages
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from ..._agents.metered_model import MeteredModel, model_named
from ..._agents.prices import Pricing
from ..._agents.request_meter import AgentCall
from ..._bridge.host_loop import TRIO, current_host, library_hint
from ..._bridge.threads import in_thread
from ..._core.error_info import message_of
from ..._core.labels import PARENT
from ..._core.outcomes import PipelineResult, RunId
from ..._core.policies.shared_budgets import parent_owner
from ..._core.records.pause_tokens import parse_token
from ..._core.records.records import StoredRun, has_ended
from ..._core.records.run_state import RunState
from ..._core.usage import NO_USAGE, Usage
from ..._durable.forks import retry
from ..._durable.pause_lookup import give_answer
from ..._durable.run_admission import projected
from ...errors import (
    ControlError,
    FlujoError,
    InvalidAnswer,
    NotPaused,
    RunNotFound,
    StoreError,
    UsageLimitExceededError,
)
from ...stores._store_port import Store
from ...telemetry._redaction.redactor import redacted
from .evaluation_results import MARK, CaseResult, Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_evals import Case
    from pydantic_evals.evaluators import Evaluator, EvaluatorContext
    from pydantic_evals.reporting import EvaluationReport

    from ..._core.quota import Quota
    from ..._core.settings_model import UsageSettings

T = TypeVar("T")

POLL_S = 0.2
"""Interval of looking at a run that a worker executes."""

_MOST_ANSWERS = 1_000
"""Number of questions that are answered in one run."""


class CaseFlujo(Protocol):
    """The methods of `Flujo` that execute a case."""

    def run_async(self, data: object, *, run_id: str | None = None) -> Awaitable[PipelineResult]:
        """Run the pipeline."""

    def resume_async(self, token: str, answer: object = ..., *, wait: bool = ...) -> Awaitable[PipelineResult]:
        """Continue a run, with an answer or without."""

    def retry_async(self, run_id: str) -> Awaitable[PipelineResult]:
        """Retry a run."""

    async def submit(self, data: object, *, run_id: str | None = None, queue: str = ..., if_exists: Any = ...) -> str:
        """Submit a run to a queue."""


@attrs.frozen(kw_only=True)
class Unit:
    """One run of one case."""

    key: str
    """Last part of the run's id."""
    name: str
    case: Case[object, object, object]
    evaluators: tuple[Evaluator[object, object, object], ...]


@attrs.frozen(kw_only=True)
class _Rest:
    """State of a case run that ended, or waits."""

    status: str
    output: object = None
    error: str | None = None
    tokens_by_path: Mapping[str, str] = attrs.field(factory=dict)
    """Tokens of open questions by their path."""
    wakes_at: float | None = None
    usage: Usage = NO_USAGE
    duration_s: float = 0.0

    @property
    def is_answered(self) -> bool:
        """Return whether a paused run has an answer to each question."""
        return self.status == "paused" and not self.tokens_by_path


@attrs.frozen(kw_only=True)
class CaseRuns:
    """Executor of the case runs of one evaluation."""

    flujo: CaseFlujo
    store: Store | None
    parent: str
    queue: str | None = None

    def run_id(self, unit: Unit) -> str:
        """Return the id of a case run."""
        return f"{self.parent}/{unit.key}"

    async def executed(self, unit: Unit) -> dict[str, object]:
        """Return the facts of the case run at rest (module rules)."""
        begun = time.monotonic()
        try:
            rest = await self._answered(unit, await self._begun(unit))
        except StoreError:
            raise
        except ControlError as error:
            rest = await self._after(unit, error)
        except FlujoError as error:
            rest = _Rest(status="error", error=f"{type(error).__name__}: {message_of(error)}")
        if self.store is None:
            rest = attrs.evolve(rest, duration_s=time.monotonic() - begun)
        return self._facts(unit, rest)

    def _facts(self, unit: Unit, rest: _Rest) -> dict[str, object]:
        stopped = rest.status == "failed" and self._is_stopped(rest.error)
        status = "paused" if rest.status == "sleeping" else "stopped" if stopped else rest.status
        return {
            MARK: "run",
            "unit": unit.key,
            "status": status,
            "output": rest.output if status == "completed" else None,
            "error": self._error(unit, rest),
            "cost_usd": rest.usage.cost_usd,
            "tokens": rest.usage.tokens,
            "requests": rest.usage.requests,
            "tool_calls": rest.usage.tool_calls,
            "duration_s": rest.duration_s,
        }

    def _error(self, unit: Unit, rest: _Rest) -> str | None:
        if rest.status == "paused" and rest.tokens_by_path:
            path = next(iter(rest.tokens_by_path))
            return f"case {unit.name!r} waits at {path!r}: put an answer under metadata.answers.{path}"
        if rest.status in ("paused", "sleeping"):
            return f"case {unit.name!r} waits for an event"
        return None if rest.error is None else redacted(rest.error)

    def _is_stopped(self, error: str | None) -> bool:
        """Return whether the budget of the evaluation ended the run."""
        return error is not None and f"usage limit reached: {parent_owner(self.parent)} " in error

    # --- from the beginning to a rest ---

    async def _begun(self, unit: Unit) -> _Rest:
        """Return the run at its first rest (rule 1)."""
        run_id = self.run_id(unit)
        if self.store is None:
            return _of_result(await self.flujo.run_async(unit.case.inputs, run_id=run_id))
        found = await self._found(run_id)
        if found is None:
            return await self._started(unit)
        if found.labels.get(PARENT) != self.parent:
            taken = f"run {run_id!r} exists already, and is no run of evaluation {self.parent!r}. Use another run_id."
            return _Rest(status="error", error=taken)
        rest = await self._read(run_id)
        if rest.status == "failed" and self._is_stopped(rest.error):
            return await self._retried(run_id)
        if has_ended(found.status) or found.status == "paused":
            return rest
        return await self._resumed(run_id)

    async def _started(self, unit: Unit) -> _Rest:
        run_id = self.run_id(unit)
        if self.queue is None:
            await self.flujo.run_async(unit.case.inputs, run_id=run_id)
        else:
            await self.flujo.submit(unit.case.inputs, run_id=run_id, queue=self.queue, if_exists="return")
        return await self._at_rest(run_id)

    async def _retried(self, run_id: str) -> _Rest:
        if self.queue is None:
            await self.flujo.retry_async(run_id)
        else:
            assert self.store is not None
            await _in_thread(functools.partial(retry, self.store, RunId(run_id), queue=self.queue))
        return await self._at_rest(run_id)

    async def _resumed(self, run_id: str, answered: str | None = None) -> _Rest:
        if self.queue is None:
            with contextlib.suppress(NotPaused):  # another process has ended it
                await self.flujo.resume_async(run_id)
        return await self._at_rest(run_id, answered)

    async def _after(self, unit: Unit, error: ControlError) -> _Rest:
        """Return the run that a control error has ended."""
        if self.store is not None:
            return await self._read(self.run_id(unit))
        result = error.result
        message = f"{type(error).__name__}: {message_of(error)}"
        rest = _Rest(status="failed") if result is None else _of_result(result)
        return attrs.evolve(rest, status="failed", error=message)

    # --- questions ---

    async def _answered(self, unit: Unit, rest: _Rest) -> _Rest:
        """Answer questions from the metadata until none is left (rule 4)."""
        metadata = unit.case.metadata
        answers = metadata.get("answers") if isinstance(metadata, Mapping) else None
        for _ in range(_MOST_ANSWERS):
            if rest.status == "sleeping" and rest.wakes_at is not None:
                await anyio.sleep(max(0.0, rest.wakes_at - time.time()))
                rest = await self._woken(unit)
                continue
            if rest.is_answered and self.store is not None:
                rest = await self._resumed(self.run_id(unit))
                continue
            known = answers if isinstance(answers, Mapping) else {}
            path = next((each for each in rest.tokens_by_path if each in known), None)
            if rest.status != "paused" or path is None:
                return rest
            try:
                rest = await self._with_answer(unit, rest.tokens_by_path[path], known[path])
            except InvalidAnswer as error:
                return attrs.evolve(rest, status="error", error=f"InvalidAnswer: {message_of(error)}")
        return rest

    async def _with_answer(self, unit: Unit, token: str, answer: object) -> _Rest:
        if self.store is None:
            return _of_result(await self.flujo.resume_async(token, answer))
        try:
            if self.queue is None:
                await self.flujo.resume_async(token, answer)
            else:
                await _in_thread(functools.partial(give_answer, self.store, token, answer))
        except NotPaused:  # a person was faster, or the question expired
            return await self._resumed(self.run_id(unit), answered=token)
        return await self._at_rest(self.run_id(unit), answered=token)

    async def _woken(self, unit: Unit) -> _Rest:
        if self.store is None:
            return _of_result(await self.flujo.resume_async(self.run_id(unit)))
        return await self._resumed(self.run_id(unit))

    # --- the store ---

    async def _at_rest(self, run_id: str, answered: str | None = None) -> _Rest:
        """Return the run once it has ended, or asks a question."""
        while self.queue is not None:
            found = await self._found(run_id)
            if found is not None and _is_at_rest(found, answered):
                break
            await anyio.sleep(POLL_S)
        return await self._read(run_id)

    async def _found(self, run_id: str) -> StoredRun | None:
        assert self.store is not None
        try:
            return await _in_thread(functools.partial(self.store.get, RunId(run_id)))
        except RunNotFound:
            return None

    async def _read(self, run_id: str) -> _Rest:
        assert self.store is not None
        return await _in_thread(functools.partial(_stored_rest, self.store, RunId(run_id)))


async def _in_thread(call: Callable[[], T], *, left: str | None = None) -> T:
    """Call a function in a thread; a cancelled caller leaves `left`."""
    if left is not None and trio.lowlevel.in_trio_task():
        return await in_thread(call, label=left)
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=left is not None)


def _is_at_rest(run: StoredRun, answered: str | None) -> bool:
    asks = any(pause.token != answered for pause in run.pauses)
    waits = run.is_asleep and run.wake_at is None
    return has_ended(run.status) or waits or (run.status == "paused" and asks)


def _stored_rest(store: Store, run_id: RunId) -> _Rest:
    """Return a run from its records. Blocks."""
    run, state = store.get(run_id), projected(store, run_id)
    return _Rest(
        status=run.status,
        output=state.output,
        error=_stored_error(run, state),
        tokens_by_path={pause.path: pause.token for pause in run.pauses},
        wakes_at=run.wake_at,
        usage=state.usage,
        duration_s=run.worked_s,
    )


def _stored_error(run: StoredRun, state: RunState) -> str | None:
    if run.status not in ("failed", "aborted"):
        return None
    return state.feedback or (None if state.error is None else message_of_stored(state.error)) or run.status


def message_of_stored(error: object) -> str:
    """Return the message of an exception, or of its stored description."""
    return message_of(error) if isinstance(error, BaseException) else str(getattr(error, "message", error))


def _of_result(result: PipelineResult) -> _Rest:
    """Return a run of this process that has no store."""
    usage = sum((step.usage for step in result.step_history), NO_USAGE)
    token = result.state_token
    failed = result.status in ("failed", "aborted")
    return _Rest(
        status=result.status,
        output=result.output,
        error=(result.feedback or result.status) if failed else None,
        tokens_by_path={} if token is None else {parse_token(token)[1]: token},
        wakes_at=result.wakes_at,
        usage=usage,
    )


# --- Evaluators and their metered models --------------------------------------------------------------------------

_NO_SPANS = (
    "flujo.evaluate records no spans: a case may run in another process. Use an evaluator of the output instead, or "
    "Dataset.evaluate"
)


def require_evals() -> None:
    """Raise `ImportError` unless pydantic-evals is installed."""
    try:
        import pydantic_evals.evaluators  # noqa: F401  (of an extra)
    except ImportError as error:
        raise ImportError("flujo.evaluate needs pydantic-evals: pip install 'flujo-actors[evals]'") from error


@functools.cache
def _output_type() -> TypeAdapter[Any]:
    from pydantic_evals.evaluators import EvaluatorOutput

    return TypeAdapter(EvaluatorOutput, config={"revalidate_instances": "always"})


@attrs.frozen(kw_only=True)
class Judge:
    """One evaluator, called with the budget and the prices of an evaluation."""

    evaluator: Evaluator[object, object, object]
    prices: UsageSettings
    quotas: tuple[Quota, ...] = ()

    async def judged(self, context: EvaluatorContext[object, object, object]) -> dict[str, Any]:
        """Return results or failure, and the spend (rules 6 to 9)."""
        call = AgentCall(caller=self.name, pricing=Pricing(self.prices), quotas=self.quotas)
        results: list[tuple[str, str, object, str | None]] = []
        failure, stopped = None, False
        try:
            results = _results(await self._called(context, call), self.name)
        except UsageLimitExceededError:
            stopped = True
        except BaseException as error:  # an evaluator is user code: rule 9
            if not await _is_failure(error):
                raise
            failure = redacted(f"{type(error).__name__}: {message_of(error)}{await self._hint(error)}")
        spent = call.finish()
        return _judgement(self.name, results, failure, spent, stopped=stopped)

    async def _hint(self, error: BaseException) -> str:
        """Return the remedy for an evaluator on the wrong library, in parentheses."""
        if _has_model(self.evaluator) or _is_sync(self.evaluator):
            return ""  # on asyncio or in a thread, whatever the backend
        hint = library_hint(error, await current_host(), evaluator=True)
        return "" if hint is None else f" ({hint})"

    @property
    def name(self) -> str:
        """Return the default name of the evaluator's result."""
        return str(self.evaluator.get_default_evaluation_name())

    async def _called(self, context: EvaluatorContext[object, object, object], call: AgentCall) -> object:
        if _has_model(self.evaluator):
            return await _on_asyncio(functools.partial(self._charged, context, call))
        return await self._evaluated(self.evaluator, context)

    async def _evaluated(
        self, evaluator: Evaluator[object, object, object], context: EvaluatorContext[object, object, object]
    ) -> object:
        if not _is_sync(evaluator):
            return await evaluator.evaluate_async(context)
        found = await _in_thread(functools.partial(evaluator.evaluate, context), left=self.name)
        return await found if inspect.isawaitable(found) else found

    async def _charged(self, context: EvaluatorContext[object, object, object], call: AgentCall) -> object:
        """Call a judge, and charge its requests to the call (rule 8)."""
        own = _metered(self.evaluator)
        if getattr(own, "model", None) is not None:
            with call.current():
                return await self._evaluated(own, context)
        reserved = await call.reserve()
        with capture_run_messages() as messages:
            try:
                return await self._evaluated(own, context)
            finally:
                call.charge([each for each in messages if isinstance(each, ModelResponse)], reserved)


def context_of(
    case: Case[object, object, object], name: str, run_id: str, run: Mapping[str, Any]
) -> EvaluatorContext[object, object, object]:
    """Return an evaluator's view of a completed case run."""
    from pydantic_evals.evaluators import EvaluatorContext
    from pydantic_evals.otel import SpanTreeRecordingError

    return EvaluatorContext(
        name=name,
        inputs=case.inputs,
        metadata=case.metadata,
        expected_output=case.expected_output,
        output=run["output"],
        duration=run["duration_s"],
        _span_tree=SpanTreeRecordingError(_NO_SPANS),
        attributes={"run_id": run_id},
        metrics={name: run[name] for name in ("tokens", "requests", "cost_usd", "tool_calls")},
    )


def _judgement(
    name: str,
    results: Sequence[tuple[str, str, object, str | None]],
    failure: str | None,
    spent: Usage,
    *,
    stopped: bool,
) -> dict[str, object]:
    return {
        MARK: "judged",
        "name": name,
        "results": [list(each) for each in results],
        "failure": failure,
        "stopped": stopped,
        "cost_usd": spent.cost_usd,
        "tokens": spent.tokens,
    }


def _is_sync(evaluator: Evaluator[object, object, object]) -> bool:
    from pydantic_evals.evaluators import Evaluator

    own = type(evaluator).evaluate_async is not Evaluator.evaluate_async
    return not own and not inspect.iscoroutinefunction(evaluator.evaluate)


def _results(output: object, name: str) -> list[tuple[str, str, object, str | None]]:
    """Return name, kind, value and reason of each result."""
    try:
        valid = _output_type().validate_python(output)
    except ValidationError:
        raise ValueError(f"the evaluator returned a value of an invalid type: {output!r:.200}") from None
    named = valid if isinstance(valid, Mapping) else {name: valid}
    return [_result(key, each) for key, each in named.items()]


def _result(name: str, output: object) -> tuple[str, str, object, str | None]:
    from pydantic_evals.evaluators import EvaluationReason

    explained = output if isinstance(output, EvaluationReason) else EvaluationReason(value=output)
    value, reason = explained.value, explained.reason
    kind = "assertions" if isinstance(value, bool) else "labels" if isinstance(value, str) else "scores"
    if kind == "scores":
        float(value)  # a whole number may be too large for statistics
    return name, kind, value, None if reason is None else redacted(reason)


async def _is_failure(error: BaseException) -> bool:
    """Return whether an evaluator failed; raise if its caller is cancelled."""
    if isinstance(error, Exception):
        return True
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | BaseExceptionGroup):
        return False
    await anyio.lowlevel.checkpoint_if_cancelled()
    task = None if trio.lowlevel.in_trio_task() else asyncio.current_task()
    return task is None or not task.cancelling()


def _has_model(evaluator: Evaluator[object, object, object]) -> bool:
    """Return whether an evaluator has a field for a model."""
    fields = {field.name for field in dataclasses.fields(evaluator)} if dataclasses.is_dataclass(evaluator) else set()
    return "model" in fields and isinstance(getattr(evaluator, "model", None), Model | str | None)


def _metered(evaluator: Evaluator[object, object, object]) -> Evaluator[object, object, object]:
    """Return a copy of the judge with a metered model, if any."""
    model = getattr(evaluator, "model", None)
    if isinstance(model, str):
        try:
            model = model_named(model)
        except UserError:  # a model of another kind
            return evaluator
    if model is None:
        return evaluator
    own = copy.copy(evaluator)
    object.__setattr__(own, "model", MeteredModel(model))
    return own


async def _on_asyncio(make: Callable[[], Awaitable[object]]) -> object:
    """Call an asynchronous function on an asyncio loop, from any host."""
    if trio.lowlevel.in_trio_task():
        return await TRIO.asyncio().call(make)
    return await make()


# --- Reports of pydantic-evals ------------------------------------------------------------------------------------


def pydantic_report(evaluation: Evaluation) -> EvaluationReport[object, object, object]:
    """Return the evaluation as a report of pydantic-evals."""
    require_evals()
    from pydantic_evals.reporting import EvaluationReport, ReportCase, ReportCaseFailure

    known = _cases_by_name(evaluation.dataset)
    repeated = max((case.repeat for case in evaluation.cases), default=1)
    common = [(case, _common(case, known.get(case.name), repeated)) for case in evaluation.cases]
    return EvaluationReport(
        name=evaluation.run_id,
        cases=[ReportCase(**facts, **_judged_facts(case)) for case, facts in common if case.completed],
        failures=[
            ReportCaseFailure(**facts, error_message=case.error or case.status, error_stacktrace="")
            for case, facts in common
            if not case.completed
        ],
        dataset_name=evaluation.name,
    )


def _cases_by_name(dataset: Any) -> dict[str, Case[object, object, object]]:
    cases = () if dataset is None else dataset.cases
    return {case.name or f"Case {number}": case for number, case in enumerate(cases, 1)}


def _common(case: CaseResult, found: Case[object, object, object] | None, repeated: int) -> dict[str, object]:
    given = {name: getattr(found, name, None) for name in ("inputs", "metadata", "expected_output")}
    name = case.name if repeated == 1 else f"{case.name} [{case.repeat}/{repeated}]"
    return {"name": name, "source_case_name": None if repeated == 1 else case.name, **given}


def _judged_facts(case: CaseResult) -> dict[str, object]:
    """Return the fields of a completed case in a report of pydantic-evals."""
    from pydantic_evals.evaluators import EvaluationResult, EvaluatorFailure, EvaluatorSpec

    def result(name: str, value: object) -> Any:
        source = EvaluatorSpec(name=name, arguments=None)
        return EvaluationResult(name=name, value=value, reason=case.reasons.get(name), source=source)

    def failure(name: str, text: str) -> Any:
        source = EvaluatorSpec(name=name, arguments=None)
        return EvaluatorFailure(name=name, error_message=text, error_stacktrace="", source=source)

    kinds = {"scores": case.scores, "labels": case.labels, "assertions": case.assertions}
    return {
        **{kind: {name: result(name, value) for name, value in values.items()} for kind, values in kinds.items()},
        "output": case.output,
        "metrics": {"tokens": case.tokens, "cost_usd": case.cost_usd},
        "attributes": {"run_id": case.run_id},
        "task_duration": case.duration_s,
        "total_duration": case.duration_s,
        "evaluator_failures": [failure(name, text) for name, text in case.evaluator_failures.items()],
    }
