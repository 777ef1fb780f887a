"""Every rule by its own examples, and the areas where a rule is easily wrong."""

from __future__ import annotations

import pytest
from blueprint_kit import fixed, found, looked_at, rules

from flujo_actors._blueprint.lint.rules import RULES
from flujo_actors._blueprint.parser.project import Project

AGENTS = (
    "agents:\n"
    "  writer: {model: test}\n"
    "  clerk: {model: test, output_schema: {type: object, properties: {kind: {enum: [a, b]}, items: {type: array, "
    "items: {type: object, properties: {n: {type: integer}}}}}}}\n"
)


def steps(*lines: str) -> str:
    return AGENTS + "steps:\n" + "".join(f"  {line}\n" for line in lines)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_finds_its_bad_example(project: Project, rule: str) -> None:
    """With the severity that it says it has."""
    hits = [each for each in found(project, RULES[rule].bad) if each.rule == rule]
    assert hits
    assert {each.severity for each in hits} <= {RULES[rule].severity, RULES[rule].also}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_has_nothing_against_its_good_example(project: Project, rule: str) -> None:
    """And no other rule has, either."""
    assert [str(each) for each in found(project, RULES[rule].good) if each.severity != "note"] == []


@pytest.mark.parametrize("rule", sorted(rule for rule in RULES if "safe" in RULES[rule].mends))
def test_what_a_rule_says_it_mends_is_mended(project: Project, rule: str) -> None:
    """By a fix of its bad example, which a second one leaves as it is."""
    once = fixed(project, RULES[rule].bad, unsafe="unsafe" in RULES[rule].mends)
    assert rule in [each.rule for each in once.applied]
    assert rule not in [each.rule for each in once.linted.findings]
    assert fixed(project, once.text, unsafe=True).text == once.text


# --- V-A5


@pytest.mark.parametrize(
    "then",
    [
        "- {name: two, uses: agents.writer}",
        '- {name: two, uses: agents.writer, input: {a: [{b: "{{ previous_step }}"}]}}',
        '- {name: two, kind: hitl, message: "Fine? {{ previous_step }}"}',
        '- {name: two, kind: conditional, condition_expression: "previous_step == 1", branches: {"true": [{name: x, '
        'uses: agents.writer, input: a}], "false": [{name: y, uses: agents.writer, input: a}]}}',
        '- {name: two, kind: map, iterable_input: "[previous_step]", body: [{name: x, uses: agents.writer}]}',
        "- {name: two, kind: parallel, branches: {a: [{name: x, uses: agents.writer}]}}",
        "- {name: two, kind: loop, max_loops: 2, exit_expression: input, body: [{name: x, uses: agents.writer}]}",
    ],
)
def test_an_output_is_used_by_whoever_looks_at_it(project: Project, then: str) -> None:
    """Without an input, in a nested template, a message, a condition, items, an entry step."""
    assert "V-A5" not in rules(project, steps("- {name: one, uses: agents.writer}", then))


@pytest.mark.parametrize(
    ("then", "after"),
    [
        (
            "- {name: two, uses: agents.writer, input: a}",
            '- {name: three, uses: agents.writer, input: "{{ steps.one.output }}"}',
        ),
        (
            "- {name: two, uses: agents.writer, input: a, sink_to: x}",
            '- {name: three, kind: map, iterable_input: "[1]", body: [{name: y, uses: agents.writer, input: "{{ '
            "steps['one'].output }}\"}]}",
        ),
        (
            "- {name: two, uses: agents.writer, input: a, sink_to: x}",
            '- {name: three, uses: agents.writer, input: a, fallback: {name: y, uses: agents.writer, input: "{{ '
            'steps.one.output }}"}}',
        ),
    ],
)
def test_a_later_template_uses_an_output_by_name(project: Project, then: str, after: str) -> None:
    """At any depth, and in a fallback."""
    said = found(project, steps("- {name: one, uses: agents.writer}", then, after))
    assert [each for each in said if each.rule == "V-A5" and "'one'" in each.message] == []


def test_a_name_with_spaces_is_seen_in_brackets(project: Project) -> None:
    """`steps["first draft"]`, two later."""
    text = steps(
        "- {name: first draft, uses: agents.writer}",
        "- {name: two, uses: agents.writer, input: a, sink_to: x}",
        "- {name: three, uses: agents.writer, input: '{{ steps[\"first draft\"].output }}'}",
    )
    assert rules(project, text) == ["V-U1"]


@pytest.mark.parametrize(
    "then",
    [
        "- {name: two, uses: agents.writer, input: a}",
        "- {name: two, kind: hitl, message: Fine?}",
        "- {name: two, kind: parallel, branches: {a: [{name: x, uses: agents.writer, input: a}]}}",
        '- {name: two, kind: map, iterable_input: "[1]", body: [{name: x, uses: agents.writer}]}',
    ],
)
def test_an_output_that_is_thrown_away_is_told_on_the_line_of_the_name(project: Project, then: str) -> None:
    """Once, as a warning, without a fix."""
    hits = [each for each in found(project, steps("- uses: agents.writer", "  name: one", then)) if each.rule == "V-A5"]
    assert [(each.severity, each.line, each.fix) for each in hits] == [("warning", 6, None)]


def test_the_answer_to_a_question_counts_as_an_output(project: Project) -> None:
    """A question shows what it is handed; its own answer must be used."""
    text = steps(
        "- {name: one, uses: agents.writer}",
        '- {name: ask, kind: hitl, message: "{{ previous_step }}?"}',
        "- {name: two, uses: agents.writer, input: a}",
    )
    assert ["'ask'" in each.message for each in found(project, text) if each.rule == "V-A5"] == [True]


def test_python_and_imports_may_be_there_for_their_effect(project: Project) -> None:
    """Nothing is said of their outputs."""
    text = "imports: {child: child.yaml}\n" + steps(
        "- {name: one, uses: shop.desk:greet}",
        "- {name: two, uses: imports.child, input: a}",
        "- {name: three, uses: agents.writer, input: a}",
    )
    assert "V-A5" not in rules(project, text)


# --- V-A8, promotion


@pytest.mark.parametrize(
    "said",
    [
        "processing: {structured_output: off}",
        "processing: {structured_output: auto}",
        "processing: {schema: {type: object}}",
        "processing: {schema: agents.clerk}",
        "processing: {enforcement: off}",
    ],
)
def test_whoever_says_something_of_structured_output_is_left_alone(project: Project, said: str) -> None:
    """An opt-out is a statement, too."""
    assert "V-A8" not in rules(project, steps(f"- {{name: one, uses: agents.clerk, {said}}}"))


def test_a_schema_of_a_text_is_not_structured(project: Project) -> None:
    """Neither is none."""
    text = "agents: {a: {model: test, output_schema: {type: string}}}\nsteps:\n  - {name: one, uses: agents.a}\n"
    assert rules(project, text) == []


# --- V-C1


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ("agents.writer", "error"),
        ("builtins.stringify", "error"),
        ("shop.desk:as_text", "error"),
        ("shop.desk:greet", "warning"),
        ("shop.desk:as_letter", "warning"),
        ("shop.desk:as_dict", None),
        ("agents.clerk", None),
        ("builtins.wrap_dict", None),
        ("builtins.ensure_object", None),
    ],
)
def test_what_updates_the_context_is_an_object(project: Project, uses: str, expected: str | None) -> None:
    """Known to be none: an error; unknown: a warning; known to be one: silence."""
    text = steps(f"- {{name: one, uses: {uses}, updates_context: true}}")
    assert [each.severity for each in found(project, text) if each.rule == "V-C1"] == [expected] * (
        expected is not None
    )


def test_mergeable_output_silences_what_is_unknown_and_nothing_else(project: Project) -> None:
    """A text stays a text."""
    unknown = steps("- {name: one, uses: shop.desk:greet, updates_context: true, mergeable_output: true}")
    text = steps("- {name: one, uses: agents.writer, updates_context: true, mergeable_output: true}")
    assert "V-C1" not in rules(project, unknown)
    assert "V-C1" in rules(project, text)


def test_an_unknown_output_is_mended_only_unsafely_and_a_class_safely(project: Project) -> None:
    """`-> Letter` is known to be an object."""
    unknown = steps("- name: one", "  uses: shop.desk:greet", "  updates_context: true")
    assert "mergeable_output" not in fixed(project, unknown).text
    assert fixed(project, unknown, unsafe=True).text == unknown + "    mergeable_output: true\n"
    letter = unknown.replace("greet", "as_letter")
    assert fixed(project, letter).text == letter + "    mergeable_output: true\n"


def test_the_fix_of_a_text_keeps_what_the_next_step_is_handed(project: Project) -> None:
    """Also where its template names what was handed over."""
    text = steps(
        "- name: first draft",
        "  uses: agents.writer",
        "  updates_context: true",
        "- name: two",
        "  uses: agents.writer",
        '  input: "Mend {{ previous_step }}"',
    )
    mended = fixed(project, text).text
    assert (
        '  - name: first draft_to_context\n    uses: builtins.wrap_dict\n    params: {key: "first draft"}\n' in mended
    )
    assert "Mend {{ steps" in mended
    assert "first draft" in mended.rpartition("Mend")[2]
    assert "V-C1" not in rules(project, mended)


# --- templates


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{{ previous_step.output }}", "V-T1"),
        ("{{ this }}", "V-T2"),
        ("{{ previous_step | upcase }}", "V-T3"),
        ("{{ previous_step is odd }}", "V-T3"),
        ("{{ previous }}", "V-T4"),
        ("{{ steps.nowhere.output }}", "V-T4"),
        ("{{ steps.show.output }}", "V-T4"),
        ("{{ steps.read }}", "V-T4"),
        ("{{ steps.read.output.kindd }}", "V-T5"),
        ("{{ previous_step.upper() }}", "V-T6"),
        ("{{ previous_step.__class__ }}", "V-T6"),
        ("{{ 2 * 3 }}", "V-T6"),
        ("{% set x = 1 %}", "V-T6"),
        ("{% for a in [1] %}{% for b in [1] %}{% for c in [1] %}{% endfor %}{% endfor %}{% endfor %}", "V-T6"),
    ],
)
def test_each_line_has_its_rule(project: Project, template: str, rule: str) -> None:
    """One finding, on the line of the key."""
    text = steps(
        "- {name: read, uses: agents.clerk, processing: {structured_output: auto}}",
        "- name: show",
        "  uses: builtins.passthrough",
        f"  input: '{template}'",
    ).replace("  writer: {model: test}\n", "")
    assert [(each.rule, each.line) for each in found(project, text)] == [(rule, 7)]


def test_fields_are_followed_through_lists_maps_and_conditions(project: Project) -> None:
    """Items of a list, `this`, a loop of a template, an exit."""
    text = steps(
        "- {name: read, uses: agents.clerk, processing: {structured_output: auto}}",
        '- {name: show, uses: builtins.passthrough, input: "{% for a in previous_step.items %}{{ a.m }}{% endfor %}"}',
        "- name: all",
        "  kind: map",
        "  iterable_input: steps.read.output.items",
        '  body: [{name: x, uses: builtins.passthrough, input: "{{ this.m }}"}]',
    )
    assert [each.rule for each in found(project, text) if each.rule == "V-T5"] == ["V-T5", "V-T5"]


def test_a_body_sees_outer_steps_and_nobody_sees_into_a_body(project: Project) -> None:
    """Scopes are lexical."""
    text = steps(
        "- {name: one, uses: agents.writer}",
        "- name: many",
        "  kind: map",
        '  iterable_input: "[1]"',
        "  body:",
        '    - {name: inner, uses: agents.writer, input: "{{ steps.one.output }}"}',
        '- {name: last, uses: agents.writer, input: "{{ steps.inner.output }} {{ previous_step }}"}',
    )
    hits = [each for each in found(project, text) if each.rule == "V-T4"]
    assert len(hits) == 1
    assert "inside a body or a branch are not visible" in hits[0].message


def test_a_default_covers_what_may_be_missing(project: Project) -> None:
    """Neither a field nor a key of the context is told then."""
    text = steps('- {name: one, uses: builtins.passthrough, input: "{{ context.x | default(1) }}"}').replace(AGENTS, "")
    assert rules(project, text) == []


def test_a_finding_in_a_block_stands_on_its_own_line(project: Project) -> None:
    """And is reached by a comment at the step."""
    text = steps("- name: one", "  uses: builtins.passthrough", "  input: |", "    a", "    b {{ this }}").replace(
        AGENTS, ""
    )
    assert [(each.rule, each.line) for each in found(project, text)] == [("V-T2", 6)]
    assert rules(project, text.replace("- name: one", "- name: one  # flujo: ignore V-T2")) == []


# --- flow


def test_branches_are_compared_with_what_a_schema_allows(project: Project) -> None:
    """An enum of two has no third branch, and needs the second."""
    text = steps(
        "- {name: read, uses: agents.clerk, processing: {structured_output: auto}}",
        "- name: choose",
        "  kind: conditional",
        "  condition_expression: previous_step.kind",
        "  branches: {a: [{name: x, uses: builtins.passthrough}], c: [{name: y, uses: builtins.passthrough}]}",
    )
    said = {each.rule: each for each in found(project, text)}
    assert "'c'" in said["V-B1"].message
    assert "'b'" in said["V-B2"].message
    assert said["V-B2"].line == 6


@pytest.mark.parametrize(
    ("exit_line", "expected"),
    [
        ("", [("V-L1", "error")]),
        ("exit_expression: false", [("V-L1", "error")]),
        ("exit_expression: true", [("V-L1", "warning")]),
        ("exit_expression: \"{{ previous_step == 'x' }}\"", []),
        ("exit_condition: shop.desk:is_done", []),
    ],
)
def test_a_loop_has_an_exit_that_can_hold(project: Project, exit_line: str, expected: list[tuple[str, str]]) -> None:
    """By expression or by function."""
    text = (
        "steps:\n  - name: again\n    kind: loop\n    max_loops: 3\n    body: [{name: x, uses: builtins.passthrough}]\n"
        + (f"    {exit_line}\n" if exit_line else "")
    )
    assert [(each.rule, each.severity) for each in found(project, text)] == expected


def test_many_turns_without_limits_are_a_warning(project: Project) -> None:
    """Limits around the loop count."""
    text = (
        "steps:\n  - name: again\n    kind: loop\n    max_loops: 101\n    exit_expression: previous_step\n"
        "    body: [{name: x, uses: builtins.passthrough}]\n"
    )
    assert rules(project, text) == ["V-L2"]
    assert rules(project, "usage_limits: {total_tokens_limit: 10}\n" + text) == []


@pytest.mark.parametrize("strategy", ["overwrite", "keep_first", "no_merge"])
def test_two_writers_are_fine_where_the_strategy_says_who_wins(project: Project, strategy: str) -> None:
    """V-P1 is about what would be an error."""
    assert rules(project, RULES["V-P1"].bad + f"    merge_strategy: {strategy}\n") == []


# --- keys


@pytest.mark.parametrize("key", ["agent_options", "deps", "guard", "confidence"])
def test_a_key_of_an_option_that_only_python_has_says_so(project: Project, key: str) -> None:
    """With the reason, and without a suggestion that would change what is meant."""
    text = f"steps:\n  - name: one\n    uses: builtins.passthrough\n    {key}: {{}}\n"
    [hit] = [each for each in found(project, text) if each.severity == "error"]
    called = f"`{key}` can only be set in Python: `Step(…, {key}=…)`; a blueprint names the step by `uses` (it holds"
    assert (hit.rule, hit.message[: len(called)], hit.fix) == ("V-K5", called, None)


@pytest.mark.parametrize("key", ["hooks", "resources"])
def test_an_option_of_the_run_names_flujo(project: Project, key: str) -> None:
    """At the top of a blueprint, too, with the reason."""
    [hit] = [each for each in found(project, f"{key}: []\n{RULES['V-K5'].good}") if each.severity == "error"]
    assert (hit.rule, f"`{key}` can only be set in Python: `Flujo(…, {key}=…)` (they are" in hit.message) == (
        "V-K5",
        True,
    )


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("usess", "uses"), ("imput", "input"), ("updates_contxt", "updates_context"), ("sinkto", "sink_to")],
)
def test_an_unknown_key_has_a_suggestion(project: Project, wrong: str, near: str) -> None:
    """And an unsafe fix."""
    (hit,) = [
        each
        for each in found(project, f"steps:\n  - name: one\n    uses: builtins.passthrough\n    {wrong}: true\n")
        if each.rule == "V-K1"
    ]
    assert f"did you mean `{near}`?" in hit.message


@pytest.mark.parametrize("kind", ["StateMachine", "dynamic_router", "cache", "agentic_loop", "tree_search"])
def test_kinds_of_the_language_before_are_refused_with_what_to_use(project: Project, kind: str) -> None:
    """And nothing else is said of the step."""
    assert rules(project, f"steps:\n  - name: one\n    kind: {kind}\n    states: {{}}\n") == ["V-K3"]


def test_old_spellings_are_read_with_a_note_and_mended(project: Project) -> None:
    """`step`, `agent: {id}`, `timeout`, a number in quotes, `body: {steps: […]}`."""
    text = (
        "version: 0.1\nsteps:\n  - step: one\n    agent: {id: flujo.builtins.wrap_dict, params: {key: a}}\n"
        '    config: {timeout: "30"}\n'
        "  - name: again\n    kind: loop\n    max_loops: 2\n    exit_expression: previous_step\n"
        "    body:\n      steps:\n        - agent: flujo.builtins.stringify\n          name: x\n"
    )
    assert rules(project, text) == []
    assert rules(project, text, notes=True).count("V-K4") == 6
    mended = fixed(project, text).text
    assert "  - name: one\n" in mended
    assert "config: {timeout_s: 30}" in mended
    assert "        - uses: builtins.stringify\n" in mended
    assert "    uses: builtins.wrap_dict\n    params: {key: a}\n" in mended
    assert "steps:" not in mended.partition("body:")[2]
    assert "V-K4" not in rules(project, mended, notes=True)


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "Yes", "OFF"])
def test_words_that_mean_true_or_false_are_mended_to_them(project: Project, word: str) -> None:
    """YAML 1.2 has two words for two truths."""
    text = f"steps:\n  - name: one\n    uses: builtins.ensure_object\n    updates_context: {word}\n"
    assert rules(project, text) == ["V-K2"]
    meant = "true" if word.lower() in ("yes", "on", "y") else "false"
    assert fixed(project, text).text == text.replace(f": {word}\n", f": {meant}\n")


def test_words_of_old_yaml_are_words(project: Project) -> None:
    """`no`, `on`, `y`, `1:30`, dates and numbers with a zero in front stay what is written."""
    model = looked_at(
        project, "steps:\n  - name: no\n    uses: builtins.passthrough\n    input: [on, y, 1:30, 2024-01-01, 010]\n"
    ).model
    assert model is not None
    assert model.steps[0].name == "no"
    assert model.steps[0].value("input") == ["on", "y", "1:30", "2024-01-01", 10]


@pytest.mark.parametrize(
    ("option", "fine"),
    [
        ("inherit_context: true", True),
        ("inherit_context: false", False),
        ("propagate_hitl: true", True),
        ("on_failure: abort", True),
        ("on_failure: continue", False),
        ("input_to: initial_prompt", True),
        ("input_to: scratchpad", False),
        ("outputs: [{child: a.b, parent: a.b}]", True),
        ("outputs: [{child: a, parent: b}]", False),
    ],
)
def test_options_of_imports_may_say_what_holds_anyway(project: Project, option: str, fine: bool) -> None:
    """Their opposites are refused with the reason."""
    text = f"imports: {{child: child.yaml}}\nsteps:\n  - {{name: one, uses: imports.child, config: {{{option}}}}}\n"
    assert rules(project, text) == ([] if fine else ["V-K3"])


def test_no_finding_follows_from_a_broken_uses(project: Project) -> None:
    """One mistake, one finding."""
    text = steps(
        "- {name: one, uses: agents.clrk, updates_context: true}",
        "- {name: two, uses: agents.writer, input: a}",
    )
    assert rules(project, text) == ["V-A6"]


# --- safety


def test_a_secret_is_neither_printed_nor_silenced(project: Project) -> None:
    """By shape anywhere, also in comments; by name in a value."""
    secret = "sk-" + "ant-" + "a1b2c3d4e5f6"
    text = (
        "# flujo: ignore-file V-X2\n"
        f"steps:\n  - name: {secret}\n    uses: builtins.passthrough  # flujo: ignore V-X2\n    {secret}: 1\n"
        "    input: {password: correct-horse}\n"
    )
    said = found(project, text)
    assert [each.rule for each in said].count("V-X2") == 3
    assert not any(secret in each.message or "correct-horse" in each.message for each in said)


def test_a_template_under_a_secret_name_is_no_secret(project: Project) -> None:
    """It refers to one."""
    text = 'steps:\n  - {name: one, uses: builtins.passthrough, input: {token: "{{ input.token }}"}}\n'
    assert rules(project, text) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../child.yaml", "a/../../child.yaml", "~/child.yaml", "link.yaml"])
def test_an_import_never_leaves_the_root(project: Project, path: str) -> None:
    """Not by a link, either."""
    (project.root / "link.yaml").symlink_to("/etc/hostname")
    text = f"imports: {{child: {path}}}\nsteps:\n  - {{name: one, uses: imports.child}}\n"
    assert rules(project, text) == ["V-I2"]


def test_a_circle_of_imports_is_shown_as_a_path(project: Project) -> None:
    """Through other files."""
    (project.root / "b.yaml").write_text("imports: {a: pipeline.yaml}\nsteps:\n  - {name: x, uses: imports.a}\n")
    text = "imports: {b: b.yaml}\nsteps:\n  - {name: one, uses: imports.b}\n"
    hits = [each for each in found(project, text) if each.rule == "V-I3"]
    assert [(each.file, "pipeline.yaml -> b.yaml -> pipeline.yaml" in each.message) for each in hits] == [
        ("b.yaml", True)
    ]


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("os:system", "V-X1"),
        ("shopkeeper:greet", "V-X1"),
        ("shop.desk:greet", None),
        ("shop:anything", None),
        ("shop.desk:__class__", "V-A6"),
        ("shop.desk.greet", "V-A6"),
        ("shop.desk:a.b", "V-A6"),
        ("../shop:greet", "V-A6"),
        ("shop.desk:greet()", "V-A6"),
        ("_shop:greet", "V-A6"),
    ],
)
def test_python_is_allowed_by_module_and_by_nothing_else(project: Project, target: str, rule: str | None) -> None:
    """One grammar, public names."""
    text = f'steps:\n  - {{name: one, uses: "{target}"}}\n'
    assert rules(project, text) == ([] if rule is None else [rule])


def test_names_of_python_are_looked_for_without_importing(project: Project) -> None:
    """With `--resolve`; the package of the test would raise."""
    import attrs

    strict = attrs.evolve(project, resolve=True)
    for target, rule in (("shop.desk:greet", []), ("shop.desk:gret", ["V-A6"]), ("shop.till:greet", ["V-A6"])):
        assert rules(strict, f"steps:\n  - {{name: one, uses: {target}}}\n") == rule


# --- silence


def test_a_comment_silences_the_rule_it_names_in_its_step(project: Project) -> None:
    """On the line of the step, or above it; globs do."""
    bad = steps("- {name: one, uses: agents.writer}", "- {name: two, uses: agents.writer, input: a}").replace(
        AGENTS, "agents: {writer: {model: test}}\n"
    )
    assert rules(project, bad) == ["V-A5"]
    for comment in ("V-A5", "V-A*", "V-T1, V-A5"):
        assert "V-A5" not in rules(
            project,
            bad.replace("input: a}", "input: a}").replace(
                "writer}\n  - {name: two", f"writer}}  # flujo: ignore {comment}\n  - {{name: two"
            ),
        )
        assert "V-A5" not in rules(
            project, bad.replace("  - {name: one", f"  # flujo: ignore {comment}\n  - {{name: one")
        )
    assert rules(project, bad.replace("  - {name: one", "  # flujo: ignore V-T1\n  - {name: one")) == ["V-U1", "V-A5"]
    assert rules(project, "# flujo: ignore-file V-A5\n" + bad) == []


def test_a_comment_in_a_text_is_no_comment(project: Project) -> None:
    """Nor is one in quotes."""
    text = steps(
        "- name: one",
        "  uses: agents.writer",
        "  input: |",
        "    # flujo: ignore V-A5",
        "- {name: two, uses: agents.writer, input: a}",
    )
    assert "V-A5" in rules(project, text)


def test_settings_change_what_a_rule_is(project: Project) -> None:
    """Ignored, an error, a warning; what cannot run stays an error."""
    import attrs

    bad = (
        "agents: {writer: {model: test}}\nsteps:\n  - {name: one, uses: agents.writer}\n"
        "  - {name: two, uses: agents.writer, input: a}\n"
    )
    assert rules(attrs.evolve(project, ignore=("V-A*",)), bad) == []
    assert [each.severity for each in found(attrs.evolve(project, error=("V-A5",)), bad)] == ["error"]
    broken = bad.replace("agents.writer, input", "agents.wrter, input")
    assert [each.severity for each in found(attrs.evolve(project, warning=("V-A6",)), broken)] == ["error"]


def test_one_mistake_is_one_finding(project: Project) -> None:
    """A misspelt `steps` is not missing, too; a key that the schema has not is not unwritten, too."""
    assert rules(project, "stepz: [{name: a, uses: builtins.passthrough}]\n") == ["V-K1"]
    text = "context: {schema: {type: object, properties: {a: {type: string}}}}\n"
    step = "steps: [{name: a, uses: builtins.passthrough, input: '{{ context.b }}'}]\n"
    assert rules(project, text + step) == ["V-T5"]


def test_templates_without_quotes_are_found_all_at_once(project: Project) -> None:
    """Those that YAML reads as mappings, and those that it cannot read."""
    text = (
        "steps:\n  - name: a\n    uses: builtins.passthrough\n    input:\n      - {{ input }}\n      - {{ input }}!\n"
    )
    assert [(each.rule, each.line) for each in found(project, text)] == [("V-Y3", 5), ("V-Y3", 6)]
    assert rules(project, fixed(project, text).text) == []


def test_a_chain_of_imports_has_an_end(project: Project) -> None:
    """Twenty deep, and no traceback."""
    for number in range(60):
        child = f"imports: {{next: c{number + 1}.yaml}}\nsteps: [{{name: a, uses: imports.next}}]\n"
        (project.root / f"c{number}.yaml").write_text(child)
    assert "V-I3" in rules(project, "imports: {next: c0.yaml}\nsteps: [{name: a, uses: imports.next}]\n")


def test_a_step_behind_two_aliases_is_told_of_once(project: Project) -> None:
    """It stands in one place of the text."""
    text = steps(
        "- name: both",
        "  kind: parallel",
        "  branches:",
        "    l: &same [{name: x, uses: agents.clerk}]",
        "    r: *same",
    )
    assert rules(project, text).count("V-A8") == 1


def test_a_misspelt_key_is_all_that_is_told_of_what_it_should_have_said(project: Project) -> None:
    """`use` is no second finding that there is nothing to run."""
    assert rules(project, "steps: [{name: a, use: builtins.passthrough}]") == ["V-K1"]
    assert rules(project, "steps: [{name: a, input: 3}]") == ["V-A1"]


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("opnai:gpt-4o", "did you mean `openai:gpt-4o`?"),
        ("gpt-4o", "write `provider:name`"),
        ("openai:", "write `provider:name`"),
    ],
)
def test_a_model_without_a_known_provider_is_a_warning(project: Project, model: str, hint: str) -> None:
    """The first run would fail; a provider that is newer than the linter still loads."""
    text = f"agents:\n  a:\n    model: '{model}'\nsteps:\n  - {{name: s, uses: agents.a}}\n"
    (found,) = [each for each in looked_at(project, text).findings if each.rule == "V-A6"]
    assert (found.severity, found.line, hint in found.message) == ("warning", 3, True)


@pytest.mark.parametrize("model", ["test", "openai:gpt-4o", "gateway/openai:gpt-4o", "bedrock:us.amazon.nova-v1:0"])
def test_a_model_with_its_provider_is_fine(project: Project, model: str) -> None:
    """Also through a gateway."""
    assert "V-A6" not in rules(project, f"agents: {{a: {{model: '{model}'}}}}\nsteps: [{{name: s, uses: agents.a}}]\n")


@pytest.mark.parametrize(
    ("kind", "meant"), [("str", "string"), ("int", "integer"), ("dict", "object"), ("strng", "string")]
)
def test_a_wrong_type_is_reported_on_its_line(project: Project, kind: str, meant: str) -> None:
    """With the type that is meant."""
    text = (
        "agents:\n  a:\n    model: test\n    output_schema:\n      type: object\n      properties:\n        n:\n"
        f"          type: {kind}\nsteps:\n  - {{name: s, uses: agents.a}}\n"
    )
    (found,) = [each for each in looked_at(project, text).findings if each.rule == "V-S1"]
    assert (found.line, found.message) == (8, f"this is not a JSON Schema: there is no type `{kind}`: write `{meant}`")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ x }", "`{{ x }` ends with one brace: write `}}` at its end"),
        ("{{ input }} and {{ x }", "`{{ x }` ends with one brace: write `}}` at its end"),
        ("{{ input", "`{{ input` is not closed: write `}}` at its end"),
    ],
)
def test_braces_that_are_not_closed_are_named(project: Project, template: str, told: str) -> None:
    """Instead of the parser's view of the rest of the text."""
    text = f'steps:\n  - name: s\n    uses: builtins.passthrough\n    input: "{template}"\n'
    (found,) = [each for each in looked_at(project, text).findings if each.rule == "V-T6"]
    assert found.message.endswith(told)


@pytest.mark.parametrize(
    ("key", "found"), [("topc", ["V-T5"]), ("topic", []), ("draft", []), ("drft", ["V-T5"]), ("user_id", [])]
)
def test_a_misspelled_key_of_a_context_is_found_without_a_schema(project: Project, key: str, found: list[str]) -> None:
    """Among the keys that the file names; others may be given to the run."""
    text = (
        "context:\n  initial: {topic: tides}\nsteps:\n"
        "  - {name: a, uses: builtins.passthrough, sink_to: draft}\n"
        f'  - {{name: b, uses: builtins.passthrough, input: "{{{{ previous_step }}}} {{{{ context.{key} }}}}"}}\n'
    )
    assert [rule for rule in rules(project, text) if rule == "V-T5"] == found
