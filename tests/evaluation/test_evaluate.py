"""Evaluations: cases as runs, judgements, identity, crashes, budgets and workers."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio
from pydantic_ai import Agent

from flujo_actors import (
    AsyncRunClient,
    DeclarationError,
    Evaluation,
    EvaluationMismatch,
    Flujo,
    GateError,
    LoopAlreadyRunning,
    MemoryStore,
    NotPaused,
    Pipeline,
    RunClient,
    RunLeased,
    RunNotFound,
    Step,
)
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import StoredRun
from kit.durable_places import Place
from kit.other_processes import KILLED, ended, forked, in_another_process

pytest.importorskip("pydantic_evals", reason="needs the extra `evals`: make test-evals")

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import ConfusionMatrixEvaluator, Evaluator

from evaluation.sample_evaluators import (
    PRICES,
    Broken,
    Counted,
    Endless,
    Length,
    Matches,
    NotFinite,
    OnThread,
    Spans,
    WithReason,
    priced,
    questions,
    spending,
)

BACKENDS = ["trio", "asyncio"]


async def double(data: int) -> int:
    return data * 2


def numbers(count: int, **options: Any) -> Dataset[Any, Any, Any]:
    cases = [Case(name=f"c{i}", inputs=i, expected_output=i * 2) for i in range(count)]
    return Dataset(name="numbers", cases=cases, evaluators=[Matches()], **options)


def doubles(store: Any = None, **options: Any) -> Flujo[Any, Any, Any]:
    return Flujo(Pipeline([Step("double", double)], name="doubles"), store=store, **options)


# --- cases --------------------------------------------------------------------------------------------------


class Doubles(Flujo[Any, Any, Any]):
    """A subclass with a constructor of its own."""

    def __init__(self, factor: int) -> None:
        super().__init__(Step("double", lambda data: data * factor), store=MemoryStore())


def test_a_subclass_with_another_constructor_is_evaluated() -> None:
    """The run of the evaluation itself is none of the subclass."""
    assert Doubles(2).evaluate(numbers(2), run_id="v1").passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_case_is_a_run_of_the_pipeline(store: Any, backend: Any) -> None:
    """Its id has the evaluation's as prefix; the evaluation is a run, too."""
    found = doubles(store).evaluate(numbers(3), run_id="v1", backend=backend)
    client = RunClient(store)
    assert (found.run_id, found.name, found.status, found.passed) == ("v1", "numbers", "completed", True)
    assert [(case.name, case.run_id, case.status, case.output) for case in found.cases] == [
        (f"c{i}", f"v1/c{i}", "passed", i * 2) for i in range(3)
    ]
    assert client.get("v1").pipeline == "evaluation of doubles"
    listed = client.list(parent="v1")
    assert {(info.run_id, info.parent, info.state) for info in listed} == {
        (f"v1/c{i}", "v1", "completed") for i in range(3)
    }
    assert client.get("v1").parent is None
    assert all(info.labels == {} for info in listed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evaluation_works_without_a_store(backend: Any) -> None:
    """It survives nothing, and has the same result."""
    found = doubles().evaluate(numbers(3), backend=backend)
    assert [case.status for case in found.cases] == ["passed"] * 3
    assert found.pass_rate() == 1.0


def test_without_a_store_the_same_id_begins_again() -> None:
    """Nothing is kept, so a second call executes every case."""
    flujo = doubles()
    found = [flujo.evaluate(numbers(2), run_id="v1") for _ in range(2)]
    assert [case.status for each in found for case in each.cases] == ["passed"] * 4


def test_the_run_of_another_pipeline_is_no_run_of_a_case(store: Any) -> None:
    """An id that was taken before the evaluation is an error of its case."""
    Flujo(Step("other", str), store=store).run(4, run_id="v1/c1")
    found = doubles(store).evaluate(numbers(2), run_id="v1")
    assert [case.status for case in found.cases] == ["passed", "error"]
    assert found.cases[1].error == "run 'v1/c1' exists already, and is no run of evaluation 'v1'. Use another run_id."


@pytest.mark.parametrize("run", [trio.run, anyio.run], ids=["trio", "anyio"])
def test_an_evaluation_can_be_awaited(run: Any) -> None:
    """Inside a loop, `evaluate` names the method to await."""
    flujo = doubles(MemoryStore())

    async def main() -> Evaluation:
        with pytest.raises(LoopAlreadyRunning, match="evaluate_async"):
            flujo.evaluate(numbers(1))
        found = await flujo.evaluate_async(numbers(2), run_id="v1")
        assert await AsyncRunClient(flujo.store).evaluation("v1") == found  # type: ignore[arg-type]
        return found

    assert run(main).passed


def test_names_are_encoded_in_run_ids(store: Any) -> None:
    """E3: slashes, hashes, percent signs and a newline; an unnamed case is called as pydantic-evals does."""
    dataset: Dataset[Any, Any, Any] = Dataset(
        name="odd", cases=[Case(name="a/b\n#1%", inputs=1), Case(inputs=2), Case(name="ü", inputs=3)]
    )
    found = doubles(store).evaluate(dataset, run_id="v1")
    assert [case.run_id for case in found.cases] == ["v1/a%2Fb\n%231%25", "v1/Case 2", "v1/ü"]
    assert RunClient(store).get("v1/a%2Fb\n%231%25").state == "completed"
    assert "&#10;" in found.to_junit()
    assert "\\x0a" in found.to_text()


def test_repeats_are_runs_of_their_own() -> None:
    """In the order of the dataset, then of the repetition."""
    flujo = doubles(MemoryStore())
    found = flujo.evaluate(numbers(2), run_id="v1", repeat=2)
    assert [(case.run_id, case.repeat) for case in found.cases] == [
        ("v1/c0#1", 1),
        ("v1/c0#2", 2),
        ("v1/c1#1", 1),
        ("v1/c1#2", 2),
    ]
    assert [case.name for case in found.to_pydantic().cases] == ["c0 [1/2]", "c0 [2/2]", "c1 [1/2]", "c1 [2/2]"]


def test_a_dataset_can_be_a_file(tmp_path: Path) -> None:
    """YAML or JSON; a class that the file names must be given."""
    file = tmp_path / "set.yaml"
    file.write_text(
        "name: filed\ncases:\n- {name: a, inputs: 1, expected_output: 2}\nevaluators: [EqualsExpected, Matches]\n"
    )
    found = doubles().evaluate(file, evaluators=[Matches])  # type: ignore[list-item]
    assert (found.name, dict(found.cases[0].assertions)) == ("filed", {"EqualsExpected": True, "Matches": True})
    with pytest.raises(DeclarationError, match=r"set.yaml' cannot be read: .*Matches"):
        doubles().evaluate(file)
    with pytest.raises(DeclarationError, match=r"evaluators=\[Name\], or --evaluators MODULE:NAME$"):
        doubles().evaluate(file)


def test_report_evaluators_are_left_out_with_a_warning(caplog: Any) -> None:
    """They judge a report of pydantic-evals, which an evaluation has only at its end."""
    dataset = numbers(1)
    dataset.report_evaluators = [ConfusionMatrixEvaluator()]
    with caplog.at_level(logging.WARNING, logger="flujo_actors"):
        assert doubles().evaluate(dataset).passed
    assert "those of the dataset 'numbers' are left out" in caplog.text


def test_one_bad_case_does_not_stop_the_others() -> None:
    """A run that fails is an error of its case, with the reason."""

    async def picky(data: int) -> int:
        if data == 1:
            raise ValueError("one is bad")
        return data * 2

    found = Flujo(Step("picky", picky), store=MemoryStore()).evaluate(numbers(3))
    assert [case.status for case in found.cases] == ["passed", "error", "passed"]
    assert "one is bad" in (found.cases[1].error or "")
    assert not found.passed
    assert found.to_pydantic().failures[0].name == "c1"


def test_an_input_that_cannot_be_stored_is_an_error_of_its_case() -> None:
    """The message names the reason."""
    dataset: Dataset[Any, Any, Any] = Dataset(
        name="d", cases=[Case(name="a", inputs=object()), Case(name="b", inputs=1)]
    )
    found = doubles(MemoryStore()).evaluate(dataset)
    assert [case.status for case in found.cases] == ["error", "passed"]
    assert "NotSerializable" in (found.cases[0].error or "")


@pytest.mark.parametrize("given", [True, False], ids=["stored", "in memory"])
def test_questions_are_answered_from_the_metadata(given: bool) -> None:
    """Without an answer the case stays paused, and names the place of the answer."""
    ask = Step.human_in_the_loop("approve", "ok?", input_schema=bool)
    answers = {"answers": {"approve": True}}
    dataset: Dataset[Any, Any, Any] = Dataset(
        name="d", cases=[Case(name="x", inputs=1), Case(name="y", inputs=2, metadata=answers)]
    )
    found = Flujo(Pipeline([Step("a", double), ask]), store=MemoryStore() if given else None).evaluate(dataset)
    assert [(case.status, case.output) for case in found.cases] == [("paused", None), ("passed", True)]
    assert found.cases[0].feedback == "case 'x' waits at 'approve': put an answer under metadata.answers.approve"
    assert not found.passed


@pytest.mark.parametrize("given", [True, False], ids=["stored", "in memory"])
def test_the_spend_before_an_invalid_answer_is_counted(given: bool) -> None:
    """The tokens of a case are those of its run, whatever ends it."""
    ask = Step.human_in_the_loop("approve", "ok?", input_schema=bool)
    case = Case(name="x", inputs="?", metadata={"answers": {"approve": "perhaps"}})
    flujo = Flujo(
        Pipeline([Step("ask", Agent(priced())), ask]), store=MemoryStore() if given else None, settings=PRICES
    )
    found = flujo.evaluate(Dataset[Any, Any, Any](name="d", cases=[case]))
    assert (found.cases[0].status, found.cases[0].tokens) == ("error", 2)
    assert found.total_cost_usd == pytest.approx(0.01)
    assert (found.cases[0].error or "").startswith("InvalidAnswer: the answer to 'approve' does not fit")


@pytest.mark.parametrize("answers", [{"approve": True}, {}], ids=["answer in the metadata", "no answer"])
def test_a_case_that_a_person_has_answered_continues(answers: dict[str, object]) -> None:
    """Its first answer counts, also if the call that gave it died before it resumed the run."""
    store = MemoryStore()

    def answered(payload: Any) -> None:
        if payload.kind == "on_pause":
            client = RunClient(store, allow_blocking=True)
            client.answer(str(client.get(payload.run_id).state_token), False)

    ask = Step.human_in_the_loop("approve", "ok?", input_schema=bool)
    case = Case(name="x", inputs=1, metadata={"answers": answers})
    flujo = Flujo(Pipeline([Step("a", double), ask]), store=store, hooks=[answered])
    found = flujo.evaluate(Dataset[Any, Any, Any](name="d", cases=[case]))
    assert [(each.status, each.output) for each in found.cases] == [("passed", False)]


# --- evaluators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evaluator_that_raises_is_an_error_of_its_case(backend: Any) -> None:
    """E4: the other evaluators and cases are judged."""
    dataset: Dataset[Any, Any, Any] = Dataset(
        name="d",
        cases=[Case(name="a", inputs=1, evaluators=(Broken(),)), Case(name="b", inputs=2)],
        evaluators=[Length()],
    )
    found = doubles(MemoryStore()).evaluate(dataset, evaluators=[WithReason()], backend=backend)
    first, second = found.cases
    assert (first.status, dict(first.evaluator_failures)) == ("error", {"Broken": "ValueError: cannot judge"})
    assert (second.status, dict(second.scores), dict(second.labels)) == ("passed", {"length": 1.0}, {"kind": "int"})
    assert dict(first.assertions) == {"WithReason": True}
    assert dict(second.reasons) == {"WithReason": "it is a number"}


@pytest.mark.parametrize(
    ("score", "reason"), [(math.nan, "invalid type"), (math.inf, "invalid type"), (10**400, "OverflowError")]
)
def test_a_score_must_be_finite(score: object, reason: str) -> None:
    """NaN would make every mean NaN."""
    found = doubles().evaluate(numbers(1), evaluators=[NotFinite(score=score)])
    assert found.cases[0].status == "error"
    assert reason in found.cases[0].evaluator_failures["NotFinite"]


def test_huge_scores_are_compared() -> None:
    """A mean is defined where the sum is beyond the range of floats."""
    before = doubles().evaluate(numbers(12), evaluators=[NotFinite(score=1.7e308)])
    gates = ["score.NotFinite not worse", "score.NotFinite>=1x", "score.NotFinite.total>1e308"]
    found = doubles().evaluate(numbers(12), evaluators=[NotFinite(score=1.7e308)], baseline=before, gates=gates)
    assert found.passed
    assert found.average("score.NotFinite") == 1.7e308
    assert "Infinity" not in found.to_json()


def test_a_gate_on_a_score_does_not_hold_if_its_evaluator_failed_in_every_case() -> None:
    """The name may be right: the report tells the failures."""
    found = doubles().evaluate(numbers(2), evaluators=[NotFinite()], gates=["score.NotFinite>=0"])
    assert [(gate.holds, gate.measured) for gate in found.gates] == [(False, "no case has a value")]
    assert [case.status for case in found.cases] == ["error", "error"]


def test_errors_are_compared_with_those_of_the_baseline() -> None:
    """Their count is a metric of gates, and none of the comparison."""
    clean, broken = doubles().evaluate(numbers(12)), doubles().evaluate(numbers(12), evaluators=[Broken()])
    gates = ["errors<=1x", "errors not worse"]
    again = doubles().evaluate(numbers(12), evaluators=[Broken()], baseline=broken, gates=gates)
    worse = doubles().evaluate(numbers(12), evaluators=[Broken()], baseline=clean, gates=gates)
    assert [gate.holds for gate in again.gates] == [True, True]
    assert [(gate.holds, gate.measured) for gate in worse.gates[:1]] == [(False, 12)]
    assert worse.gates[1].holds is False
    assert worse.comparison is not None
    assert worse.comparison.delta("errors") is None


def test_an_evaluator_sees_the_run() -> None:
    """Its metrics, its id and its recorded duration; spans are refused with the reason."""
    seen: list[Any] = []
    found = doubles(MemoryStore()).evaluate(numbers(1), evaluators=[Counted(seen=seen), Spans()], run_id="v1")
    [context] = seen
    assert context.metrics == {"tokens": 0, "requests": 0, "cost_usd": 0.0, "tool_calls": 0}
    assert context.attributes == {"run_id": "v1/c0"}
    assert context.duration == found.cases[0].duration_s
    assert "records no spans" in found.cases[0].evaluator_failures["Spans"]


def test_an_evaluator_on_the_wrong_library_names_the_remedy() -> None:
    """An asynchronous evaluator runs on the backend of the run."""

    @dataclass
    class Sleeps(Evaluator[Any, Any, Any]):
        async def evaluate(self, ctx: Any) -> bool:
            await asyncio.sleep(0.001)
            return True

    found = doubles().evaluate(numbers(1), evaluators=[Sleeps()])
    advice = 'this evaluator is written for asyncio, but it ran on trio: pass `backend="asyncio"`'
    assert advice in found.cases[0].evaluator_failures["Sleeps"]
    assert doubles().evaluate(numbers(1), evaluators=[Sleeps()], backend="asyncio").passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_synchronous_evaluator_does_not_block_the_loop(backend: Any) -> None:
    """It is called in a thread."""
    seen: list[int] = []
    doubles().evaluate(numbers(1), evaluators=[OnThread(seen=seen)], backend=backend)
    assert seen != [threading.get_ident()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_evaluation_does_not_wait_for_a_synchronous_evaluator(backend: Any) -> None:
    """A thread cannot be stopped: it is left behind."""
    judge = Endless()

    async def main() -> bool:
        async with anyio.create_task_group() as group:
            group.start_soon(functools.partial(doubles().evaluate_async, numbers(1), evaluators=[judge]))
            await anyio.to_thread.run_sync(judge.begun.wait)
            group.cancel_scope.cancel()
        return group.cancel_scope.cancelled_caught

    try:
        with anyio.from_thread.start_blocking_portal(backend) as portal:
            assert portal.start_task_soon(main).result(timeout=30)
    finally:
        judge.may_end.set()


def test_equal_names_of_results_get_numbers() -> None:
    """As in pydantic-evals."""
    found = doubles().evaluate(numbers(1), evaluators=[Matches(), Matches()])
    assert list(found.cases[0].assertions) == ["Matches", "Matches_2", "Matches_3"]


# --- identity -----------------------------------------------------------------------------------------------


def test_an_ended_evaluation_is_returned_without_work(store: Any) -> None:
    """Neither a case nor an evaluator runs again."""
    seen: list[Any] = []
    flujo = doubles(store)
    first = flujo.evaluate(numbers(3), run_id="v1", evaluators=[Counted(seen=seen)])
    again = flujo.evaluate(numbers(3), run_id="v1", evaluators=[Counted(seen=seen)])
    assert len(seen) == 3
    assert again == first


def mismatch(flujo: Flujo[Any, Any, Any], dataset: Any, **options: Any) -> str:
    with pytest.raises(EvaluationMismatch) as refused:
        flujo.evaluate(dataset, run_id="v2", **options)
    return str(refused.value)


def test_another_evaluation_under_the_same_id_is_refused() -> None:
    """The sentence names the difference, and nothing runs."""
    store = MemoryStore()
    flujo = doubles(store)
    flujo.evaluate(numbers(4), run_id="v2", evaluators=[Length()])
    changed, records = numbers(4), len(RunClient(store).list())
    changed.cases[3].inputs = 99
    start = "evaluation 'v2' was started with"
    given = {"evaluators": [Length()]}
    assert mismatch(flujo, changed, **given) == f"{start} another dataset: case 'c3' changed. Use another run_id."
    assert mismatch(flujo, numbers(5), **given) == f"{start} another dataset: case 'c4' is new. Use another run_id."
    assert mismatch(flujo, numbers(3), **given) == f"{start} another dataset: case 'c3' is missing. Use another run_id."
    assert mismatch(flujo, numbers(4)) == f"{start} other evaluators: 'Length' is missing. Use another run_id."
    assert mismatch(flujo, numbers(4), repeat=3, **given) == f"{start} repeat=1, not 3. Use another run_id."
    assert len(RunClient(store).list()) == records


def asking(prompt: str, store: Any) -> Flujo[Any, Any, Any]:
    return Flujo(Step("ask", Agent(priced(), system_prompt=prompt)), store=store)


def test_another_pipeline_under_the_same_id_is_refused() -> None:
    """A changed prompt gives other answers."""
    store, dataset = MemoryStore(), Dataset[Any, Any, Any](name="d", cases=[Case(name="a", inputs="hi")])
    asking("Be kind.", store).evaluate(dataset, run_id="v2")
    told = mismatch(asking("Be brief.", store), dataset)
    assert told.startswith("evaluation 'v2' was started with another pipeline: the prompt of step 'ask' changed")


def test_the_id_of_another_run_is_refused() -> None:
    """It is no evaluation."""
    flujo = doubles(MemoryStore())
    flujo.run(1, run_id="v2")
    assert mismatch(flujo, numbers(1)) == "run 'v2' is no evaluation. Use another run_id."
    with pytest.raises(RunNotFound, match="is no evaluation"):
        RunClient(flujo.store).evaluation("v2")  # type: ignore[arg-type]


def test_the_identity_does_not_depend_on_the_order_of_a_set() -> None:
    """Hash seeds differ between processes."""
    from flujo_actors._api.evaluation.evaluation_run import digest_of

    assert digest_of({"a": {"x", "y", "z"}}) == digest_of({"a": {"z", "y", "x"}})
    assert digest_of(object()) == digest_of(object())
    assert digest_of([1]) != digest_of(["1"])


# --- baseline and gates -------------------------------------------------------------------------------------


def test_a_baseline_can_be_an_id_an_evaluation_or_a_file(store: Any, tmp_path: Path) -> None:
    """The three give the same comparison; a client reads the one by id from the store."""
    flujo = doubles(store)
    first = flujo.evaluate(numbers(12), run_id="v1")
    file = tmp_path / "v1.json"
    file.write_text(first.to_json(), encoding="utf-8")
    gates = ["pass not worse", "cost<=1.1x"]
    found = flujo.evaluate(numbers(12), run_id="v2", baseline="v1", gates=gates)
    others = [flujo.evaluate(numbers(12), run_id="v2", baseline=each, gates=gates) for each in (first, file, str(file))]
    assert [each.comparison for each in others] == [found.comparison] * 3
    assert found.comparison is not None
    assert (found.comparison.baseline, found.passed) == ("v1", True)
    assert RunClient(store).evaluation("v2") == found
    with pytest.raises(RunNotFound):
        flujo.evaluate(numbers(12), run_id="v3", baseline="v0")
    assert len(RunClient(store).list(parent="v3")) == 0


def test_a_client_reads_the_comparison_with_a_baseline_of_another_store(store: Any, tmp_path: Path) -> None:
    """Its metrics are stored with the evaluation, so a gate that failed is not lost."""
    file = tmp_path / "v1.json"
    names = ["a/\n", "\ud800", *"bcdefghijk"]
    cases = [Case(name=name, inputs=number, expected_output=number * 2) for number, name in enumerate(names)]
    dataset: Dataset[Any, Any, Any] = Dataset(name="d", cases=cases, evaluators=[Matches()])
    file.write_text(doubles(MemoryStore()).evaluate(dataset, run_id="v1").to_json(), encoding="utf-8")
    wrong: Flujo[Any, Any, Any] = Flujo(Pipeline([Step("double", str)], name="doubles"), store=store)
    found = wrong.evaluate(dataset, run_id="v2", baseline=file, gates=["pass>=0", "pass not worse", "cost<=2x"])
    read = RunClient(store).evaluation("v2")
    assert (found.passed, read.passed, read.gates) == (False, False, found.gates)
    assert found.comparison is not None
    assert (found.comparison.baseline, read.comparison) == ("v1", found.comparison)


def test_an_id_of_the_store_is_a_baseline_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the working directory may have the same name."""
    monkeypatch.chdir(tmp_path)
    Path("v1").write_text("no evaluation", encoding="utf-8")
    flujo = doubles(MemoryStore())
    flujo.evaluate(numbers(1), run_id="v1")
    found = flujo.evaluate(numbers(1), run_id="v2", baseline="v1")
    assert found.comparison is not None
    assert found.comparison.baseline == "v1"


def test_a_baseline_file_with_values_of_other_types_is_refused(tmp_path: Path) -> None:
    """The message names the place."""
    file = tmp_path / "v1.json"
    data = json.loads(doubles().evaluate(numbers(2)).to_json())
    data["cases"][1]["scores"] = {"tone": None}
    file.write_text(json.dumps(data))
    with pytest.raises(DeclarationError, match=r"v1.json' is invalid at cases.1.scores.tone: .* valid number"):
        doubles().evaluate(numbers(2), baseline=file)


def test_metrics_can_be_given_by_a_generator() -> None:
    """As `lower_is_better`, which is read once."""
    first = doubles().evaluate(numbers(12), evaluators=[NotFinite(score=2)])
    lower = (name for name in ["score.NotFinite"])
    found = doubles().evaluate(
        numbers(12), evaluators=[NotFinite(score=1)], baseline=first, gates=["pass>=0"], lower_is_better=lower
    )
    assert found.comparison is not None
    delta = found.comparison.delta("score.NotFinite")
    assert delta is not None
    assert delta.verdict == "better"


def test_a_gate_on_an_unknown_score_raises_with_the_evaluation() -> None:
    """Without a store the results would be lost."""
    with pytest.raises(GateError) as error:
        doubles().evaluate(numbers(2), evaluators=[Length()], gates=["pass>=1", "score.tone>=0.8"])
    found = error.value.evaluation
    assert ([case.status for case in found.cases], found.passed) == (["passed", "passed"], False)
    assert [gate.holds for gate in found.gates] == [True, False]
    with pytest.raises(GateError) as early:
        doubles().evaluate(numbers(2), gates=["pass >"])
    assert early.value.evaluation is None


def test_gates_are_parsed_before_anything_runs() -> None:
    """And a score that does not exist is refused after the run, whose results are kept."""
    store = MemoryStore()
    flujo = doubles(store)
    for gate in ("pass>0.9 or x", "cost<=1.1x"):
        with pytest.raises(GateError):
            flujo.evaluate(numbers(2), run_id="v2", gates=[gate])
    assert RunClient(store).list() == []
    with pytest.raises(GateError, match="there is no score 'tone' in evaluation 'v2'; it has 'length'"):
        flujo.evaluate(numbers(2), run_id="v2", evaluators=[Length()], gates=["score.tone>=0.8"])
    found = flujo.evaluate(numbers(2), run_id="v2", evaluators=[Length()], gates=["score.length>=0.8"])
    assert [gate.holds for gate in found.gates] == [True]
    stored = RunClient(store).evaluation("v2")
    assert [(gate.text, gate.holds) for gate in stored.gates] == [("score.tone>=0.8", False)]
    assert flujo.evaluate(numbers(2), run_id="v3", baseline="v2").comparison is not None


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("repeat", 0),
        ("repeat", True),
        ("repeat", 1.5),
        ("max_concurrency", 0),
        ("max_cost_usd", -1),
        ("max_cost_usd", float("nan")),
        ("max_cost_usd", "1"),
        ("evaluators", "Matches"),
        ("evaluators", [object()]),
        ("lower_is_better", "cost"),
        ("lower_is_better", [1]),
        ("baseline", 3),
        ("queue", "evals"),
        ("queue", ""),
        ("run_id", ""),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, value: object) -> None:
    """Before anything runs."""
    with pytest.raises(DeclarationError, match=option):
        doubles().evaluate(numbers(1), **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("dataset", [3, None, [], {"cases": []}], ids=repr)
def test_a_dataset_must_be_one(dataset: object) -> None:
    """Or the path of one."""
    with pytest.raises(DeclarationError, match="dataset must be"):
        doubles().evaluate(dataset)  # type: ignore[arg-type]


def test_a_dataset_without_cases_is_refused() -> None:
    """It would pass every gate."""
    with pytest.raises(DeclarationError, match="has no cases"):
        doubles().evaluate(Dataset(name="empty", cases=[]))


# --- crashes ------------------------------------------------------------------------------------------------


class Calls:
    """Calls of cases and evaluators, written to a file, which survives its process."""

    def __init__(self, path: Path, kill_at: int | None = None) -> None:
        self.path, self._kill_at, self._count, self._lock = path, kill_at, 0, threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            with self.path.open("a") as file:
                file.write(f"{name}\n")
            self._count += 1
            if self._count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def all(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines())


def noting(place: Place, calls: Calls) -> Flujo[Any, Any, Any]:
    async def noted(data: int) -> int:
        calls(f"run {data}")
        return data * 2

    return Flujo(Step("noted", noted), store=place.open())


def judged_calls(place: Place) -> set[str]:
    """Return the calls whose results are committed."""
    client = RunClient(place.open())
    cases = {
        f"run {info.run_id.removeprefix('v1/c')}" for info in client.list(parent="v1") if info.status == "completed"
    }
    outputs = [outcome.step_result.output for outcome in client.outcomes("v1").values()]  # type: ignore[union-attr]
    judged = (each for each in outputs if isinstance(each, Mapping) and each.get("evaluator") == 1)
    return cases | {f"judge {each['unit'].removeprefix('c')}" for each in judged}


@pytest.mark.timeout(400)
def test_no_ended_case_and_no_judgement_is_repeated_after_kills(place: Place, tmp_path: Path) -> None:
    """E1: forty cases, three kills; at most the units in flight are repeated."""
    path, done = tmp_path / "calls", list[set[str]]()
    path.touch()

    def evaluate(kill_at: int | None) -> None:
        calls = Calls(path, kill_at)
        found = noting(place, calls).evaluate(
            numbers(40), run_id="v1", evaluators=[Counted(note=calls)], max_concurrency=4
        )
        assert found.passed

    for _ in range(3):
        place.close()
        before = Calls(path).all()
        assert in_another_process(lambda: evaluate(22)) == KILLED
        assert all(Calls(path).all()[each] == before[each] for each in set().union(*done))
        done.append(judged_calls(place))
    place.close()
    before = Calls(path).all()
    assert in_another_process(lambda: evaluate(None)) == 0
    calls = Calls(path).all()
    assert all(calls[each] == before[each] for each in set().union(*done))
    assert len(calls) == 80
    assert sum(calls.values()) <= 80 + 3 * 4
    assert RunClient(place.open()).evaluation("v1").pass_rate() == 1.0


def test_of_two_processes_one_runs_the_evaluation(place: Place) -> None:
    """E2: the other gets `RunLeased`, and nothing is executed twice."""
    began, release = os.pipe(), os.pipe()

    async def slow(data: int) -> int:
        os.write(began[1], b"!")
        await anyio.to_thread.run_sync(os.read, release[0], 1)
        return data * 2

    def first() -> None:
        found = Flujo(Step("noted", slow), store=place.open()).evaluate(numbers(1), run_id="v1", evaluators=[])
        assert found.passed

    place.close()
    child = forked(first)
    os.read(began[0], 1)
    with pytest.raises(RunLeased):
        Flujo(Step("noted", slow), store=place.open()).evaluate(numbers(1), run_id="v1")
    os.write(release[1], b"!")
    assert ended(child) == 0
    assert RunClient(place.open()).evaluation("v1").passed


class Contested(MemoryStore):
    """A store in which another caller acts before the n-th look at the evaluation."""

    act: Any = None
    left = 0

    def get(self, run_id: RunId) -> StoredRun:
        if run_id == "v1" and self.act is not None:
            self.left -= 1
            if self.left == 0:
                act, self.act = self.act, None
                other = threading.Thread(target=act)
                other.start()
                other.join()
        return super().get(run_id)


@pytest.mark.parametrize("look", [1, 2])
def test_an_evaluation_that_another_caller_ends_meanwhile_is_read(look: int) -> None:
    """Between the look at its state and its claim, another process may end it."""
    store, calls = Contested(), list[int]()

    async def noted(data: int) -> int:
        calls.append(data)
        return data * 2

    def evaluated(**options: Any) -> Evaluation:
        return Flujo(Step("noted", noted), store=store).evaluate(numbers(3), run_id="v1", **options)

    async def begun() -> None:
        judge = Endless()
        async with anyio.create_task_group() as group:
            flujo = Flujo(Step("noted", noted), store=store)
            options: dict[str, Any] = {"run_id": "v1", "evaluators": [judge]}
            group.start_soon(functools.partial(flujo.evaluate_async, numbers(3), **options))
            await anyio.to_thread.run_sync(judge.begun.wait)
            group.cancel_scope.cancel()
        judge.may_end.set()

    trio.run(begun)
    ended = Endless()
    ended.may_end.set()
    store.act, store.left = functools.partial(evaluated, evaluators=[ended]), look
    found = evaluated(evaluators=[ended])
    assert (store.act, found.status, found.passed) == (None, "completed", True)
    assert Counter(calls) == Counter([0, 1, 2])


# --- budgets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_budget_stops_and_a_larger_one_continues(store: Any, backend: Any) -> None:
    """E5: with the stopped cases only; the bound holds for all calls together."""
    calls: list[str] = []
    flujo = spending(store, calls)
    found = flujo.evaluate(questions(10), run_id="v1", max_cost_usd=0.04, max_concurrency=2, backend=backend)
    statuses = Counter(case.status for case in found.cases)
    assert (found.status, found.passed, statuses["passed"]) == ("stopped", False, 4)
    assert statuses["stopped"] + statuses["not run"] == 6
    assert found.total_cost_usd == pytest.approx(0.04)
    assert flujo.evaluate(questions(10), run_id="v1", max_cost_usd=0.04, backend=backend) == found
    assert (len(calls), RunClient(store).evaluation("v1").status) == (4, "stopped")
    more = flujo.evaluate(questions(10), run_id="v1", max_cost_usd=0.07, backend=backend)
    assert (more.status, more.total_cost_usd, len(calls)) == ("stopped", pytest.approx(0.07), 7)
    all_of_them = flujo.evaluate(questions(10), run_id="v1", backend=backend)
    assert (all_of_them.status, all_of_them.passed, len(calls)) == ("completed", True, 10)


def test_a_budget_stops_without_a_store() -> None:
    """Nothing is kept for a second call."""
    calls: list[str] = []
    found = spending(None, calls).evaluate(questions(5), max_cost_usd=0.02, max_concurrency=1)
    assert (found.status, len(calls)) == ("stopped", 2)
    assert Counter(case.status for case in found.cases)["passed"] == 2


# --- workers ------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_workers_execute_the_cases_of_a_queue(sqlite_place: Any, caplog: Any) -> None:
    """This process waits and judges; without a worker there is one warning."""
    store = sqlite_place.open()
    ask = Step.human_in_the_loop("approve", "ok?", input_schema=bool)
    flujo = Flujo(Pipeline([Step("a", double), ask]), store=store)
    cases = [Case(name=f"c{i}", inputs=i, metadata={"answers": {"approve": True}}) for i in range(3)]
    dataset: Dataset[Any, Any, Any] = Dataset(name="d", cases=cases)
    found: list[Evaluation] = []

    async def evaluated() -> None:
        found.append(await flujo.evaluate_async(dataset, run_id="v1", queue="evals"))

    with caplog.at_level(logging.WARNING, logger="flujo_actors"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(evaluated)
            async with flujo.worker(queues="evals", slots=2, look_s=0.05):
                while not found:
                    await trio.sleep(0.05)
    [evaluation] = found
    assert [(case.status, case.output) for case in evaluation.cases] == [("passed", True)] * 3
    assert {info.queue for info in RunClient(store, allow_blocking=True).list(parent="v1")} == {"evals"}
    assert sum("no worker is known for queue 'evals'" in each.message for each in caplog.records) <= 1


@pytest.mark.trio
async def test_the_budget_is_exact_over_workers(sqlite_place: Any) -> None:
    """Workers draw on the budget of the evaluation in the store."""
    store, calls = sqlite_place.open(), list[str]()
    flujo, found = spending(store, calls), list[Evaluation]()

    async def evaluated() -> None:
        options: dict[str, Any] = {"run_id": "v1", "queue": "evals", "max_cost_usd": 0.03}
        found.append(await flujo.evaluate_async(questions(6), **options))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(evaluated)
        async with flujo.worker(queues="evals", slots=3, look_s=0.05):
            while not found:
                await trio.sleep(0.05)
    assert (found[0].status, len(calls)) == ("stopped", 3)


def test_an_evaluation_with_a_queue_warns_without_a_worker(caplog: Any) -> None:
    """The warning has the command that starts one."""
    from flujo_actors._api.evaluation.evaluation_run import _warn_without_worker

    with caplog.at_level(logging.WARNING, logger="flujo_actors"):
        _warn_without_worker(MemoryStore(), "evals")
    assert "flujo-actors worker" in caplog.text


def test_a_call_that_loses_every_race_raises_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that never agrees with itself does not keep the call in a loop."""

    async def lost(self: object) -> None:
        raise NotPaused("another process was faster")

    monkeypatch.setattr("flujo_actors._api.evaluation.evaluation_run.EvaluationRun._attempted", lost)
    with pytest.raises(NotPaused, match="another process was faster"):
        doubles(MemoryStore()).evaluate(numbers(1), run_id="v1")
