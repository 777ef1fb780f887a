"""Check of open runs before a deploy: the verdict is that of a real resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, RunClient, RunFilter, Step
from flujo_actors._api.cli.entry import main
from flujo_actors.errors import DeclarationError, FlujoError
from kit.durable_places import Place


def upper(text: str) -> str:
    return text.upper()


def lower(text: str) -> str:
    return text.lower()


def pipeline(*, agent: Any = upper, question: str = "May I?", more: bool = False, first: str = "upper") -> Any:
    found = Step(first, agent) >> Step.human_in_the_loop("ask", question)
    return found >> Step("last", upper) if more else found


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a question": {"question": "Shall I?"},
    "a step at the end": {"more": True},
    "the agent of a done step": {"agent": lower},
    "the name of a done step": {"first": "other"},
}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_verdict_is_that_of_a_resume(change: str, place: Place) -> None:
    """Strict and compat, and nothing is written by asking."""
    store = place.open()
    before = Flujo((pipeline()), store=store).run("a", run_id="r")
    after = Flujo((pipeline(**CHANGES[change])), store=store)
    records = RunClient(store).records("r")
    checks = after.check_runs()
    assert RunClient(store).records("r") == records
    [check] = checks
    accepted = [mode for mode in ("strict", "compat") if resumes(store, before, CHANGES[change], mode)]
    expected = "ok" if "strict" in accepted else "compat" if accepted else "blocked"
    assert (check.run_id, check.verdict) == ("r", expected)
    assert (check.reason is None) == (expected == "ok")


def resumes(store: Any, paused: Any, changes: dict[str, Any], mode: Any) -> bool:
    """Return whether a copy of the run is really resumed."""
    copied = RunClient(store).fork("r", 4)
    [token] = [each.state_token for each in RunClient(store).questions() if each.run_id == copied]
    try:
        Flujo((pipeline(**changes)), store=store).resume(token, True, mode=mode)
    except FlujoError:
        return False
    return True


def test_a_damaged_run_is_blocked_and_others_are_not(place: Place) -> None:
    """Ended runs are not checked; a run of another pipeline is blocked."""
    store = place.open()
    flujo = Flujo(pipeline(), store=store)
    for run_id in ("good", "bad"):
        flujo.run("a", run_id=run_id, labels={"name": run_id})
    Flujo(Step("upper", upper), store=store).run("a")
    Flujo(Step.human_in_the_loop("other", "?"), store=store).run("a")
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'bad')"
    place.query(f"UPDATE flujo_records SET body = '{{\"v\": 99}}' WHERE run = {run} AND kind = 'settled'")
    found = {check.run_id: check for check in flujo.check_runs(RunFilter(pipeline="upper >> ask"))}
    assert {run_id: check.verdict for run_id, check in found.items()} == {"good": "ok", "bad": "blocked"}
    assert "has format 99" in (found["bad"].reason or "")
    assert [check.run_id for check in flujo.check_runs(RunFilter(labels={"name": "good"}))] == ["good"]
    assert sorted(check.verdict for check in flujo.check_runs()) == ["blocked", "blocked", "ok"]
    with pytest.raises(DeclarationError, match="needs a store"):
        Flujo(pipeline()).check_runs()


def test_the_command_ends_with_one_if_a_run_cannot_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --mode compat, a compatible change is accepted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLUJO_STORE", url := f"sqlite:///{tmp_path}/runs.db")
    (tmp_path / "app_checked.py").write_text(
        "from flujo_actors import Step\ndef f(x):\n    return x\n"
        "p = Step('f', f) >> Step.human_in_the_loop('ask', 'May I?')\nq = p >> Step('last', f)\n"
    )
    assert main(["run", "app_checked.py:p", "--input", "x", "--run-id", "r", "--store", url]) == 3
    assert main(["runs", "check", "app_checked.py:p"]) == 0
    assert main(["runs", "check", "app_checked.py:q"]) == 1
    assert "cannot be resumed with --mode strict" in capsys.readouterr().err
    assert main(["runs", "check", "app_checked.py:q", "--mode", "compat"]) == 0
    capsys.readouterr()
    assert main(["runs", "check", "app_checked.py:q", "--json"]) == 1
    [check] = json.loads(capsys.readouterr().out)["checks"]
    assert (check["run_id"], check["verdict"]) == ("r", "compat")
    assert RunClient(url).get("r").status == "paused"
