"""Run of an evaluation: a durable pipeline over the cases.

Rules:

1. The evaluation is itself a run: one item per case run, and in it one item per evaluator. Each result is committed
   before the next unit begins, so that no ended case and no finished judgement is repeated after a crash.
2. Units in flight are at most `max_concurrency`: the evaluators of a case are called one after the other.
3. A round ends when every unit has a result. If the budget stopped some, the run pauses; a larger bound answers it,
   and the next round has only these units.
4. A unit that an earlier round has finished is not executed again.
5. The identity is the input of the run. Another one under the same id is refused before anything runs. A case is known
   by name, inputs, expected output and metadata, an evaluator by its `as_spec()`, a pipeline by its fingerprint.
   Budget, gates and baseline are no part of it.
6. A digest does not depend on the process: sets are sorted, and objects without data are known by their type.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio.to_thread
import attrs
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..._core.error_info import leaves_of
from ..._core.outcomes import PipelineResult, RunId
from ..._core.policies.shared_budgets import ParentQuota
from ..._core.quota import Amount, Quota
from ..._core.records.run_state import RunState
from ..._core.settings_model import UsageSettings
from ..._core.usage import UsageLimits
from ..._core.validators import brief_repr, is_count, is_number
from ..._dsl.pipeline import Pipeline
from ..._dsl.step_declaration import Step
from ..._durable.fingerprint import Fingerprint, form_of, read_fingerprint
from ..._durable.pipeline_diff import changes_between
from ..._durable.run_admission import projected
from ..._durable.run_registry import checked_id
from ..._durable.run_states import live_workers
from ..._fleet.budget_ledger import ParentBudget
from ..._fleet.engine_port import checked_queue
from ..._fleet.health_probe import KNOWN_FOR_S
from ...errors import DeclarationError, EvaluationMismatch, NotPaused, RunExists, RunNotFound
from ...stores._store_port import Store
from .case_runs import CaseFlujo, CaseRuns, Judge, Unit, context_of, require_evals
from .evaluation_results import (
    FORMAT,
    GATE_WORDS,
    MARK,
    Baseline,
    Evaluation,
    EvaluationStatus,
    Judgements,
    evaluation_of,
    read_evaluation,
    unit_name,
    with_comparison,
)
from .gates import Gate, parse_gates

if TYPE_CHECKING:
    from pydantic_evals import Case, Dataset
    from pydantic_evals.evaluators import Evaluator

logger = logging.getLogger("flujo_actors")

_MOST_ROUNDS = 10_000
_LOST_RACES = 10
"""Races with other processes that a call may lose before their error is raised."""


@attrs.frozen(kw_only=True)
class EvaluationOptions:
    """Arguments of `Flujo.evaluate`, as they were given."""

    dataset: object
    evaluators: Iterable[object] = ()
    run_id: str | None = None
    baseline: object = None
    gates: Iterable[str] | str = ()
    repeat: int = 1
    max_concurrency: int = 8
    max_cost_usd: float | None = None
    queue: str | None = None
    lower_is_better: Iterable[str] = ()
    progress: Callable[[int, int], None] | None = None
    """Called with the numbers of finished and of all case runs."""


class EvaluatedFlujo(Protocol):
    """The `Flujo` whose pipeline is evaluated, and maker of the others."""

    pipeline: Pipeline

    @property
    def store(self) -> Store | None:
        """Return the store of the runs."""

    def usage_settings(self) -> UsageSettings:
        """Return prices and assumptions about calls."""

    def for_cases(self, parent: str, *, charged: bool, quota: Quota | None) -> CaseFlujo:
        """Return a `Flujo` whose runs belong to a parent."""

    def for_evaluation(self, pipeline: Pipeline, budget: ParentBudget | None) -> CaseFlujo:
        """Return the `Flujo` of the evaluation's own run."""


async def evaluate(flujo: EvaluatedFlujo, options: EvaluationOptions) -> Evaluation:
    """Run, continue or read an evaluation; see `Flujo.evaluate`."""
    require_evals()
    plan = await anyio.to_thread.run_sync(prepared, flujo, options)
    return await EvaluationRun(plan=plan, flujo=flujo).evaluated()


# --- preparation --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Plan:
    """A checked evaluation: cases, identity, baseline and gates."""

    run_id: RunId
    dataset: Dataset[object, object, object]
    identity: Mapping[str, Any]
    units: Mapping[str, Unit]
    gates: tuple[Gate, ...]
    baseline: Baseline | None
    lower_is_better: Sequence[str]
    options: EvaluationOptions

    def compared(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation with comparison and gates."""
        return with_comparison(evaluation, self.baseline, self.gates, self.lower_is_better)


def prepared(flujo: EvaluatedFlujo, options: EvaluationOptions) -> Plan:
    """Return the plan; all arguments are checked before anything runs. Blocks."""
    _check(options, flujo.store)
    gates = parse_gates(options.gates, GATE_WORDS, baseline=options.baseline is not None)
    dataset, evaluators = loaded_dataset(options.dataset, options.evaluators)
    baseline, is_stored = _baseline(options.baseline, flujo.store)
    lower = _lower_metrics(options.lower_is_better)
    asked = {
        "baseline": None if baseline is None else baseline.run_id,
        "before": None if baseline is None or is_stored else baseline.metrics,
        "gates": [gate.text for gate in gates],
        "lower_is_better": lower,
    }
    return Plan(
        run_id=checked_id(options.run_id),
        dataset=dataset,
        identity=identity_of(dataset, evaluators, flujo.pipeline, repeat=options.repeat, asked=asked),
        units={unit.key: unit for unit in _units(dataset, evaluators, options.repeat)},
        gates=gates,
        baseline=baseline,
        lower_is_better=lower,
        options=options,
    )


def _check(options: EvaluationOptions, store: Store | None) -> None:
    for name in ("repeat", "max_concurrency"):
        value = getattr(options, name)
        if not is_count(value):
            raise DeclarationError(f"evaluate: {name} must be a whole number of at least 1, not {brief_repr(value)}")
    bound = options.max_cost_usd
    if bound is not None and not _is_money(bound):
        raise DeclarationError(f"evaluate: max_cost_usd must be dollars > 0, not {brief_repr(bound)}")
    if options.queue is not None:
        checked_queue(options.queue, subject="evaluate: queue")
        if store is None:
            raise DeclarationError("evaluate: queue needs a store that workers share: pass `store` to Flujo")
    if bound is not None and store is not None and not hasattr(store, "draw"):
        raise DeclarationError(f"evaluate: max_cost_usd needs budgets, and {type(store).__name__} has no `draw`")


def _lower_metrics(given: object) -> list[str]:
    if isinstance(given, Iterable) and not isinstance(given, str):
        listed = list(given)
        if all(isinstance(each, str) for each in listed):
            return listed
    raise DeclarationError(f"evaluate: lower_is_better must be a list of metrics, not {given!r:.100}")


def _is_money(value: object) -> bool:
    return is_number(value) and value > 0


def loaded_dataset(
    given: object, evaluators: Iterable[object]
) -> tuple[Dataset[object, object, object], list[Evaluator[object, object, object]]]:
    """Return the dataset, given or read, and the further evaluators.

    Classes among the evaluators are those that a file may name; instances judge every case. Blocks.
    """
    from pydantic_evals import Dataset

    classes, instances = _evaluators(evaluators)
    if isinstance(given, str | os.PathLike):
        dataset = _from_file(Path(given), classes)
    elif isinstance(given, Dataset):
        dataset = given
    else:
        raise DeclarationError(f"evaluate: dataset must be a pydantic_evals.Dataset or a path, not {given!r:.100}")
    if not dataset.cases:
        raise DeclarationError(f"evaluate: the dataset {dataset.name!r} has no cases")
    if dataset.report_evaluators:
        logger.warning("evaluate calls no report evaluators: those of the dataset %r are left out", dataset.name)
    return dataset, instances


def _evaluators(given: object) -> tuple[list[Any], list[Any]]:
    from pydantic_evals.evaluators import Evaluator

    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(f"evaluate: evaluators must be a list of evaluators, not {given!r:.100}")
    listed = list(given)
    classes = [each for each in listed if isinstance(each, type) and issubclass(each, Evaluator)]
    instances = [each for each in listed if isinstance(each, Evaluator)]
    if len(classes) + len(instances) < len(listed):
        wrong = next(each for each in listed if each not in classes and each not in instances)
        raise DeclarationError(f"evaluate: evaluators must be evaluators of pydantic-evals, not {wrong!r:.100}")
    return classes, instances


def _from_file(path: Path, classes: Sequence[Any]) -> Dataset[object, object, object]:
    from pydantic_evals import Dataset
    from yaml import YAMLError  # a dependency of pydantic-evals

    try:
        return Dataset[object, object, object].from_file(path, custom_evaluator_types=classes)
    except (OSError, ValueError, YAMLError, ExceptionGroup) as error:
        reason = "; ".join(map(str, leaves_of(error) if isinstance(error, ExceptionGroup) else (error,)))
        hint = ": evaluators=[Name], or --evaluators MODULE:NAME" if "custom_evaluator_types" in reason else ""
        raise DeclarationError(f"evaluate: the dataset {str(path)!r} cannot be read: {reason}{hint}") from error


def _units(
    dataset: Dataset[object, object, object], evaluators: Sequence[Evaluator[object, object, object]], repeat: int
) -> Iterable[Unit]:
    for name, case in zip(case_names(dataset), dataset.cases, strict=True):
        judges = (*dataset.evaluators, *case.evaluators, *evaluators)
        for number in range(1, repeat + 1):
            yield Unit(key=unit_name(name, number, repeat), name=name, case=case, evaluators=judges)


def _baseline(given: object, store: Store | None) -> tuple[Baseline | None, bool]:
    """Return the baseline, and whether the store has it."""
    if given is None:
        return None, False
    if isinstance(given, Evaluation):
        return Baseline.of(given), False
    if not isinstance(given, str | os.PathLike):
        raise DeclarationError(f"evaluate: baseline must be an id, an Evaluation or a file, not {given!r:.100}")
    if isinstance(given, str):
        found = None if store is None else _stored_baseline(store, given)
        if found is not None:
            return found, True
        if not (given.endswith(".json") or os.path.isfile(given)):
            where = "the Flujo has no store" if store is None else "neither an evaluation of this store nor a file"
            raise RunNotFound(f"there is no evaluation {given!r}: {where}")
    return Baseline.of(read_evaluation(given)), False


# --- the run ------------------------------------------------------------------------------------------------


@attrs.define(kw_only=True)
class EvaluationRun:
    """One call of `evaluate`: starts or continues the run of an evaluation."""

    plan: Plan
    flujo: EvaluatedFlujo
    found: Judgements = attrs.field(factory=Judgements)
    budget: ParentBudget | None = None
    _cases: CaseRuns = attrs.field(init=False)
    _quota: Quota | None = None
    _finished: set[str] = attrs.field(factory=set)

    async def evaluated(self) -> Evaluation:
        """Return the evaluation, when every unit has a result or was stopped."""
        for _ in range(_LOST_RACES):
            try:
                return await self._attempted()
            except (RunExists, NotPaused):  # another process started, continued or ended it meanwhile
                if self.flujo.store is None:
                    raise
        return await self._attempted()

    async def _attempted(self) -> Evaluation:
        state = await anyio.to_thread.run_sync(self._stored)
        if state is None:
            return await self._ended(await self._opened().run_async(self.plan.identity, run_id=self.plan.run_id))
        check_identity(self.plan.run_id, state.input, self.plan.identity, self.flujo.pipeline)
        self.found = Judgements.of(state.outcomes.values())
        self._finished = {key for key in self.plan.units if not self.found.is_open(key)}
        return await self._continued(state)

    def _stored(self) -> RunState | None:
        return None if self.flujo.store is None else state_of(self.flujo.store, self.plan.run_id)

    async def _continued(self, state: RunState) -> Evaluation:
        bound = self.plan.options.max_cost_usd
        full = bound is not None and bound <= self.found.spent_usd
        if state.status == "completed" or (state.pauses and full):
            return await self._read()
        run = self._opened(again=True)
        if state.pauses:
            token = await anyio.to_thread.run_sync(self._token)
            return await self._ended(await run.resume_async(token, self._left(None)))
        if state.status in ("failed", "aborted"):
            return await self._ended(await run.retry_async(self.plan.run_id))
        return await self._ended(await run.resume_async(self.plan.run_id, wait=False))

    def _token(self) -> str:
        assert self.flujo.store is not None
        return self.flujo.store.get(self.plan.run_id).pauses[0].token

    async def _ended(self, result: PipelineResult) -> Evaluation:
        if self.flujo.store is not None:
            return await self._read()
        status = _STATUSES.get(result.status, "running")
        duration_s = math.fsum(step.latency_s for step in result.step_history)
        return self._evaluation(self.found, status, duration_s)

    async def _read(self) -> Evaluation:
        """Return the evaluation as another process reads it."""
        assert self.flujo.store is not None
        _, found, status, duration_s = await anyio.to_thread.run_sync(facts_of, self.flujo.store, self.plan.run_id)
        return self._evaluation(found, status, duration_s)

    def _evaluation(self, found: Judgements, status: EvaluationStatus, duration_s: float) -> Evaluation:
        plan = self.plan
        return plan.compared(
            evaluation_of(plan.run_id, plan.identity, found, status=status, duration_s=duration_s, dataset=plan.dataset)
        )

    # --- its pipeline ---

    def _opened(self, *, again: bool = False) -> CaseFlujo:
        """Return the `Flujo` of this run, with the budget of its cases."""
        plan, store, bound = self.plan, self.flujo.store, self.plan.options.max_cost_usd
        limits = UsageLimits(total_cost_usd_limit=bound)
        if store is None and bound is not None:
            self._quota = _memory_quota(limits, plan.run_id, self.flujo.usage_settings())
        elif store is not None and (bound is not None or (again and hasattr(store, "draw"))):
            self.budget = ParentBudget(store, plan.run_id, limits=limits)
        charged = bound is not None
        self._cases = CaseRuns(
            flujo=self.flujo.for_cases(plan.run_id, charged=charged, quota=self._quota),
            store=store,
            parent=plan.run_id,
            queue=plan.options.queue,
        )
        if store is not None and plan.options.queue is not None:
            _warn_without_worker(store, plan.options.queue)
        return self.flujo.for_evaluation(self._pipeline(), self.budget)

    def _pipeline(self) -> Pipeline:
        judges = Step.map_over("judges", Step("judge", self._judge), items=self._judgements_of, max_concurrency=1)
        case = Step.sequence("case", Pipeline([Step("run", self._run), judges]))
        cases = Step.map_over("cases", case, items=self._units, max_concurrency=self.plan.options.max_concurrency)
        budget = Step.branch_on(
            "budget",
            _is_left,
            {True: Step.human_in_the_loop("bound", self._question), False: Step("end", _unchanged)},
        )
        turn = Step.sequence("round", Pipeline([cases, Step("left", self._left), budget]))
        rounds = Step.loop_until("rounds", turn, _is_done, max_loops=_MOST_ROUNDS)
        return Pipeline([rounds], name=f"evaluation of {self.flujo.pipeline.title}")

    def _units(self, left: object, context: object) -> list[str]:
        """Return the units of a round: all, or the remaining ones."""
        return [key for key in left if key in self.plan.units] if isinstance(left, list) else list(self.plan.units)

    async def _run(self, key: str) -> Mapping[str, Any]:
        known = self.found.runs.get(key)
        if known is None or known["status"] in ("stopped", "not run"):
            unit = self.plan.units[key]
            known = _not_run(key) if self._is_spent() else await self._cases.executed(unit)
            self.found.add(known)
        return known

    def _judgements_of(self, run: Mapping[str, Any], context: object) -> list[dict[str, object]]:
        evaluators = self.plan.units[run["unit"]].evaluators
        if run["status"] != "completed" or not evaluators:
            self._report(run["unit"])
            return []
        return [{"run": run, "evaluator": number} for number in range(len(evaluators))]

    async def _judge(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        run, number = item["run"], item["evaluator"]
        unit = self.plan.units[run["unit"]]
        known = self.found.judged.get(unit.key, {}).get(number)
        if known is None or known["stopped"]:
            judge = Judge(evaluator=unit.evaluators[number], prices=self.flujo.usage_settings(), quotas=self._quotas)
            context = context_of(unit.case, unit.name, self._cases.run_id(unit), run)
            known = {**_with_spend(await judge.judged(context), known), "unit": unit.key, "evaluator": number}
            self.found.add(known)
        if number + 1 == len(unit.evaluators):
            self._report(unit.key)
        return known

    def _left(self, results: object) -> list[str]:
        """Return the units that the budget stopped, or did not reach."""
        return [key for key in self.plan.units if self.found.is_open(key)]

    def _question(self, left: list[str], context: object) -> str:
        bound = self.plan.options.max_cost_usd or 0.0
        return (
            f"The budget of ${bound:g} is reached, and {len(left)} case runs are left: call evaluate with the same "
            "run_id and a larger max_cost_usd"
        )

    # --- its budget ---

    @property
    def _shared(self) -> Quota | None:
        return self._quota if self.budget is None else self.budget.quota

    @property
    def _quotas(self) -> tuple[Quota, ...]:
        return () if self._shared is None else (self._shared,)

    def _is_spent(self) -> bool:
        bound, quota = self.plan.options.max_cost_usd, self._shared
        return bound is not None and quota is not None and quota.spent.cost_usd >= bound

    def _report(self, key: str) -> None:
        """Report progress: a case run has ended and is judged."""
        self._finished.add(key)
        if self.plan.options.progress is not None:
            self.plan.options.progress(len(self._finished), len(self.plan.units))


def _not_run(key: str) -> dict[str, object]:
    nothing = {"cost_usd": 0.0, "tokens": 0, "requests": 0, "tool_calls": 0, "duration_s": 0.0}
    return {MARK: "run", "unit": key, "status": "not run", "output": None, "error": None, **nothing}


def _with_spend(judged: Mapping[str, Any], stopped: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a judgement with the spend of its stopped attempt."""
    spent = {name: judged[name] + (0 if stopped is None else stopped[name]) for name in ("cost_usd", "tokens")}
    return {**judged, **spent}


def _is_left(left: list[str], context: object) -> bool:
    return bool(left)


def _is_done(left: list[str], context: object) -> bool:
    return not left


def _unchanged(left: list[str]) -> list[str]:
    return left


def _memory_quota(limits: UsageLimits, run_id: RunId, usage: UsageSettings) -> Quota:
    guess = Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd)
    return ParentQuota(limits, parent=run_id, guess=guess)


def _warn_without_worker(store: Store, queue: str) -> None:
    if not any(queue in worker.queues for worker in live_workers(store, within_s=KNOWN_FOR_S)):
        logger.warning(
            "no worker is known for queue %r: the cases wait until one is started, as with "
            "`flujo-actors worker TARGET --queue %s --store URL`",
            queue,
            shlex.quote(queue),
        )


# --- stored evaluations -------------------------------------------------------------------------------------

_STATUSES: Mapping[str, EvaluationStatus] = {
    "completed": "completed",
    "paused": "stopped",
    "failed": "failed",
    "aborted": "aborted",
}


def state_of(store: Store, run_id: RunId) -> RunState | None:
    """Return the state of an evaluation's run, if it exists. Blocks."""
    try:
        store.get(run_id)
    except RunNotFound:
        return None
    return projected(store, run_id)


def facts_of(store: Store, run_id: RunId) -> tuple[Mapping[str, Any], Judgements, EvaluationStatus, float]:
    """Return identity, outputs, status and duration of a stored evaluation. Blocks."""
    run, state = store.get(run_id), projected(store, run_id)
    if not is_identity(state.input):
        raise RunNotFound(f"run {run_id!r} is no evaluation")
    assert isinstance(state.input, Mapping)
    return state.input, Judgements.of(state.outcomes.values()), _STATUSES.get(run.status, "running"), run.worked_s


def stored_evaluation(store: Store, run_id: str) -> Evaluation:
    """Return an evaluation from its records, with its comparison and gates. Blocks.

    Neither its pipeline nor pydantic-evals is needed.
    """
    identity, found, status, duration_s = facts_of(store, RunId(run_id))
    evaluation = evaluation_of(run_id, identity, found, status=status, duration_s=duration_s)
    asked = identity["asked"]
    before = _asked_baseline(store, run_id, asked)
    gates = parse_gates(asked["gates"], GATE_WORDS, baseline=True)
    known = [gate for gate in gates if before is not None or not gate.needs_baseline]
    return with_comparison(evaluation, before, known, asked["lower_is_better"], stored=True)


def _asked_baseline(store: Store, run_id: str, asked: Mapping[str, Any]) -> Baseline | None:
    """Return the baseline an evaluation was started with, if known."""
    baseline = asked["baseline"]
    if asked.get("before") is not None:
        return Baseline(run_id=baseline, metrics=asked["before"])
    return None if baseline in (None, run_id) else _stored_baseline(store, baseline)


def _stored_baseline(store: Store, run_id: str) -> Baseline | None:
    try:
        identity, found, status, duration_s = facts_of(store, RunId(run_id))
    except RunNotFound:
        return None
    return Baseline.of(evaluation_of(run_id, identity, found, status=status, duration_s=duration_s))


# --- identity -----------------------------------------------------------------------------------------------


def case_names(dataset: Dataset[object, object, object]) -> list[str]:
    """Return the names of the cases, as pydantic-evals gives them."""
    names = [case.name or f"Case {number}" for number, case in enumerate(dataset.cases, 1)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DeclarationError(f"evaluate: two cases of the dataset are named {twice!r}; name every case")
    return names


def identity_of(
    dataset: Dataset[object, object, object],
    evaluators: Sequence[Evaluator[object, object, object]],
    pipeline: Pipeline,
    *,
    repeat: int,
    asked: Mapping[str, object],
) -> dict[str, object]:
    """Return the identity as plain data, with the requested options."""
    return {
        MARK: FORMAT,
        "name": dataset.name,
        "cases": [_case(name, case) for name, case in zip(case_names(dataset), dataset.cases, strict=True)],
        "evaluators": [_evaluator(each) for each in (*dataset.evaluators, *evaluators)],
        "pipeline": Fingerprint.of(pipeline).data(),
        "repeat": repeat,
        "asked": dict(asked),
    }


def _case(name: str, case: Case[object, object, object]) -> dict[str, object]:
    data = [name, case.inputs, case.expected_output, case.metadata]
    return {"name": name, "digest": digest_of(data), "evaluators": [_evaluator(each) for each in case.evaluators]}


def _evaluator(evaluator: Evaluator[object, object, object]) -> dict[str, str]:
    spec = evaluator.as_spec()
    return {"name": evaluator.get_default_evaluation_name(), "digest": digest_of([spec.name, spec.arguments])}


def digest_of(value: object) -> str:
    """Return sixteen hexadecimal digits that depend on the value alone (rule 6)."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=_type_name)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case set() | frozenset():
            return sorted((_plain(each) for each in value), key=lambda each: json.dumps(each, default=_type_name))
        case str() | bool() | int() | float() | None:
            return value
        case _:
            return [_type_name(value), _fields(value)]


def _fields(value: object) -> object:
    """Return the data of an object, if it has a JSON form."""
    try:
        return to_jsonable_python(value, fallback=_type_name)
    except (PydanticSerializationError, ValueError):
        return None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def check_identity(run_id: str, stored: object, now: Mapping[str, Any], pipeline: Pipeline) -> Mapping[str, Any]:
    """Return the stored identity, or raise `EvaluationMismatch` (rule 5)."""
    if not is_identity(stored):
        raise EvaluationMismatch(f"run {run_id!r} is no evaluation. Use another run_id.")
    assert isinstance(stored, Mapping)
    for sentence in _differences(stored, now, pipeline):
        raise EvaluationMismatch(f"evaluation {run_id!r} was started with {sentence}. Use another run_id.")
    return stored


def is_identity(data: object) -> bool:
    """Return whether the input of a run is that of an evaluation."""
    return isinstance(data, Mapping) and data.get(MARK) == FORMAT


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], pipeline: Pipeline) -> Iterator[str]:
    yield from (f"another dataset: {each}" for each in _of_cases(before["cases"], now["cases"]))
    yield from (f"another pipeline: {each}" for each in _of_pipelines(before["pipeline"], pipeline))
    yield from (f"other evaluators: {each}" for each in _of_evaluators(before["evaluators"], now["evaluators"]))
    for old, new in zip(before["cases"], now["cases"], strict=True):
        changes = _of_evaluators(old["evaluators"], new["evaluators"])
        yield from (f"other evaluators: {each} in case {old['name']!r}" for each in changes)
    if before["repeat"] != now["repeat"]:
        yield f"repeat={before['repeat']}, not {now['repeat']}"


def _of_cases(before: Sequence[Mapping[str, object]], now: Sequence[Mapping[str, object]]) -> Iterator[str]:
    old, new = ({case["name"]: case["digest"] for case in cases} for cases in (before, now))
    yield from (f"case {name!r} changed" for name in old if name in new and old[name] != new[name])
    yield from (f"case {name!r} is missing" for name in old if name not in new)
    yield from (f"case {name!r} is new" for name in new if name not in old)
    if list(old) != list(new):
        yield "the order of its cases changed"


def _of_pipelines(before: object, pipeline: Pipeline) -> list[str]:
    after = Fingerprint.of(pipeline, form=form_of(before)).steps
    return changes_between(read_fingerprint(before), after, (), mode="strict")


def _of_evaluators(before: Sequence[Mapping[str, object]], now: Sequence[Mapping[str, object]]) -> Iterator[str]:
    pairs = zip(before, now, strict=False)
    yield from (f"{new['name']!r} changed" for old, new in pairs if old != new)
    yield from (f"{each['name']!r} is missing" for each in before[len(now) :])
    yield from (f"{each['name']!r} is new" for each in now[len(before) :])
