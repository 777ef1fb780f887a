"""Drawings, the JSON Schema and export: the same pipeline in other forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import pytest
from blueprint_kit import looked_at
from fix_corpus import corpus

from flujo_actors import Flujo, NotExportable, Pipeline, Step, dump_blueprint, load_blueprint, make_agent_async
from flujo_actors._blueprint.diagrams import (
    as_dot,
    as_json,
    as_mermaid,
    as_svg,
    as_tree,
    drawing_of,
    drawing_of_pipeline,
)
from flujo_actors._blueprint.lint.rules import RULES
from flujo_actors._blueprint.parser.field_table import GROUPS
from flujo_actors._blueprint.parser.json_schema import blueprint_schema
from flujo_actors._blueprint.parser.nodes import data_of
from flujo_actors._blueprint.parser.project import Project
from flujo_actors._durable.fingerprint import Fingerprint

NASTY = (
    "steps:\n  - {name: end, uses: builtins.passthrough}\n"
    '  - {name: "a\\"] --> b;<b>\\n%%", uses: builtins.passthrough}\n'
    "  - name: subgraph\n    kind: map\n    iterable_input: '[1]'\n"
    "    body: [{name: end, uses: builtins.passthrough}]\n"
)


async def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


async def is_large(number: int, context: Any) -> bool:
    """Whether a loop is done."""
    return number > 10


def positive(number: int) -> bool:
    """A validator."""
    return number > 0


def parity(number: int, context: Any) -> str:
    """The name of a branch."""
    return "odd" if number % 2 else "even"


def search(words: str) -> str:
    """Look words up."""
    return words


def test_no_name_breaks_a_drawing(project: Project) -> None:
    """Ids are ours, labels are quoted and escaped."""
    model = looked_at(project, NASTY).model
    assert model is not None
    drawing = drawing_of(model)
    mermaid = as_mermaid(drawing)
    assert mermaid.count('"') == 2 * sum(line.count("[") for line in mermaid.splitlines())
    assert "<b>" not in mermaid
    assert [line.strip() for line in mermaid.splitlines()].count("end") == 1
    assert ElementTree.fromstring(as_svg(drawing)).tag.endswith("svg")
    assert json.loads(as_json(drawing))["steps"][2]["inside"][0]["steps"][0]["name"] == "end"
    assert as_dot(drawing).count("{") == as_dot(drawing).count("}")
    assert as_tree(drawing).count("└─") == 2


def test_a_pipeline_of_python_is_drawn_the_same_way() -> None:
    """Every kind of step."""
    pipeline = Pipeline(
        (
            Step("double", double, fallback=Step("again", double)),
            Step.parallel("both", {"l": double, "r": Step("x", double) >> Step("y", double)}),
            Step.branch_on("choose", parity, {"odd": double}, default=Step("else", double)),
            Step.loop_until("until", double, is_large),
            Step.map_over("each", double),
            Step.human_in_the_loop("ask", "Fine?"),
            Step.sequence("together", Step("a", double) >> Step("b", double)),
        ),
        name="all",
    )
    tree = as_tree(drawing_of_pipeline(pipeline))
    for word in (
        "double: double",
        "[fallback]",
        "both: parallel",
        "[l]",
        "choose: branch on parity",
        "ask: question Fine?",
    ):
        assert word in tree


# --- schema


STRUCTURAL = {"V-K1", "V-K2", "V-K3", "V-K5", "V-A7", "V-A1"}


def texts() -> list[str]:
    rules = [text for rule in RULES.values() for text in (rule.bad, rule.good)]
    return [*rules, *(text for _, text, _ in corpus())]


@pytest.mark.parametrize("number", range(len(texts())))
def test_the_schema_and_the_loader_accept_the_same(project: Project, number: int) -> None:
    """On every example of a rule, and on the whole corpus of fixes."""
    linted = looked_at(project, texts()[number])
    if linted.root is None or any(each.rule.startswith("V-Y") for each in linted.findings):
        return
    valid = jsonschema_rs.validator_for(blueprint_schema()).is_valid(data_of(linted.root))
    own = [each for each in linted.findings if each.file == "pipeline.yaml" and each.rule in STRUCTURAL]
    assert valid == (not own), linted.findings


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({}, True),
        ({"version": 2}, False),
        ({"agents": {"a": {}}}, False),
        ({"agents": {"a": {"model": "test", "retries": -1}}}, False),
        ({"agents": {"a": {"model": "test", "system_prompt": {"from_file": "a.txt"}}}}, True),
        ({"steps": []}, False),
        ({"steps": [{"name": "a", "uses": "os.system"}]}, False),
        ({"steps": [{"name": "a", "kind": "loop", "body": [{"name": "b", "uses": "builtins.passthrough"}]}]}, True),
        ({"steps": [{"name": "a", "kind": "loop", "message": "x"}]}, False),
        ({"steps": [{"name": "a", "kind": "hitl", "message": "x", "uses": "agents.b"}]}, False),
        ({"steps": [{"name": "a", "uses": "builtins.passthrough", "config": {"timeout_s": 0}}]}, False),
        ({"steps": [{"name": "a", "uses": "builtins.passthrough", "updates_context": "yes"}]}, False),
    ],
)
def test_the_schema_accepts_and_rejects(change: dict[str, Any], fine: bool) -> None:
    """As an editor would tell."""
    document = {"steps": [{"name": "a", "uses": "builtins.passthrough"}], **change}
    assert jsonschema_rs.validator_for(blueprint_schema()).is_valid(document) is fine


def test_every_key_of_the_table_is_in_the_schema_with_its_line() -> None:
    """One table for both."""
    schema = blueprint_schema()
    for group, fields in GROUPS.items():
        place = (
            schema
            if group == "blueprint"
            else schema["definitions"].get(group) or schema["definitions"][f"{group}_step"]
        )
        for field in fields:
            assert place["properties"][field.name]["markdownDescription"] == field.doc


# --- export


def exported(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    (tmp_path / "p.yaml").write_text(dump_blueprint(pipeline))
    return load_blueprint(tmp_path / "p.yaml", allow=[__name__])


@pytest.mark.parametrize(
    "step",
    [
        Step("double", double, max_retries=2, timeout_s=3.5, validators=positive, meta={"a": 1}),
        Step("given", double, input=21),
        Step("text", double, input="a {{ b }} {% c %}"),
        Step("nested", double, input={"a": ["{{", 1, None]}, fallback=Step("other", double)),
        Step.parallel(
            "both", {"l": double, "r": Step("x", double) >> Step("y", double)}, merge="overwrite", max_concurrency=2
        ),
        Step.branch_on("choose", parity, {"odd": double}, default=Step("even", double)),
        Step.loop_until("until", double, is_large, max_loops=7),
        Step.map_over("each", double, max_concurrency=3),
        Step.human_in_the_loop("ask", "Fine {{ not a template }}?", input_schema={"type": "string"}),
        Step("agent", make_agent_async("openai:gpt-4o", "You write.", tools=[search], name="writer")),
        Step("nameless", make_agent_async("test", "You write.", timeout_s=5)),
        Step.granular("slow", make_agent_async("test"), max_turns=3, keep_last=4),
    ],
    ids=lambda step: step.name,
)
def test_an_exported_pipeline_has_the_same_fingerprint(step: Any, tmp_path: Path) -> None:
    """`load(dump(p))` is p."""
    pipeline = Pipeline((step,), name="exported")
    again = exported(pipeline, tmp_path)
    assert Fingerprint.of(again).data() == Fingerprint.of(pipeline).data()


def test_a_loaded_blueprint_is_exported_as_what_it_was(tmp_path: Path) -> None:
    """Templates, expressions, sinks and reductions by their texts."""
    text = (
        "name: all\ncontext: {initial: {items: [1]}}\nusage_limits: {total_tokens_limit: 10}\n"
        "agents: {clerk: {model: test, output_schema: {type: object, properties: {n: {type: integer}}}}}\n"
        "steps:\n"
        '  - {name: a, uses: builtins.wrap_dict, params: {key: x}, input: {b: ["{{ input }}", c]}, sink_to: notes.a}\n'
        "  - {name: form, uses: agents.clerk, processing: {structured_output: openai_json}}\n"
        "  - {name: each, kind: map, iterable_input: context.items, "
        'body: [{name: b, uses: builtins.stringify, input: "{{ this }}"}]}\n'
        "  - {name: c, kind: conditional, condition_expression: input == 1, "
        "branches: {'true': [{name: d, uses: builtins.passthrough}]}, "
        "default_branch: [{name: e, uses: builtins.passthrough}]}\n"
        "  - {name: f, kind: parallel, reduce: values, branches: {l: [{name: g, uses: builtins.passthrough}]}}\n"
        "  - {name: h, kind: loop, max_loops: 2, exit_expression: previous_step, "
        'output_template: "{{ previous_step }}!", '
        "body: [{name: i, uses: builtins.passthrough}]}\n"
        '  - {name: j, kind: hitl, message: "Fine, {{ previous_step }}?"}\n'
    )
    (tmp_path / "first.yaml").write_text(text)
    first = load_blueprint(tmp_path / "first.yaml")
    again = exported(first, tmp_path)
    assert Fingerprint.of(again).data() == Fingerprint.of(first).data()
    assert (again.usage_limits, again.initial_context_data) == (first.usage_limits, first.initial_context_data)
    assert dump_blueprint(again) == dump_blueprint(first)


def test_a_changed_template_changes_the_fingerprint(tmp_path: Path) -> None:
    """What decides is known by its text."""
    facts = []
    for expression in ("input == 1", "input == 2"):
        (tmp_path / "p.yaml").write_text(
            f"steps: [{{name: c, kind: conditional, condition_expression: {expression}, branches: "
            "{'true': [{name: d, uses: builtins.passthrough}], 'false': [{name: e, uses: builtins.passthrough}]}}]"
        )
        facts.append(Fingerprint.of(load_blueprint(tmp_path / "p.yaml")).data())
    assert facts[0] != facts[1]


def test_everything_that_cannot_be_said_is_listed_at_once() -> None:
    """A lambda, a closure, an input by function, deps."""
    pipeline = Pipeline(
        (
            Step("one", lambda x: x),
            Step("two", double, input=lambda previous, context: 1),
            Step("three", make_agent_async("test"), deps=object()),
            Pipeline((Step("inner", double),), name="four", on_failure=Step("told", double)),
        )
    )
    with pytest.raises(NotExportable) as caught:
        dump_blueprint(pipeline)
    assert [reason.split("'")[1] for reason in caught.value.reasons] == ["one", "two", "three", "four"]


def test_an_exported_pipeline_runs(tmp_path: Path) -> None:
    """As its twin does."""
    pipeline = Pipeline((Step("double", double, input=4), Step.loop_until("until", Step("more", double), is_large)))
    assert Flujo(exported(pipeline, tmp_path)).run().output == Flujo(pipeline).run().output == 16
