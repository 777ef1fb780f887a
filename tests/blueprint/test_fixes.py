"""Fixes touch what they say and nothing else, byte for byte; twice is once; what cannot be proven is refused."""

from __future__ import annotations

import re

import pytest
from blueprint_kit import fixed, looked_at, rules
from fix_corpus import corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flujo_actors._blueprint.lint.fixer import fix_all
from flujo_actors._blueprint.parser.findings import Change, Edit, Fix
from flujo_actors._blueprint.parser.project import Project

CORPUS = corpus()


def lines(text: str) -> list[str]:
    return re.split(r"\r\n|\n", text)


@pytest.mark.parametrize(("name", "text", "added"), CORPUS, ids=[name for name, _, _ in CORPUS])
def test_a_fix_adds_its_lines_and_leaves_all_others(
    project: Project, name: str, text: str, added: list[str] | None
) -> None:
    """Each line of the text is still there, in order; the new ones are exactly those of the fix, with its newlines."""
    once = fixed(project, text)
    if added is None:
        assert once.text == text
        assert "V-A8" in [each.rule for each in once.linted.findings]
        return
    new = lines(once.text)
    place = next(at for at in range(len(new)) if new[at : at + len(added)] == added)
    assert new[:place] + new[place + len(added) :] == lines(text)
    assert once.text.count("\r\n") in (0, once.text.count("\n"))
    assert once.text.endswith("\n") == text.endswith("\n")
    assert fixed(project, once.text).text == once.text
    assert "V-A8" not in rules(project, once.text)


def test_the_schema_is_carried_over_as_a_reference(project: Project) -> None:
    """`--copy-schema`: a copy would drift."""
    text = CORPUS[0][1]
    assert fixed(project, text, copy_schema=True).text == text + (
        "    processing:\n      structured_output: openai_json\n      schema: agents.clerk\n"
    )


def test_several_fixes_are_applied_together(project: Project) -> None:
    """From the end, so that no place moves before its turn."""
    step = "  - name: {}\n    uses: agents.clerk\n"
    text = CORPUS[0][1].partition("steps:")[0] + "steps:\n" + "".join(step.format(f"s{n}") for n in range(30))
    once = fixed(project, text)
    assert len(once.applied) == 30
    assert once.text.count("openai_json") == 30


def test_what_cannot_be_proven_is_left_out(project: Project) -> None:
    """A fix whose data is not what it says changes nothing, and does not keep others from being applied."""
    text = CORPUS[0][1] + "  - step: two\n    uses: builtins.passthrough\n"
    linted = looked_at(project, text)
    assert linted.root is not None
    liar = Fix(
        safe=True,
        edits=(Edit(start=0, end=0, text="name: liar\n"),),
        changes=(Change(kind="set", node=linted.root, key="name", value="honest"),),
    )
    import attrs

    findings = [attrs.evolve(linted.findings[0], fix=liar), *linted.findings]
    changed = fix_all(
        attrs.evolve(linted, findings=findings), lambda new: looked_at(project, new), unsafe=True, wanted=lambda _: True
    )
    assert "liar" not in changed.text
    assert "- name: two" in changed.text


def test_a_comment_on_a_line_that_goes_stays(project: Project) -> None:
    """`updates_context` goes, what was said about it does not."""
    text = (
        "agents: {writer: {model: test}}\nsteps:\n  - name: one\n    uses: agents.writer\n"
        "    updates_context: true  # why\n"
    )
    assert "    # why\n" in fixed(project, text).text


@pytest.mark.parametrize(
    ("value", "mended"),
    [
        ("{{ previous_step }}", '"{{ previous_step }}"'),
        ("{{ a['b'] }} and more # why", "\"{{ a['b'] }} and more\" # why"),
        ('{{ "a" }}', "'{{ \"a\" }}'"),
    ],
)
def test_templates_get_quotes(project: Project, value: str, mended: str) -> None:
    """Around the value, not around the comment."""
    text = f"steps:\n  - name: one\n    uses: builtins.passthrough\n    input: {value}\n"
    assert "V-Y3" in rules(project, text)
    assert f"input: {mended}\n" in fixed(project, text).text


KEYS = st.sampled_from(["name: x", "uses: agents.clerk", "meta: {a: 1}", "input: |\n      b\n\n", "# c", "", "step: y"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(KEYS, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_text_is_fixed_line_by_line_or_left_alone(
    project: Project, parts: list[str], newline: str, last: bool
) -> None:
    """Whatever is thrown together: lines are added, or a key on a line is written anew; no other line changes."""
    text = CORPUS[0][1] + "  - \n" + "".join(f"    {part}\n" for part in parts)
    text = (text if last else text.rstrip("\n")).replace("\n", newline)
    once = fixed(project, text)
    kept = set(lines(once.text))
    gone = [line for line in lines(text) if line not in kept]
    assert all(line.strip().startswith(("step:", "- step:")) for line in gone)
    assert fixed(project, once.text).text == once.text


OLD_FORMS = {
    "block": ("agent:\n      id: flujo.builtins.stringify\n", "uses: builtins.stringify\n"),
    "path": ("agent:\n      path: shop.desk:greet\n", "uses: shop.desk:greet\n"),
    "flow": ("agent: {id: flujo.builtins.stringify}  # as text\n", "uses: builtins.stringify  # as text\n"),
    "params in flow": (
        "agent: {id: flujo.builtins.wrap_dict, params: {key: 'a'}} # k\n",
        "uses: builtins.wrap_dict\n    params: {key: 'a'} # k\n",
    ),
    "params in block": (
        'agent:\n      id: flujo.builtins.wrap_dict\n      params:\n        key: "a: b"\n',
        'uses: builtins.wrap_dict\n    params: {key: "a: b"}\n',
    ),
    "params first": (
        "agent: {params: {key: a}, id: flujo.builtins.wrap_dict}\n",
        "uses: builtins.wrap_dict\n    params: {key: a}\n",
    ),
    "a comment inside": ("agent:\n      # which\n      id: flujo.builtins.stringify\n", None),
    "params twice": ("agent: {id: flujo.builtins.wrap_dict, params: {key: a}}\n    params: {key: b}\n", None),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("form", OLD_FORMS)
def test_an_agent_in_its_old_form_becomes_what_the_step_uses(project: Project, form: str, newline: str) -> None:
    """With its params; whatever stands around it stays, and what cannot be kept so is left alone."""
    before, after = OLD_FORMS[form]
    text = f"steps:\n  - name: one  # first\n    {before}    meta: {{a: 1}}\n".replace("\n", newline)
    wanted = text if after is None else text.replace(before.replace("\n", newline), after.replace("\n", newline))
    mended = fixed(project, text).text
    assert mended == wanted
    assert fixed(project, mended).text == mended


OLD_BODIES = {
    "block": ("body:\n      steps:\n        - name: x\n", "body:\n        - name: x\n"),
    "no indent": ("body:\n      steps:\n      - name: x\n", "body:\n      - name: x\n"),
    "a comment below": (
        "body:\n      steps:\n        # x\n        - name: x\n",
        "body:\n        # x\n        - name: x\n",
    ),
    "a comment beside": ("body:\n      steps: # x\n        - name: x\n", None),
}


@pytest.mark.parametrize("form", OLD_BODIES)
def test_a_body_loses_the_key_around_its_steps(project: Project, form: str) -> None:
    """One line goes, and no other one changes; a comment on it keeps it."""
    before, after = OLD_BODIES[form]
    rest = "uses: builtins.stringify\n    max_loops: 2\n    exit_expression: previous_step\n"
    indent = " " * (len(before.splitlines()[-1]) - len("name: x"))
    text = f"steps:\n  - name: again\n    kind: loop\n    {before}{indent}{rest}"
    assert fixed(project, text).text == (text if after is None else text.replace(before, after))


def test_a_body_in_flow_style_loses_its_braces(project: Project) -> None:
    """The list stays as it is written."""
    text = (
        "steps:\n  - name: again\n    kind: loop\n    body: {steps: [{name: x, uses: builtins.stringify}]}\n"
        "    max_loops: 2\n    exit_expression: previous_step\n"
    )
    mended = text.replace("{steps: [{name: x, uses: builtins.stringify}]}", "[{name: x, uses: builtins.stringify}]")
    assert fixed(project, text).text == mended


NESTED = (
    "steps:\n  - kind: loop\n    name: grow\n    input: 1\n    # how\n    loop:\n      max_loops: 9  # most\n\n"
    "      # when\n      exit_expression: previous_step > 4\n      body:\n        - name: add\n"
    '          uses: builtins.passthrough\n          input: "{{ previous_step + 1 }}"\n    meta: {a: 1}\n'
)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_keys_of_a_nested_loop_become_keys_of_the_step(project: Project, newline: str) -> None:
    """One line goes, the others are indented less, and all comments stay."""
    text = NESTED.replace("\n", newline)
    flat = "".join(
        line.removeprefix("  ") if 5 < number < 14 else line
        for number, line in enumerate(NESTED.splitlines(keepends=True))
        if number != 5
    )
    assert [each.rule for each in looked_at(project, text).findings] == ["V-K4"]
    assert fixed(project, text).text == flat.replace("\n", newline)
    assert rules(project, flat) == []


@pytest.mark.parametrize(
    "step",
    [
        "{kind: map, name: a, map: {body: [{name: b, uses: builtins.passthrough}]}}",
        "kind: map\n    name: a\n    map: {body: [{name: b, uses: builtins.passthrough}]}",
        "map:\n      body: [{name: b, uses: builtins.passthrough}]\n    kind: map\n    name: a",
        "kind: map\n    name: a\n    map: # why\n      body: [{name: b, uses: builtins.passthrough}]",
        "kind: map\n    name: a\n    map:\n      body:\n       - name: b\n         uses: builtins.passthrough\n"
        '         input: "two\n lines"',
    ],
)
def test_a_nested_map_that_cannot_be_written_anew_is_read_and_left_alone(project: Project, step: str) -> None:
    """Flow style, a comment on the line of the key, a line with less indentation."""
    text = f"steps:\n  - {step}\n"
    assert [each.rule for each in looked_at(project, text).findings] == ["V-K4"]
    assert fixed(project, text).text == text


def test_a_nested_loop_is_checked_like_a_flat_one(project: Project) -> None:
    """An unknown key, a key in both places and a key of another language are findings on their own lines."""
    text = NESTED.replace("max_loops: 9", "max_loop: 9").replace("meta: {a: 1}", "exit_expression: true\n    state: {}")
    found = [(each.rule, each.line) for each in looked_at(project, text).findings if each.severity == "error"]
    assert found == [("V-K1", 7), ("V-Y2", 15), ("V-K3", 16)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('agent: "flujo.builtins.stringify"', 'uses: "builtins.stringify"'),
        ("agent: 'flujo.builtins.stringify'", "uses: 'builtins.stringify'"),
        ("agent: {id: 'flujo.builtins.stringify'}", "uses: 'builtins.stringify'"),
        ('"agent":\n      id: "flujo.builtins.stringify"', '"uses": "builtins.stringify"'),
        ("agent: flujo.builtins.stringify", "uses: builtins.stringify"),
    ],
)
def test_a_renamed_key_keeps_the_quotes_around_its_value(project: Project, old: str, new: str) -> None:
    """And its own."""
    text = 'steps:\n  - "step": "one"\n    {}\n'
    assert fixed(project, text.format(old)).text == text.replace('"step"', '"name"').format(new)
