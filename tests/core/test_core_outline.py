"""The outline of a run: folded from light records, at any moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import Backoff, Flujo, LightRecord, MemoryStore, Outline, Pipeline, RunClient, Step, StepResult
from flujo_actors._core.step_paths import ROOT, StepPath, step_around, tried
from flujo_actors._core.views.record_summaries import gist_of, light, light_of
from flujo_actors.stores import Record


def row(seq: int, kind: Any, path: str = "", **facts: Any) -> LightRecord:
    return LightRecord(seq, kind, StepPath(path), float(seq), **facts)


def test_a_step_is_running_from_its_start_to_its_end() -> None:
    """Its beginning is its record's time less what it had been at work for."""
    outline = Outline([row(1, "admitted"), row(2, "started", "a", name="A", latency_s=0.5)])
    node = outline.nodes[StepPath("a")]
    assert (node.status, node.name, node.began_at, list(outline.root.running)) == ("running", "A", 1.5, ["a"])
    outline.apply(row(3, "settled", "a", status="success", latency_s=1.5))
    assert (node.status, node.began_at, outline.root.done, dict(outline.root.running)) == ("success", 1.5, 1, {})


def test_a_map_of_many_is_known_by_its_counts() -> None:
    """Done, failed, running and to go, the oldest running first, the last failure by its path."""
    outline = Outline([row(1, "started", "each")])
    for item in range(20):
        outline.apply(row(item + 2, "started", f"each/~i{item}", of=100))
    for item in range(10):
        status = "failure" if item == 7 else "success"
        outline.apply(row(item + 22, "settled", f"each/~i{item}", status=status))
    each = outline.nodes[StepPath("each")]
    assert (each.is_collapsed, each.done, each.failed, len(each.running), each.to_go) == (True, 9, 1, 10, 80)
    assert next(iter(each.running)) == "each/~i10"
    assert each.last_failure == "each/~i7"


def test_what_was_cut_short_is_not_running_for_ever() -> None:
    """It has no record of its own: the end of what is around it, or the end of the run, is its end."""
    outline = Outline([row(1, "started", "a"), row(2, "started", "a/b"), row(3, "started", "a/b/c")])
    outline.apply(row(4, "settled", "a", status="failure", note="why"))
    assert [node.status for node in outline.steps()] == ["failure", "aborted", "aborted"]
    outline = Outline(
        [row(1, "started", "a"), row(2, "paused", "a/b", note="Well?"), row(3, "ended", status="aborted")]
    )
    assert [node.status for node in outline.steps()] == ["aborted", "aborted"]
    assert outline.questions == {}


def test_a_step_that_tries_again_goes_on_without_what_it_gave_up() -> None:
    """Its attempt is counted up, and children of the attempt before are over."""
    outline = Outline([row(1, "started", "a"), row(2, "started", "a/b")])
    outline.apply(row(3, "settled", tried(StepPath("a")), status="failure", note="no", attempts=1, tokens=5))
    node = outline.nodes[StepPath("a")]
    assert (node.status, node.attempts, node.note, outline.tokens) == ("running", 2, "no", 5)
    outline.apply(row(4, "started", "a/~a2/b"))
    assert outline.nodes[StepPath("a/~a2/b")].parent is node
    outline.apply(row(5, "settled", "a", status="success", attempts=2, tokens=9))
    assert (outline.tokens, node.status) == (9, "success")


def test_questions_come_and_go() -> None:
    """From the pause to the answer, or to the end of what is around it."""
    outline = Outline([row(1, "paused", "ask", note="Well?"), row(2, "ended", status="paused")])
    assert (outline.status, outline.questions) == ("paused", {"ask": "Well?"})
    outline.apply(row(3, "answered", "ask"))
    outline.apply(row(4, "resumed"))
    assert (outline.status, outline.questions, outline.nodes[StepPath("ask")].status) == ("running", {}, "running")


def test_a_thousand_levels_are_folded() -> None:
    """No stack is as deep as a run may be."""
    path = "/".join(f"s{level}" for level in range(2000))
    outline = Outline([row(1, "started", path), row(2, "ended", status="aborted")])
    assert {node.status for node in outline.steps()} == {"aborted"}


@pytest.mark.slow
@given(st.data())
def test_the_total_counts_everything_once(data: st.DataObject) -> None:
    """At the end, and never more than that before: as `RunClient.state` counts it."""
    store = MemoryStore()
    rng = random.Random(data.draw(st.integers(0, 2**32)))

    def spend(tokens: int, fails: int) -> Any:
        left = [fails]

        async def work(_: object) -> Any:
            left[0] -= 1
            ok = left[0] < 0
            return StepResult(name="x", output=1, success=ok, token_counts=tokens, cost_usd=tokens / 1000)

        return work

    def some(name: str, depth: int) -> Any:
        kind = rng.choice(["leaf", "leaf", "parallel", "pipeline", "map"] if depth else ["leaf"])
        match kind:
            case "parallel":
                branches = {f"{name}{part}": some(f"{name}{part}", depth - 1) for part in "xy"}
                return Step.parallel(name, branches, on_branch_failure="ignore")
            case "pipeline":
                return Pipeline((some(f"{name}p", depth - 1), some(f"{name}q", depth - 1)), name=name)
            case "map":
                return Step.map_over(name, some(f"{name}m", depth - 1), items=[1, 2])
            case _:
                work, again = spend(rng.randint(0, 50), rng.randint(0, 2)), rng.randint(0, 2)
                return Step(name, work, max_retries=again, backoff=Backoff.none())

    Flujo(Pipeline((some("a", 2), some("b", 2)), name="all"), store=store).run(0, run_id="r")
    outline, client = Outline(), RunClient(store)
    for record in client.records("r"):
        outline.apply(record)
        counted = client.state_at("r", record.seq).usage
        assert outline.tokens == counted.tokens
        assert outline.cost_usd == pytest.approx(counted.cost_usd)


def test_the_step_around_a_step_is_no_attempt_and_no_conversation() -> None:
    """What the library puts between two steps is not one."""
    for path, around in {
        "a": "",
        "a/b": "a",
        "a/~a2/b": "a",
        "each/~i3": "each",
        "each/~i3/~a2/b": "each/~i3",
        "a/~f": "a",
        "a/~g0.1/~u1": "a",
    }.items():
        assert step_around(StepPath(path)) == around


BODIES: list[tuple[Any, str, dict[str, Any]]] = [
    ("admitted", '{"v":2,"input":1}', {}),
    ("admitted", '{"v":2,"origin":{"run_id":"o","seq":3}}', {"origin": "o", "origin_seq": 3}),
    ("started", '{"v":2,"name":"n","latency_s":0.25,"of":9}', {"name": "n", "latency_s": 0.25, "of": 9}),
    (
        "settled",
        '{"v":2,"success":{"name":"n","latency_s":0.5,"token_counts":7,"cost_usd":0.1,"attempts":2}}',
        {"name": "n", "status": "success", "latency_s": 0.5, "tokens": 7, "cost_usd": 0.1, "attempts": 2},
    ),
    (
        "settled",
        '{"v":2,"failure":{"feedback":"why","step_result":{"name":"n"}}}',
        {"name": "n", "status": "failure", "note": "why"},
    ),
    ("settled", '{"v":1,"outcome":{"kind":"success","step_result":{"name":"old"}}}', {"name": "old"}),
    ("paused", '{"v":2,"step_name":"n","message":"Well?","usage":{"input_tokens":3}}', {"note": "Well?", "tokens": 3}),
    ("unit", '{"v":2,"result":"{}","usage":{"input_tokens":3,"output_tokens":4,"cost_usd":1.5}}', {"tokens": 7}),
    ("intent", '{"v":2,"intent":"{\\"tool\\":\\"book\\"}"}', {"note": "book"}),
    (
        "intent",
        '{"v":2,"intent":"{\\"tool\\":\\"book\\",\\"arguments\\":{\\"city\\":\\"Oslo\\",\\"n\\":[1]}}"}',
        {"note": "book(city=Oslo, n=[1])"},
    ),
    ("ended", '{"v":2,"status":"failed","feedback":"why","total_tokens":5}', {"status": "failed", "tokens": 5}),
    ("settled", "not json", {}),
    ("settled", "[1]", {}),
    ("settled", '{"success":{"name":3,"latency_s":"x","token_counts":null}}', {"name": "", "tokens": 0}),
]


@pytest.mark.parametrize(("kind", "body", "facts"), BODIES)
def test_a_light_record_says_what_its_body_says(kind: Any, body: str, facts: dict[str, Any]) -> None:
    """Read from a short body, and from the gist that a long one would have; never an error, whatever it is."""
    record = Record(kind=kind, path=StepPath("a"), body=body, seq=3, at=1.5)
    short = light_of(record)
    assert {name: getattr(short, name) for name in facts} == facts
    assert gist_of(record) is None
    long = Record(kind=kind, path=StepPath("a"), body=body[:-1] + f', "long": "{"x" * 600}"}}', seq=3, at=1.5)
    if body.endswith("}"):
        assert light(3, kind, StepPath("a"), 1.5, gist_of(long) or "") == short


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "3", '{"unknown": 1}'])
def test_a_gist_that_cannot_be_read_says_nothing(text: str) -> None:
    """The record is there all the same."""
    assert light(1, "settled", ROOT, None, text) == LightRecord(1, "settled", ROOT)
