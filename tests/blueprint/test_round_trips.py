"""`load_blueprint(dump_blueprint(p))` is p: pipelines inside pipelines, sequences with options, whatever has a body."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors import (
    Add,
    BlueprintError,
    DeclarationError,
    Flujo,
    NotExportable,
    Pipeline,
    Step,
    UsageLimits,
    dump_blueprint,
    lint,
    load_blueprint,
    make_agent_async,
)
from flujo_actors._durable.fingerprint import Fingerprint


def add_one(number: int) -> int:
    return number + 1


def anything(data: Any) -> Any:
    return data


def boom(number: int) -> int:
    raise ValueError(number)


def parity(number: int, context: Any) -> str:
    return "odd" if number % 2 else "even"


def is_large(number: int, context: Any) -> bool:
    return number > 6


def note(text: str) -> dict[str, str]:
    return {"text": text}


def again(pipeline: Pipeline) -> Pipeline:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "p.yaml"
        path.write_text(dump_blueprint(pipeline))
        assert [each.message for each in lint(path, allow=[__name__]) if each.severity == "error"] == []
        return load_blueprint(path, allow=[__name__])


def test_a_single_step_is_exported_as_a_pipeline() -> None:
    """As `Flujo` takes one; any other value is refused."""
    step = Step("add", add_one)
    assert dump_blueprint(step) == dump_blueprint(Pipeline.from_step(step))
    with pytest.raises(DeclarationError, match="the pipeline of a blueprint"):
        dump_blueprint(3)  # type: ignore[arg-type]


def facts(pipeline: Pipeline) -> object:
    made = Fingerprint.of(pipeline)
    return made.name, made.data()


def chain(*names: str, name: str | None = None, **options: Any) -> Pipeline:
    return Pipeline(tuple(Step(each, add_one) for each in names), name=name, **options)


NESTED = {
    "named": chain("a", "b", name="inner"),
    "one step": chain("a", name="inner"),
    "without a name": chain("a", "b"),
    "in itself": Pipeline((chain("a", name="deep"), chain("a", name="deeper")), name="inner"),
    "with limits": chain("a", name="inner", usage_limits=UsageLimits(total_tokens_limit=100)),
    "limits alone": chain("a", "b", usage_limits=UsageLimits(total_cost_usd_limit=1.5)),
    "sequence": Step.sequence("inner", chain("a", "b")),
    "sequence of a named pipeline": Step.sequence("inner", chain("a", "b", name="forgotten")),
    "sequence of one": Step.sequence("inner", Step("a", add_one)),
    "sequence with options": Step.sequence(
        "inner", chain("a"), input=3, max_retries=2, timeout_s=5.0, fallback=Step("other", add_one), meta={"a": 1}
    ),
}
AROUND = {
    "branch": lambda inside: Step.parallel("around", {"l": inside, "r": Step("beside", add_one)}, merge="overwrite"),
    "choice": lambda inside: Step.branch_on("around", parity, {"odd": inside}, default=inside),
    "loop": lambda inside: Step.loop_until("around", inside, is_large, max_loops=9),
    "map": lambda inside: Step.map_over("around", inside, max_concurrency=2),
    "fallback": lambda inside: Step("around", boom, fallback=inside),
    "sequence": lambda inside: Step.sequence("around", inside),
    "pipeline": lambda inside: Pipeline((Step("first", add_one), inside), name="around"),
    "nothing": lambda inside: inside,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("nested", NESTED)
def test_what_is_inside_comes_back_wherever_it_stands(nested: str, around: str) -> None:
    """The fingerprint, which has the path and the kind of every step, is the same."""
    pipeline = Pipeline((AROUND[around](NESTED[nested]), Step("last", add_one)), name="outer")
    assert facts(again(pipeline)) == facts(pipeline)


inner_names = st.sampled_from(["a", "b", "a/b", "~", "ümlaut", "no", "1.5", "{{ x }}", "two words"])


def trees() -> st.SearchStrategy[Any]:
    leaves = inner_names.map(lambda name: Step(name, anything))

    def grown(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        rows = st.lists(inside, min_size=1, max_size=3, unique_by=lambda step: step.name or object())
        named = st.builds(lambda steps, name: Pipeline(tuple(steps), name=name), rows, st.none() | inner_names)
        return st.one_of(
            named,
            st.builds(lambda name, steps: Step.sequence(name, Pipeline(tuple(steps))), inner_names, rows),
            st.builds(lambda name, step: Step.loop_until(name, step, is_large), inner_names, inside),
            st.builds(lambda name, one, two: Step.parallel(name, {"1": one, "no": two}), inner_names, inside, inside),
            st.builds(
                lambda other: Step("tried", anything, fallback=other), rows.map(lambda steps: Pipeline(tuple(steps)))
            ),
        )

    return st.recursive(leaves, grown, max_leaves=8)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3, unique_by=lambda step: step.name or object()))
def test_any_tree_comes_back(steps: list[Any]) -> None:
    """However deep, whatever its steps are called."""
    pipeline = Pipeline(tuple(steps))
    assert facts(again(pipeline)) == facts(pipeline)


def test_a_nested_pipeline_runs_as_its_twin_does() -> None:
    """The same output through every kind that holds others."""
    pipeline = Pipeline(
        (
            Step("start", add_one),
            chain("a", "b", name="inner"),
            Step.sequence("tried", Pipeline((Step("c", add_one), Step("d", boom))), fallback=chain("e", "f")),
            Step.loop_until("until", chain("g", "h", name="turn"), is_large),
        )
    )
    assert Flujo(again(pipeline)).run(0).output == Flujo(pipeline).run(0).output == 7


def test_agents_and_limits_inside_come_back() -> None:
    """An agent that two nested pipelines share is one agent again; limits hold where they stood."""
    clerk = make_agent_async("test", "You sort.", name="clerk", retries=3)
    limits = UsageLimits(total_tokens_limit=1_000_000, request_limit=50, step_limit=9, time_limit_s=60.5)
    pipeline = Pipeline(
        (
            Pipeline((Step("one", clerk),), name="left", usage_limits=limits),
            Step.sequence("right", Pipeline((Step("two", clerk), Step("three", note)))),
        )
    )
    left, right = (each for each, _ in again(pipeline).named_steps)
    assert left.usage_limits == limits
    assert left.steps[0].agent is right.body.steps[0].agent
    assert left.steps[0].agent._max_tool_retries == 3
    assert dump_blueprint(again(pipeline)) == dump_blueprint(pipeline)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (Step("a", add_one, min_confidence=0.5, confidence=lambda output: 1.0), "min_confidence"),
        (Step("a", add_one, usage_limits=UsageLimits(when_reached="pause")), "when_reached"),
        (Step.map_over("a", Step("b", add_one), batch=3), "batch"),
        (Step.map_over("a", Step("b", add_one), merge={"x": Add}), "merge"),
        (Pipeline((Step("b", add_one),), name="a", on_failure=Step("c", add_one)), "on_failure"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_the_language_cannot_say_is_refused_not_dropped(step: Any, named: str) -> None:
    """A blueprint that says less than its pipeline would be another pipeline."""
    with pytest.raises(NotExportable, match=named) as caught:
        dump_blueprint(Pipeline((step,)))
    assert all(reason.startswith("step 'a'") for reason in caught.value.reasons)


SEQUENCE = """\
agents: {clerk: {model: test}}
steps:
  - {name: first, uses: agents.clerk}
  - name: whole
    kind: sequence
    input: "{{ previous_step }}!"
    config: {max_retries: 1}
    body:
      - {name: second, uses: builtins.stringify}
      - {name: third, uses: builtins.wrap_dict, params: {key: x}, input: "{{ steps.first.output }}{{ previous_step }}"}
    updates_context: true
  - name: quiet
    kind: pipeline
    body:
      - {name: fourth, uses: builtins.passthrough, input: "{{ context.x }}"}
"""


def test_a_written_sequence_is_sound_and_runs(tmp_path: Path) -> None:
    """Its steps see those around it, its output is that of its last step."""
    (tmp_path / "p.yaml").write_text(SEQUENCE)
    assert lint(tmp_path / "p.yaml") == []
    result = Flujo(load_blueprint(tmp_path / "p.yaml")).run("hello")
    assert result.output == "success (no tool calls)" * 2 + "!"


@pytest.mark.parametrize(
    ("change", "rule", "line"),
    [
        (('input: "{{ context.x }}"}', 'input: "{{ steps.second.output }}"}'), "V-T4", 15),
        (("    body:\n      - {name: fourth", "    input: 1\n    body:\n      - {name: fourth"), "V-K1", 14),
        (("name: third", "name: second"), "V-N1", 10),
        (('params: {key: x}, input: "{{ steps.first.output }}{{ previous_step }}"', "input: 3"), "V-A5", 9),
        (("builtins.wrap_dict, params: {key: x}", "builtins.stringify"), "V-C1", 4),
    ],
)
def test_rules_look_into_a_sequence(change: tuple[str, str], rule: str, line: int, tmp_path: Path) -> None:
    """As into the body of a loop."""
    assert change[0] in SEQUENCE
    (tmp_path / "p.yaml").write_text(SEQUENCE.replace(*change))
    assert (rule, line) in [(each.rule, each.line) for each in lint(tmp_path / "p.yaml")]


def test_an_endless_loop_is_written_and_read(tmp_path: Path) -> None:
    """`max_loops: null` only with `keep_history`."""
    file = tmp_path / "loop.yaml"
    step = Step.loop_until("again", Step("one", add_one), is_large, max_loops=None, keep_history=7)
    text = dump_blueprint(Pipeline((step,)))
    assert "max_loops: null" in text
    file.write_text(text)
    [read] = load_blueprint(file, allow=[__name__]).steps
    assert (read.max_loops, read.keep_history) == (None, 7)
    file.write_text(text.replace("  keep_history: 7\n", ""))
    with pytest.raises(BlueprintError, match="needs keep_history"):
        load_blueprint(file, allow=[__name__])
