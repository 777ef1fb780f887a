"""Judges of cases: failures, metered models and their budget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flujo_actors import Flujo, MemoryStore, Pipeline, RunClient, Step

pytest.importorskip("pydantic_evals", reason="needs the extra `evals`: make test-evals")

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import LLMJudge
from pydantic_evals.evaluators.llm_as_a_judge import set_default_judge_model

from evaluation.sample_evaluators import (
    PRICES,
    Asks,
    Matches,
    Named,
    Raises,
    RaisesOnLoop,
    judging,
    priced,
    questions,
    spending,
)

BACKENDS = ["trio", "asyncio"]


class Exit(BaseException):
    """An exception that is no `Exception`, as of `pytest.fail`."""


def echo(store: Any = None) -> Flujo[Any, Any, Any]:
    return Flujo(Pipeline([Step("echo", str)], name="echo"), store=store, settings=PRICES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("evaluator", [Raises, RaisesOnLoop])
@pytest.mark.parametrize("error", [asyncio.CancelledError("gone"), Exit("gone")], ids=["cancelled", "exit"])
def test_any_exception_of_an_evaluator_is_its_failure(backend: Any, evaluator: Any, error: BaseException) -> None:
    """Also a cancellation that no caller requested; the other cases are judged."""
    cases = [Case(name="a", inputs=1, evaluators=(evaluator(error),)), Case(name="b", inputs=2)]
    dataset: Dataset[Any, Any, Any] = Dataset(name="d", cases=cases, evaluators=[Matches()])
    found = echo(MemoryStore()).evaluate(dataset, backend=backend)
    assert (found.status, [case.status for case in found.cases]) == ("completed", ["error", "passed"])
    assert list(found.cases[0].evaluator_failures.values()) == [f"{type(error).__name__}: gone"]


def test_a_case_passes_only_when_all_evaluators_have_judged_it() -> None:
    """A process that ended between two evaluators leaves the case open."""
    store = MemoryStore()
    dataset: Dataset[Any, Any, Any] = Dataset(name="d", cases=[Case(name="a", inputs=1)], evaluators=[Matches()])
    with pytest.raises(KeyboardInterrupt):
        echo(store).evaluate(dataset, evaluators=[Raises(KeyboardInterrupt())], run_id="v1")
    found = RunClient(store).evaluation("v1")
    assert [(case.status, dict(case.assertions)) for case in found.cases] == [("not run", {"Matches": True})]
    assert (found.passed, found.pass_rate()) == (False, 0.0)
    again = echo(store).evaluate(dataset, evaluators=[Raises(ValueError("no"))], run_id="v1")
    assert [case.status for case in again.cases] == ["error"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
def test_the_spend_of_a_judge_is_measured_and_bounded(backend: Any, stored: bool) -> None:
    """A judge that the budget refuses is called when there is more."""
    calls, judged = list[str](), list[str]()
    flujo = spending(MemoryStore() if stored else None, calls)
    judge = LLMJudge(rubric="polite", model=judging(judged))
    options: dict[str, Any] = {"evaluators": [judge], "run_id": "v1", "max_concurrency": 1, "backend": backend}
    found = flujo.evaluate(questions(3), max_cost_usd=0.03, **options)
    assert (found.status, len(calls), len(judged)) == ("stopped", 2, 1)
    assert (found.cases[0].status, found.cases[0].judge_cost_usd) == ("passed", pytest.approx(0.01))
    assert found.cases[1].status == "stopped"
    assert found.judge_cost_usd == pytest.approx(0.01)
    if stored:
        more = flujo.evaluate(questions(3), **options)
        assert (more.passed, len(calls), len(judged)) == (True, 3, 3)
        assert more.total_cost_usd == pytest.approx(0.06)
    assert judge.model is not None


@pytest.fixture
def default_judge() -> Iterator[list[str]]:
    """Calls of the default model of judges, which answers as `judging`."""
    calls: list[str] = []
    set_default_judge_model(judging(calls))
    yield calls
    set_default_judge_model("openai:gpt-5.2")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
def test_the_spend_of_a_judge_without_a_model_is_measured_and_bounded(
    backend: Any, stored: bool, default_judge: list[str]
) -> None:
    """It asks the default model of pydantic-evals."""
    calls: list[str] = []
    flujo = spending(MemoryStore() if stored else None, calls)
    options: dict[str, Any] = {"evaluators": [LLMJudge(rubric="polite")], "run_id": "v1", "backend": backend}
    found = flujo.evaluate(questions(3), max_cost_usd=0.03, max_concurrency=1, **options)
    assert (found.status, len(calls), len(default_judge)) == ("stopped", 2, 1)
    assert (found.cases[0].status, found.judge_cost_usd) == ("passed", pytest.approx(0.01))
    if stored:
        more = flujo.evaluate(questions(3), **options)
        assert (more.passed, len(calls), len(default_judge)) == (True, 3, 3)
        assert (more.total_cost_usd, more.judge_cost_usd) == (pytest.approx(0.06), pytest.approx(0.03))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_synchronous_judge_asks_its_model_in_a_thread(backend: Any) -> None:
    """Its spend is measured, too."""
    judge = Asks(priced())
    found = echo(MemoryStore()).evaluate(questions(2), evaluators=[judge], backend=backend)
    assert (found.passed, found.judge_cost_usd) == (True, pytest.approx(0.02))
    assert threading.get_ident() not in judge.seen


def test_the_spend_of_a_stopped_judge_is_kept() -> None:
    """It is called again with a larger bound, and costs again."""
    store, judge = MemoryStore(), Asks(priced(), times=3)
    found = echo(store).evaluate(questions(1), evaluators=[judge], run_id="v1", max_cost_usd=0.025)
    assert (found.status, found.cases[0].status) == ("stopped", "stopped")
    spent = found.judge_cost_usd
    assert spent > 0
    more = echo(store).evaluate(questions(1), evaluators=[judge], run_id="v1", max_cost_usd=1)
    assert (more.passed, more.judge_cost_usd) == (True, pytest.approx(spent + 0.03))


@pytest.mark.parametrize("model", ["all-minilm", None, 5])
def test_a_field_model_may_name_another_kind_of_model(model: Any) -> None:
    """The evaluator is then called as it is."""
    found = echo(MemoryStore()).evaluate(questions(1), evaluators=[Named(model)], max_cost_usd=1)
    assert dict(found.cases[0].labels) == {"Named": str(model)}
