"""What is in a run's records: every result once, and what earlier versions wrote can still be read."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from tour import Tour

from flujo_actors import Flujo, MemoryStore, Pipeline, RunClient, Step, StepResult, Usage
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Admission, Append, Record
from flujo_actors._durable.fingerprint import Fingerprint
from flujo_actors.errors import CorruptRecord
from kit.durable_places import Place
from kit.effects import Effects


def untimed(results: tuple[StepResult, ...]) -> tuple[StepResult, ...]:
    """The results without how long they took, which is stored in whole microseconds."""
    return tuple(
        attrs.evolve(result, latency_s=0.0, step_history=untimed(result.step_history), metadata={})
        for result in results
    )


def test_results_are_read_back_as_they_were(place: Place, effects: Effects) -> None:
    """A loop, branches, a map, a fallback and a nested pipeline, put together from the records of their steps."""
    tour = Tour(effects)
    store = place.open()
    result = tour.complete(store, "run")
    assert untimed(RunClient(store).state("run").results) == untimed(result.step_history)


def test_a_record_refers_to_the_steps_inside_it() -> None:
    """By the way from the step to them, and holds nothing of theirs."""
    inner = Step("one", _same) >> Step("two", _same)
    store = MemoryStore()
    Flujo(Pipeline((Step.loop_until("twice", inner, lambda output, _: False, max_loops=2),)), store=store).run(
        1, run_id="run"
    )
    history = {
        record.path: json.loads(record.body).get("history")
        for record in store.read(RunId("run"))
        if record.kind == "settled"
    }
    assert history["twice/~i1/one"] is None
    assert history["twice/~i1"] == ["one", "two"]
    assert history["twice"] == ["~i1", "~i2"]


def test_what_is_seen_at_a_point_needs_no_later_record() -> None:
    """The state at every sequence number can be put together, results inside results among it."""
    store = MemoryStore()
    pipeline = Pipeline((Step("one", _same) >> (Step("two", _same) >> Step("three", _same)),), name="p")
    Flujo(pipeline, store=store).run(1, run_id="run")
    client = RunClient(store)
    for record in store.read(RunId("run")):
        assert client.state_at("run", record.seq).seq == record.seq


def test_results_are_stored_and_read_at_any_depth() -> None:
    """No record holds more than its own step, so none is too deep to be written, or to be read on resuming."""
    deep = Pipeline((Step("leaf", _same),))
    for _ in range(300):
        deep = Pipeline((deep,), name="level")
    store = MemoryStore()
    flujo = Flujo(Pipeline((deep, Step.human_in_the_loop("ask", "Go on?"))), store=store)
    paused = flujo.run(1, run_id="run")
    assert paused.state_token is not None
    [result, _] = flujo.resume(paused.state_token, "yes").step_history
    depth = 0
    while result.step_history:
        [result], depth = result.step_history, depth + 1
    assert (result.name, depth) == ("leaf", 301)


def test_a_reference_to_a_record_that_is_not_there_is_named() -> None:
    """Damage in one record is not taken for an empty history."""
    store = MemoryStore()
    lease = _admitted(store, Pipeline((Step("outer", _same),)))
    broken = '{"v":2,"success":{"name":"outer","output":1},"history":["inner"]}'
    _append(store, lease, Record(kind="settled", path=_path("outer"), body=broken))
    with pytest.raises(CorruptRecord, match=r"record 2 of run 'run'.*'outer/inner'"):
        RunClient(store).state("run")
    with pytest.raises(CorruptRecord, match=r"record 2 of run 'run'.*'outer/inner'"):
        Flujo(Pipeline((Step("outer", _same),)), store=store).resume("run")


@pytest.mark.parametrize("history", ["3", '"ab"', '{"a":1}', "[7]"])
def test_a_history_that_is_none_is_named(history: str) -> None:
    """Whatever stands there instead of a list."""
    store = MemoryStore()
    lease = _admitted(store, Pipeline((Step("outer", _same),)))
    body = f'{{"v":2,"success":{{"name":"outer","output":1}},"history":{history}}}'
    _append(store, lease, Record(kind="settled", path=_path("outer"), body=body))
    with pytest.raises(CorruptRecord, match="record 2 of run 'run'"):
        RunClient(store).state("run")


def test_a_run_of_version_1_is_read_and_continued() -> None:
    """With everything spelled out, nested results included, and a fingerprint that repeats itself."""
    calls: list[int] = []

    async def last(data: int) -> int:
        calls.append(data)
        return data + 1

    pipeline = Pipeline(((Step("a", _same) >> Step("b", _same)), Step("last", last)))
    [nested, _] = pipeline.step_names()
    store = MemoryStore()
    lease = _admitted(store, pipeline, version=1)
    used = {"input_tokens": 3, "output_tokens": 4, "cached_tokens": 0, "requests": 1, "tool_calls": 0, "cost_usd": 0.5}
    a, b = _result_v1("a", used, []), _result_v1("b", _NOTHING, [])
    whole = _result_v1(nested, used, [a, b])
    _append(
        store,
        lease,
        Record(kind="started", path=_path(nested), body=json.dumps({"v": 1, "name": nested})),
        _settled_v1(f"{nested}/a", a),
        _settled_v1(f"{nested}/b", b),
        _settled_v1(nested, whole),
    )
    result = Flujo(pipeline, store=store).resume("run")
    assert (result.output, calls) == (8, [7])
    assert [each.name for each in result.step_history[0].step_history] == ["a", "b"]
    assert result.step_history[0].step_history[0].usage == Usage(
        input_tokens=3, output_tokens=4, requests=1, cost_usd=0.5
    )
    assert RunClient(store).state("run").usage.tokens == 7


def test_text_of_any_language_is_stored_as_it_is() -> None:
    """A character of another script is no escape of six."""
    store = MemoryStore()
    Flujo(Pipeline((Step("same", _same),)), store=store).run("Grüße, 你好", run_id="run")
    [settled] = [record for record in store.read(RunId("run")) if record.kind == "settled"]
    assert "Grüße, 你好" in settled.body


_NOTHING = {
    "input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "requests": 0, "tool_calls": 0, "cost_usd": 0.0
}  # fmt: skip


async def _same(data: Any) -> Any:
    return data


def _path(text: str) -> Any:
    return text


def _admitted(store: MemoryStore, pipeline: Pipeline, *, version: int = 2) -> Any:
    print_of = Fingerprint.of(pipeline)
    data: Any = print_of.data() if version > 1 else [[path, dict(facts)] for path, facts in print_of.steps.items()]
    body = json.dumps({"v": version, "input": 7, "context": None, "fingerprint": data})
    return store.admit(Admission(run_id=RunId("run"), pipeline=print_of.name, body=body), owner="me", lease_s=0.0)


def _append(store: MemoryStore, lease: Any, *records: Record) -> None:
    assert store.append([Append(lease=lease, records=records)]) == [None]


def _result_v1(name: str, usage: dict[str, Any], history: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "output": 7,
        "success": True,
        "attempts": 1,
        "latency_s": 0.25,
        "token_counts": usage["input_tokens"] + usage["output_tokens"],
        "cost_usd": usage["cost_usd"],
        "feedback": None,
        "metadata": {},
        "step_history": history,
        "usage": usage,
    }


def _settled_v1(path: str, result: dict[str, Any]) -> Record:
    body = {"v": 1, "outcome": {"kind": "success", "step_result": result}, "same_context": True}
    return Record(kind="settled", path=_path(path), body=json.dumps(body))
