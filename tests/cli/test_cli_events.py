"""`flujo-actors events`, `runs wake` and `run --submit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import Flujo, RunClient, Step
from flujo_actors._api.cli.entry import main


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/runs.db"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Carry out a command with `--json`; return its exit code and document."""
    code = main([*arguments, "--json"])
    text = capsys.readouterr().out
    return code, json.loads(text) if text else None


def test_events_are_sent_and_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An event that does not fit is exit code 2."""
    flujo = Flujo(Step.wait_for("paid?", "paid", schema=int), store=url)
    flujo.run(1, run_id="order")
    code, found = said(capsys, "events", "waits", "--store", url)
    assert (code, found["waits"][0]["run_id"]) == (0, "order")
    assert main(["events", "send", "paid", "--key", "order", "--data", '"much"', "--store", url]) == 2
    assert "does not fit what step 'paid?'" in capsys.readouterr().err
    code, sent = said(capsys, "events", "send", "paid", "--key", "order", "--data", "7", "--id", "one", "--store", url)
    assert (code, sent["id"], sent["status"]) == (0, "one", "delivered")
    code, found = said(capsys, "events", "list", "--status", "delivered", "--store", url)
    assert (code, [each["data"] for each in found["events"]]) == (0, [7])


def test_a_sleeping_run_is_woken(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Once; it is listed by its status and state before."""
    Flujo(Step.sleep("nap", 3600), store=url).run(1, run_id="asleep")
    code, found = said(capsys, "runs", "list", "--status", "sleeping", "--store", url)
    assert (code, found["runs"][0]["state"]) == (0, "sleeping")
    assert said(capsys, "runs", "wake", "asleep", "--store", url)[1]["woken"] is True
    assert said(capsys, "runs", "wake", "asleep", "--store", url)[1]["woken"] is False


PIPELINE = "version: '1'\nname: echo\nsteps:\n  - name: say\n    uses: builtins.passthrough\n"


def test_a_run_is_submitted_for_later(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its start is a span or a time with a zone."""
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    assert main(["run", "--submit", "--in", "3h", "--run-id", "later", "--store", url]) == 0
    assert capsys.readouterr().out.strip() == "later"
    at = "2126-12-01T09:00+01:00"
    assert main(["run", "--submit", "--at", at, "--run-id", "much-later", "--store", url]) == 0
    runs = RunClient(url)
    assert [runs.get(name).state for name in ("later", "much-later")] == ["sleeping", "sleeping"]
    assert runs.get("much-later").wakes_at == 4951785600.0
    assert main(["run", "--submit", "--at", "2126-12-01T09:00", "--store", url]) == 2
    assert main(["run", "--at", at, "--store", url]) == 2
    assert "has no time zone" in capsys.readouterr().err


def test_a_run_is_submitted_with_a_key_and_a_priority(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They order it in its queue; a wrong priority is refused before the run exists."""
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    assert main(["run", "--submit", "--key", "tenant-7", "--priority", "5", "--run-id", "one", "--store", url]) == 0
    info = RunClient(url).get("one")
    assert (info.key, info.priority) == ("tenant-7", 5)
    assert main(["run", "--submit", "--priority", "101", "--run-id", "two", "--store", url]) == 2
    assert "priority must be a whole number from -100 to 100, not 101" in capsys.readouterr().err
