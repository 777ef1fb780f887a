"""Damaged runs: a typed error that names the record, nothing changed, nothing imported, other runs unharmed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from flujo_actors import CorruptRecord, Flujo, Pipeline, RecordVersionError, RunClient, Step, Success
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.step_paths import StepPath
from kit.durable_places import Place
from kit.effects import Effects

BIG = "x" * 100_000


def asking(effects: Effects) -> Pipeline:
    """Small and large outputs, and then a question."""

    async def small(data: str) -> str:
        effects.add("small")
        return "small"

    async def large(data: str) -> str:
        return BIG

    return Step("small", small) >> Step("large", large) >> Step.human_in_the_loop("ask", "?")


def two_runs(place: Place, effects: Effects) -> Flujo:
    """A run to be damaged, and one beside it."""
    flujo = Flujo(asking(effects), store=place.open())
    flujo.run("in", run_id="run")
    flujo.run("in", run_id="other")
    return flujo


def change(place: Place, seq: int, column: str, value: Any) -> None:
    """Overwrite a column of a record, behind the store's back."""
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'run')"
    place.query(f"UPDATE flujo_records SET {column} = %s WHERE seq = %s AND run = {run}", value, seq)


def body_of(place: Place, kind: str) -> tuple[int, str]:
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'run')"
    rows = place.query(f"SELECT seq, body FROM flujo_records WHERE kind = %s AND run = {run} ORDER BY seq", kind)
    return rows[0][0], rows[0][1]


def dumped(place: Place) -> list[tuple[Any, ...]]:
    """The run's records as they are stored."""
    run = "(SELECT id FROM flujo_runs WHERE run_id = 'run')"
    return place.query(f"SELECT seq, kind, path, body, blob FROM flujo_records WHERE run = {run} ORDER BY seq")


def refused(place: Place, flujo: Flujo, seq: int, why: str) -> None:
    """Every way to read the run names the record; the run stays as it is, the other one goes on."""
    before, modules = dumped(place), set(sys.modules)
    client = RunClient(place.open())
    attempts = (
        lambda: flujo.resume("run"),
        lambda: client.state("run"),
        lambda: client.outcomes("run"),
    )
    for attempt in attempts:
        with pytest.raises(CorruptRecord, match=f"record {seq} of run 'run'.*{why}"):
            attempt()
    assert dumped(place) == before
    assert client.get("run").status == "paused"
    assert set(sys.modules) == modules
    assert {run.run_id for run in client.list()} == {"run", "other"}
    assert flujo.resume("other").status == "paused"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"success"', '"success', "JSON"),
        ('{"v":2', '{"v":"2"', "version '2'"),
        ('"output":"small"', '"output":{"$":"pickle","value":"gASV"}', "unknown type tag 'pickle'"),
        ('"success"', '"triumph"', "triumph"),
        ('"output":"small"', '"output":{"$":"bytes","value":"*D*yMzQ1Njc4OQ=="}', "bytes"),
        ('"output":"small"', '"output":{"$":"bytes","value":"QR=="}', "bytes"),
        ('"output":"small"', '"output":{"$":"error","value":[1]}', "error"),
    ],
    ids=[
        "not JSON",
        "odd version",
        "unknown tag",
        "unknown outcome",
        "odd base64",
        "base64 with bits to spare",
        "odd error",
    ],
)
def test_a_damaged_record_is_named(place: Place, effects: Effects, old: str, new: str, why: str) -> None:
    """Whatever is wrong with it: no guess, no import, and no change to what is stored."""
    flujo = two_runs(place, effects)
    seq, body = body_of(place, "settled")
    assert old in body
    change(place, seq, "body", body.replace(old, new, 1))
    refused(place, flujo, seq, why)
    assert "antigravity" not in sys.modules
    assert effects.counted() == {"small": 2}


def test_a_model_that_nobody_knows_is_named_and_shown(place: Place, effects: Effects) -> None:
    """The run cannot go on without the class; a client shows what is stored; nobody imports anything."""
    flujo = two_runs(place, effects)
    seq, body = body_of(place, "settled")
    flying = '{"$":"model","type":"antigravity.Flying","value":{}}'
    change(place, seq, "body", body.replace('"output":"small"', f'"output":{flying}'))
    with pytest.raises(CorruptRecord, match=rf"record {seq} of run 'run'.*antigravity\.Flying"):
        flujo.resume("run")
    shown = RunClient(place.open()).outcomes("run")[StepPath("small")]
    assert isinstance(shown, Success)
    assert shown.step_result.output == json.loads(flying)
    assert "antigravity" not in sys.modules


def test_a_fingerprint_without_a_kind_is_named(place: Place, effects: Effects) -> None:
    """What a run was started with is read with the same care."""
    flujo = two_runs(place, effects)
    seq, body = body_of(place, "admitted")
    change(place, seq, "body", body.replace('"kind"', '"sort"', 1))
    with pytest.raises(CorruptRecord, match=f"record {seq} of run 'run': its fingerprint.*kind"):
        flujo.resume("run")
    assert RunClient(place.open()).get("run").status == "paused"


def test_a_record_of_an_unknown_kind_is_named(place: Place, effects: Effects) -> None:
    """Written by a later version, perhaps."""
    flujo = two_runs(place, effects)
    change(place, 2, "kind", "teleported")
    refused(place, flujo, 2, "teleported")


def test_a_truncated_blob_is_named(place: Place, effects: Effects) -> None:
    """Large outputs are kept under their hash, so what is missing is noticed."""
    flujo = two_runs(place, effects)
    [(seq,)] = place.query(
        "SELECT seq FROM flujo_records WHERE blob IS NOT NULL AND run = "
        "(SELECT id FROM flujo_runs WHERE run_id = 'run') ORDER BY seq LIMIT 1"
    )
    place.query("UPDATE flujo_blobs SET data = substr(data, 1, length(data) - 5)")
    with pytest.raises(CorruptRecord, match=f"record {seq} of run 'run'.*blob"):
        flujo.resume("run")
    with pytest.raises(CorruptRecord, match=f"record {seq} of run 'run'.*blob"):
        RunClient(place.open()).state("run")


def test_a_missing_record_is_named(place: Place, effects: Effects) -> None:
    """Records are numbered without gaps."""
    flujo = two_runs(place, effects)
    place.query("DELETE FROM flujo_records WHERE seq = 3 AND run = (SELECT id FROM flujo_runs WHERE run_id = 'run')")
    refused(place, flujo, 3, "missing")


def test_a_damaged_question_is_named_and_takes_no_answer(place: Place, effects: Effects) -> None:
    """What is asked cannot be read, so nothing is consumed."""
    flujo = two_runs(place, effects)
    seq, body = body_of(place, "paused")
    change(place, seq, "body", body.replace('"token"', '"tocken"'))
    with pytest.raises(CorruptRecord, match=f"record {seq} of run 'run'"):
        flujo.resume("run")
    assert RunClient(place.open()).get("run").state_token is not None


def test_a_newer_record_is_no_damage(place: Place, effects: Effects) -> None:
    """The run waits for a newer process; other runs are readable."""
    flujo = two_runs(place, effects)
    seq, body = body_of(place, "settled")
    change(place, seq, "body", body.replace('{"v":2', '{"v":99', 1))
    said = rf"^record {seq} of run 'run' has format 99, this process reads up to 3: upgrade it$"
    for look in (lambda: flujo.resume("run"), lambda: RunClient(place.open()).outcomes("run")):
        with pytest.raises(RecordVersionError, match=said):
            look()
    change(place, seq, "kind", "magic")
    with pytest.raises(RecordVersionError, match=said):
        place.open().read(RunId("run"))
    assert RunClient(place.open()).outcomes("other")
    assert "run" in {run.run_id for run in RunClient(place.open()).list()}
