"""Reports and metrics of evaluations, without pydantic-evals."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import CaseResult, Comparison, DeclarationError, Delta, Evaluation, Flujo, GateResult, Step
from flujo_actors._api.evaluation.evaluation_results import read_evaluation

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def case(name: str, status: Any = "passed", **facts: Any) -> CaseResult:
    return CaseResult(name=name, run_id=f"v1/{name}", status=status, **facts)


def evaluation(*cases: CaseResult, **facts: Any) -> Evaluation:
    return Evaluation(**{"run_id": "v1", "name": "set", "status": "completed", "cases": cases, **facts})


def test_a_report_in_junit_has_a_test_for_each_case_and_gate() -> None:
    """Failures name the assertions and reasons; what did not run is skipped."""
    found = evaluation(
        case("a"),
        case("b", "failed", assertions={"polite": False, "short": True}, reasons={"polite": "it shouts"}),
        case("c", "error", error="ValueError: no"),
        case("d", "paused", error="case 'd' waits at 'ok'"),
        case("e", "not run"),
        gates=(GateResult(text="pass>=0.9", holds=False, measured=0.2, wanted=0.9),),
    )
    suite = ElementTree.fromstring(found.to_junit().encode())[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "2",
        "errors": "1",
        "skipped": "2",
    }
    children = [(each.get("name"), each[0].tag if len(each) else None) for each in suite]
    assert children == [
        ("a", None),
        ("b", "failure"),
        ("c", "error"),
        ("d", "skipped"),
        ("e", "skipped"),
        ("pass>=0.9", "failure"),
    ]
    assert suite[1][0].get("message") == "polite: it shouts"
    assert suite[5].get("classname") == "gates"


@given(st.text(), st.text())
def test_every_report_can_be_written_and_read(name: str, text: str) -> None:
    """Control characters and lone surrogates are escaped; JSON is a baseline."""
    found = evaluation(case(name, "failed", assertions={text: False}, error=text), name=name)
    assert ElementTree.fromstring(found.to_junit().encode()) is not None
    json.loads(found.to_json().encode())
    assert found.to_text(width=40).encode()
    assert found.to_markdown().encode()


def test_forbidden_characters_are_shown_by_number() -> None:
    """XML 1.0 has no place for them."""
    assert "a\\x00b\\x1b" in evaluation(case("a\x00b\x1b")).to_junit()


def test_a_report_in_json_is_read_as_a_baseline(tmp_path: Path) -> None:
    """With its comparison, gates and cases."""
    delta = Delta(metric="pass", n=12, before=0.5, after=1.0, difference=0.5, low=0.2, high=0.8, verdict="better")
    gate = GateResult(text="pass not worse", holds=True, measured="+0.5", wanted="not worse")
    found = evaluation(
        case("a", output={"n": [1]}, scores={"tone": 0.5}, reasons={"tone": "ok"}, cost_usd=0.25, tokens=7),
        comparison=Comparison(baseline="v0", deltas=(delta,), added=("a",)),
        gates=(gate,),
        total_cost_usd=0.25,
    )
    file = tmp_path / "v1.json"
    file.write_text(found.to_json(), encoding="utf-8")
    assert read_evaluation(file) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"flujo_evaluation": 2}', '{"flujo_evaluation": 1}'])
def test_another_file_is_no_baseline(tmp_path: Path, text: str) -> None:
    """The message names the file."""
    file = tmp_path / "v1.json"
    file.write_text(text)
    with pytest.raises(DeclarationError, match=r"v1\.json"):
        read_evaluation(file)


def test_reports_hide_secrets() -> None:
    """In errors, reasons, failures and outputs."""
    found = evaluation(
        case("a", "error", error=f"key {SECRET}", output=f"key {SECRET}", evaluator_failures={"Judge": SECRET}),
        case("b", "failed", assertions={"ok": False}, reasons={"ok": SECRET}),
    )
    for report in (found.to_text(), found.to_json(), found.to_junit(), found.to_markdown()):
        assert SECRET not in report
    gate = GateResult(text=f'score."{SECRET}">=1', holds=False, measured=0.5, wanted=1.0)
    judged = case(f"key {SECRET}", "failed", scores={SECRET: 0.5}, labels={"kind": SECRET})
    named = evaluation(judged, name=f"set {SECRET}", gates=(gate,))
    assert all(SECRET not in report for report in (named.to_text(), named.to_junit(), named.to_markdown()))


def test_markdown_shows_only_cases_that_changed_or_failed() -> None:
    """At most fifty, with the number of the others."""
    comparison = Comparison(baseline="v0", deltas=(), changed=("better",), removed=("gone",))
    bad = [case(f"bad {i}", "failed") for i in range(60)]
    shown = evaluation(case("same"), case("better"), *bad, comparison=comparison).to_markdown()
    assert "| same |" not in shown
    assert "| better | passed |" in shown
    assert shown.count("| failed |") == 49
    assert "and 11 more cases" in shown
    assert "Removed cases: gone" in shown


def test_a_name_cannot_break_a_table() -> None:
    """Pipes, newlines and markup are escaped."""
    shown = evaluation(case("a|b\n| x | passed", "failed")).to_markdown()
    assert [line for line in shown.splitlines() if "a\\|b" in line] == ["| a\\|b \\| x \\| passed | failed | failed |"]


def test_a_text_has_lines_of_the_given_width() -> None:
    """Control characters do not reach the terminal."""
    lines = evaluation(case("a" * 300 + "\x1b[2J")).to_text(width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)


def test_passed_needs_gates_or_cases_that_hold() -> None:
    """And never is true of a stopped evaluation."""
    good, bad = GateResult(text="x", holds=True, measured=1.0, wanted=1.0), case("a", "failed")
    assert evaluation(case("a")).passed
    assert not evaluation(bad).passed
    assert evaluation(bad, gates=(good,)).passed
    assert not evaluation(bad, gates=(good, attrs.evolve(good, holds=False))).passed
    assert not evaluation(case("a"), gates=(good,), status="stopped").passed


def test_an_average_names_a_metric() -> None:
    """With or without its family; an unknown one is refused with the known ones."""
    found = evaluation(case("a", scores={"tone": 0.5}, cost_usd=1.0), case("b", scores={"tone": 1.0}, cost_usd=3.0))
    assert (found.average("score.tone"), found.average("tone"), found.average("cost")) == (0.75, 0.75, 2.0)
    with pytest.raises(ValueError, match="no metric 'style'; it has pass, cost"):
        found.average("style")


def test_without_the_extra_evaluate_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline and its runs need no extra."""
    monkeypatch.setitem(sys.modules, "pydantic_evals.evaluators", None)
    with pytest.raises(ImportError) as refused:
        Flujo(Step("a", str)).evaluate("set.yaml")
    assert str(refused.value) == "flujo.evaluate needs pydantic-evals: pip install 'flujo-actors[evals]'"


@pytest.mark.slow
def test_importing_the_library_loads_neither_evals_nor_rich() -> None:
    """Nor does the class of results."""
    script = (
        "import sys, flujo_actors; flujo_actors.Evaluation, flujo_actors.Flujo; "
        "print([name for name in ('pydantic_evals', 'rich', 'pydantic_ai', 'logfire_api') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"
