"""Results of an evaluation: cases, metrics, comparison, gates.

Rules:

1. An evaluation is built from the outputs of its run: one for each case run, one for each evaluator's call.
2. A later output of the same case run or evaluator replaces an earlier one: a stopped case continues in a later round.
3. A metric has one value per case run; a comparison uses the mean of a case's repeats.
4. Values of cost, tokens and duration count in a comparison if the run completed, and in a gate if it was executed.
5. A case passes when all its evaluators have judged it. Until then it is `not run`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Required

import attrs
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ..._core.outcomes import StepOutcome, Success
from ...errors import DeclarationError, GateError
from .. import evaluation as _evaluation
from .comparison import Comparison, Delta, Metrics, compared, mean
from .gates import Gate, GateResult, Measured, Vocabulary

if TYPE_CHECKING:
    from pydantic_evals.reporting import EvaluationReport

CaseStatus = Literal["passed", "failed", "error", "paused", "stopped", "not run"]
EvaluationStatus = Literal["completed", "stopped", "running", "failed", "aborted"]

MARK = "flujo_evaluation"
"""Key of the format number in stored inputs and JSON files."""
FORMAT = 1

PLAIN_METRICS = ("pass", "cost", "tokens", "duration", "errors")
GATE_WORDS = Vocabulary(plain=PLAIN_METRICS, families={"assert": "assertion", "score": "score"})


@attrs.frozen(kw_only=True)
class CaseResult:
    """Result of one case run: its status, its output and its judgements."""

    name: str
    """Name of the case."""
    run_id: str
    """Id of the case's run."""
    repeat: int = 1
    """Number of the repetition, from 1."""
    status: CaseStatus
    """Status of the case."""
    output: Any = None
    """Output of the pipeline."""
    error: str | None = None
    """Reason of a run that did not complete."""
    assertions: Mapping[str, bool] = attrs.field(factory=dict)
    """Verdict of each evaluator that returns a bool."""
    scores: Mapping[str, float] = attrs.field(factory=dict)
    """Value of each evaluator that returns a number."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """Text of each evaluator that returns a text."""
    reasons: Mapping[str, str] = attrs.field(factory=dict)
    """Reasons that evaluators gave, by the name of their result."""
    evaluator_failures: Mapping[str, str] = attrs.field(factory=dict)
    """Errors of evaluators that raised, by their name."""
    cost_usd: float = 0.0
    """Cost of the run, without judges."""
    judge_cost_usd: float = 0.0
    """Cost of the evaluators' model calls."""
    tokens: int = 0
    """Tokens of the case's run."""
    duration_s: float = 0.0
    """Seconds of the case's run."""

    @property
    def feedback(self) -> str | None:
        """Return the reason of a run that did not complete."""
        return self.error

    @property
    def completed(self) -> bool:
        """Return whether the run completed, whatever its evaluators found."""
        return self.status in ("passed", "failed") or bool(self.evaluator_failures)


@attrs.frozen(kw_only=True)
class Evaluation:
    """Result of `flujo.evaluate`: all cases, their totals, comparison and gates."""

    run_id: str
    """Id of the evaluation's run."""
    name: str
    """Name of the dataset."""
    status: EvaluationStatus
    """`completed`, `stopped` by the budget, or the state of an unfinished run."""
    cases: tuple[CaseResult, ...]
    """In the order of the dataset, then by repetition."""
    total_cost_usd: float = 0.0
    """Cost of runs and judges."""
    judge_cost_usd: float = 0.0
    """Cost of the evaluators' model calls."""
    total_tokens: int = 0
    """Tokens of all cases and evaluators."""
    duration_s: float = 0.0
    """Seconds from start to end."""
    comparison: Comparison | None = None
    """Differences from the baseline, if there is one."""
    gates: tuple[GateResult, ...] = ()
    """Result of each condition."""
    dataset: object = attrs.field(default=None, eq=False, repr=False)
    """Dataset of this process, for `to_pydantic`."""

    @property
    def passed(self) -> bool:
        """Return whether all gates hold, or without gates, every case passed."""
        if self.status != "completed":
            return False
        return all(gate.holds for gate in self.gates) if self.gates else all(map(_passed, self.cases))

    def pass_rate(self) -> float:
        """Return the share of case runs that passed; NaN without cases."""
        return mean(float(_passed(case)) for case in self.cases)

    def average(self, metric: str) -> float:
        """Return the mean of a metric: `cost`, `score.tone`, `assert.polite`.

        Args:
            metric: name of the metric.
        """
        values = metrics_of(self.cases)
        found = next((name for name in (metric, f"score.{metric}", f"assert.{metric}") if name in values), None)
        if found is None:
            raise ValueError(f"evaluation {self.run_id!r} has no metric {metric!r}; it has {', '.join(values)}")
        return mean(values[found].values())

    def to_pydantic(self) -> EvaluationReport[object, object, object]:
        """Return the report of pydantic-evals; it needs that package."""
        return _evaluation.pydantic_report(self)

    def to_text(self, width: int | None = None) -> str:
        """Return the report as text, in lines of `width` characters.

        Args:
            width: most columns of a line; by default no limit.
        """
        return _evaluation.text_report(self, width)

    def to_json(self) -> str:
        """Return the report as JSON; `baseline=` accepts a file of it."""
        return _evaluation.json_report(self)

    def to_junit(self) -> str:
        """Return the report as JUnit XML, with a test per case run."""
        return _evaluation.junit_report(self)

    def to_markdown(self) -> str:
        """Return the metrics, and the cases that changed or failed, as Markdown."""
        return _evaluation.markdown_report(self)


def _passed(case: CaseResult) -> bool:
    return case.status == "passed"


# --- outputs of the evaluation's run ------------------------------------------------------------------------


@attrs.define
class Judgements:
    """Outputs of an evaluation's run: by case run, and by evaluator's call."""

    runs: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)
    judged: dict[str, dict[int, Mapping[str, Any]]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, outcomes: Iterable[StepOutcome]) -> Judgements:
        """Return the outputs among the outcomes of a run's steps, in order."""
        found = cls()
        for outcome in outcomes:
            output = outcome.step_result.output if isinstance(outcome, Success) else None
            if isinstance(output, Mapping):
                found.add(output)
        return found

    def add(self, output: Mapping[str, Any]) -> None:
        """Add an output of the evaluation's run (rule 2)."""
        if output.get(MARK) == "run":
            self.runs[output["unit"]] = output
        elif output.get(MARK) == "judged":
            self.judged.setdefault(output["unit"], {})[output["evaluator"]] = output

    def of_unit(self, unit: str) -> list[Mapping[str, Any]]:
        """Return the outputs of one case run's evaluators, in order."""
        return [output for _, output in sorted(self.judged.get(unit, {}).items())]

    def is_open(self, unit: str) -> bool:
        """Return whether the budget stopped or skipped a case run."""
        run = self.runs.get(unit)
        if run is None or run["status"] in ("stopped", "not run"):
            return True
        return any(each["stopped"] for each in self.of_unit(unit))

    @property
    def spent_usd(self) -> float:
        """Return the cost of all runs and judges."""
        return math.fsum(each["cost_usd"] for each in self._outputs)

    @property
    def tokens(self) -> int:
        """Return the tokens of all runs and judges."""
        return sum(each["tokens"] for each in self._outputs)

    @property
    def _outputs(self) -> list[Mapping[str, Any]]:
        return [*self.runs.values(), *(output for each in self.judged.values() for output in each.values())]


def unit_name(case: str, repeat: int, of: int) -> str:
    """Return the last part of a case run's id."""
    name = case.replace("%", "%25").replace("/", "%2F").replace("#", "%23")
    return name if of == 1 else f"{name}#{repeat}"


def case_result(run_id: str, case: str, repeat: int, of: int, found: Judgements, *, judges: int) -> CaseResult:
    """Return the result of one case run, which has so many evaluators."""
    unit = unit_name(case, repeat, of)
    run, judged = found.runs.get(unit), found.of_unit(unit)
    merged = _merged(judged)
    facts = {} if run is None else {name: run[name] for name in ("output", "cost_usd", "tokens", "duration_s")}
    return CaseResult(
        name=case,
        run_id=f"{run_id}/{unit}",
        repeat=repeat,
        status=_status(run, judged, merged["assertions"], judges),
        error=None if run is None else run["error"],
        judge_cost_usd=math.fsum(each["cost_usd"] for each in judged),
        **facts,
        **merged,
    )


def _status(
    run: Mapping[str, Any] | None, judged: Sequence[Mapping[str, Any]], assertions: Mapping[str, bool], judges: int
) -> CaseStatus:
    if run is None or run["status"] == "not run":
        return "not run"
    if run["status"] in ("paused", "stopped"):
        return "paused" if run["status"] == "paused" else "stopped"
    if any(each["stopped"] for each in judged):
        return "stopped"
    if run["status"] != "completed" or any(each["failure"] is not None for each in judged):
        return "error"
    if len(judged) < judges:
        return "not run"
    return "passed" if all(assertions.values()) else "failed"


def _merged(judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of all evaluators; repeated names get a number."""
    merged: dict[str, dict[str, Any]] = {name: {} for name in ("assertions", "scores", "labels", "reasons")}
    failures: dict[str, str] = {}
    seen: set[str] = set()
    for each in judged:
        for name, kind, value, reason in each["results"]:
            unique = _numbered(name, seen)
            merged[kind][unique] = value
            if reason is not None:
                merged["reasons"][unique] = reason
        if each["failure"] is not None:
            failures[_numbered(each["name"], set(failures))] = each["failure"]
    return {**merged, "evaluator_failures": failures}


def _numbered(name: str, seen: set[str]) -> str:
    number, unique = 2, name
    while unique in seen:
        unique, number = f"{name}_{number}", number + 1
    seen.add(unique)
    return unique


def evaluation_of(
    run_id: str,
    identity: Mapping[str, Any],
    found: Judgements,
    *,
    status: EvaluationStatus,
    duration_s: float,
    dataset: object = None,
) -> Evaluation:
    """Return the evaluation of a run's input and outputs."""
    of, shared = identity["repeat"], len(identity["evaluators"])
    cases = tuple(
        case_result(run_id, case["name"], repeat, of, found, judges=shared + len(case["evaluators"]))
        for case in identity["cases"]
        for repeat in range(1, of + 1)
    )
    return Evaluation(
        run_id=run_id,
        name=identity["name"],
        status=status,
        cases=cases,
        total_cost_usd=found.spent_usd,
        judge_cost_usd=math.fsum(case.judge_cost_usd for case in cases),
        total_tokens=found.tokens,
        duration_s=duration_s,
        dataset=dataset,
    )


# --- metrics ------------------------------------------------------------------------------------------------


def metrics_of(cases: Iterable[CaseResult]) -> dict[str, dict[str, float]]:
    """Return metric values by case run, for gates (rule 4)."""
    found: dict[str, dict[str, float]] = {name: {} for name in PLAIN_METRICS}
    for case in cases:
        key = f"{case.name}#{case.repeat}"
        found["pass"][key], found["errors"][key] = float(_passed(case)), float(case.status == "error")
        if case.status != "not run":
            _add(found, key, cost=case.cost_usd, tokens=case.tokens, duration=case.duration_s)
        for name, value in _judged_values(case).items():
            found.setdefault(name, {})[key] = value
    return found


def compared_metrics(cases: Iterable[CaseResult]) -> dict[str, dict[str, float]]:
    """Return metric means by case, for comparisons (rules 3 and 4)."""
    found: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        values: dict[str, float] = {"pass": float(_passed(case)), "errors": float(case.status == "error")}
        if case.completed:
            values |= {"cost": case.cost_usd, "tokens": case.tokens, "duration": case.duration_s}
            values |= _judged_values(case)
        for name, value in values.items():
            found.setdefault(name, {}).setdefault(case.name, []).append(value)
    return {name: {case: mean(each) for case, each in values.items()} for name, values in found.items()}


def _add(found: dict[str, dict[str, float]], key: str, **values: float) -> None:
    for name, value in values.items():
        found[name][key] = value


def _judged_values(case: CaseResult) -> dict[str, float]:
    asserted = {f"assert.{name}": float(value) for name, value in case.assertions.items()}
    return {**asserted, **{f"score.{name}": float(value) for name, value in case.scores.items()}}


@attrs.frozen(kw_only=True)
class Baseline:
    """Metrics of an earlier evaluation, by case."""

    run_id: str
    metrics: Metrics

    @classmethod
    def of(cls, evaluation: Evaluation) -> Baseline:
        """Return the baseline that an evaluation is."""
        return cls(run_id=evaluation.run_id, metrics=compared_metrics(evaluation.cases))


def with_comparison(
    evaluation: Evaluation,
    baseline: Baseline | None,
    gates: Sequence[Gate],
    lower_is_better: Iterable[str],
    *,
    stored: bool = False,
) -> Evaluation:
    """Return the evaluation with its comparison and the results of its gates.

    A gate on a metric that does not exist does not hold in a stored evaluation. In a new one it is a `GateError` that
    has the evaluation in this form.
    """
    after = compared_metrics(evaluation.cases)
    comparison = None
    if baseline is not None:
        comparison = compared(baseline.run_id, baseline.metrics, after, lower_is_better=lower_is_better)
    judged = any(case.completed and not case.evaluator_failures for case in evaluation.cases)
    measured = Measured(
        subject=f"evaluation {evaluation.run_id!r}",
        values={name: values for name, values in metrics_of(evaluation.cases).items() if values or "." not in name},
        before=None if baseline is None else baseline.metrics,
        after=after,
        comparison=comparison,
        partial=stored or evaluation.status != "completed" or not judged,
    )
    if comparison is not None:  # the count of errors is a metric of gates only
        shown = tuple(delta for delta in comparison.deltas if delta.metric != "errors")
        comparison = attrs.evolve(comparison, deltas=shown)
    found = attrs.evolve(evaluation, comparison=comparison)
    try:
        return attrs.evolve(found, gates=tuple(gate.check(measured) for gate in gates))
    except GateError as error:
        lenient = attrs.evolve(measured, partial=True)
        error.evaluation = attrs.evolve(found, gates=tuple(gate.check(lenient) for gate in gates))
        raise


# --- files --------------------------------------------------------------------------------------------------


def read_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """Return the evaluation of a JSON file, or raise `DeclarationError`. Blocks."""
    where = os.fspath(path)
    try:
        data = json.loads(Path(where).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DeclarationError(f"baseline: {where!r} cannot be read as an evaluation: {error}") from error
    if not isinstance(data, dict) or data.get(MARK) != FORMAT:
        raise DeclarationError(f"baseline: {where!r} is no evaluation; write one with Evaluation.to_json()")
    try:
        _STORED_CASES.validate_python(data.get("cases"))
        return _from_data(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, ("cases", *first["loc"])))
        raise DeclarationError(f"baseline: {where!r} is invalid at {place}: {first['msg']}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DeclarationError(f"baseline: {where!r} is incomplete: {type(error).__name__}: {error}") from error


class _StoredCase(TypedDict, total=False):
    """Fields of a case in a file that a comparison reads."""

    name: Required[str]
    status: Required[str]
    assertions: Mapping[str, bool]
    scores: Mapping[str, float]
    evaluator_failures: Mapping[str, str]
    cost_usd: float
    tokens: int
    duration_s: float


_STORED_CASES = TypeAdapter(list[_StoredCase], config={"strict": True})


def _from_data(data: Mapping[str, Any]) -> Evaluation:
    comparison = data.get("comparison")
    return Evaluation(
        **{name: data[name] for name in _COPIED},
        cases=tuple(CaseResult(**_known(CaseResult, case)) for case in data["cases"]),
        comparison=None if comparison is None else _comparison(comparison),
        gates=tuple(GateResult(**_known(GateResult, gate)) for gate in data["gates"]),
    )


_COPIED = ("run_id", "name", "status", "total_cost_usd", "judge_cost_usd", "total_tokens", "duration_s")


def _comparison(data: Mapping[str, Any]) -> Comparison:
    deltas = tuple(Delta(**_known(Delta, each)) for each in data["deltas"])
    named = {name: tuple(data.get(name, ())) for name in ("added", "removed", "changed")}
    return Comparison(baseline=data["baseline"], deltas=deltas, **named)


def _known(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of data that newer releases may extend."""
    return {name: data[name] for name in attrs.fields_dict(cls) if name in data}
