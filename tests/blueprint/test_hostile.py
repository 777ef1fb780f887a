"""Whatever stands in a file: no traceback, no import, no file outside the root, no long wait, nothing huge."""

from __future__ import annotations

import builtins
import contextlib
import math
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import pytest
from blueprint_kit import found, looked_at, make_project, rules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flujo_actors._blueprint.parser.project import Project
from flujo_actors._blueprint.templates.template_compiler import evaluator
from flujo_actors._blueprint.templates.template_filters import MOST_WORK, TemplateError, TemplateFrame
from flujo_actors._blueprint.templates.template_parser import parse_expression, parse_template
from kit import preloaded

WORDS = st.sampled_from(
    [
        *(
            "steps:",
            "- name: a",
            "uses: agents.a",
            "kind: loop",
            "{{ x }}",
            "{% for %}",
            "agents:",
            "imports:",
            "&a",
            "*a",
        ),
        *(
            "|",
            ">",
            "'",
            '"',
            "[",
            "{",
            "]",
            "}",
            "#",
            "\t",
            "\n",
            "  ",
            "- ",
            ": ",
            "\x00",
            "\ufeff",
            "\u2028",
            "!!int",
        ),
        *(
            "input:",
            "body:",
            "branches:",
            "<<:",
            "---",
            "...",
            "? ",
            "processing: {schema: agents.a}",
            "9" * 50,
            ".inf",
        ),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.lists(WORDS, max_size=25).map(lambda words: "".join(words).encode()))
def test_arbitrary_bytes_are_findings_and_never_a_traceback(project: Project, content: bytes) -> None:
    """Looking at them ends, with places inside the text."""
    linted = looked_at(project, content)
    assert all(each.line >= 1 and each.column >= 1 for each in linted.findings)


YAML_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("name", "kind", "uses", "input", "config", "branches", "body", "default_branch", "fallback", "processing"),
        *(
            "granular",
            "params",
            "sink_to",
            "exit_expression",
            "condition",
            "message",
            "input_schema",
            "validators",
            "agent",
        ),
    ]
)
STEPS: Any = st.dictionaries(
    KEYS, YAML_VALUES | st.sampled_from(["loop", "map", "hitl", "parallel", "agents.a"]), max_size=6
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=3), YAML_VALUES, YAML_VALUES)
def test_any_values_under_known_keys_are_findings(project: Project, steps: Any, agents: Any, imports: Any) -> None:
    """A value of the wrong kind is never more than a finding."""
    import yaml

    looked_at(project, yaml.safe_dump({"steps": steps, "agents": agents, "imports": imports}, allow_unicode=True))


def bomb(levels: int) -> str:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    return text + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (bomb(9), "V-Y4"),
        (bomb(40), "V-Y4"),
        ("steps: " + "[" * 5_000, "V-Y4"),
        ("steps: " + "{a: " * 5_000, "V-Y4"),
        ("- " * 5_000 + "x", "V-Y4"),
        ("a: &a [*a]\n", "V-Y4"),
        ("x" * (1024 * 1024 + 1), "V-Y4"),
        ("steps: [" + "1, " * 60_000 + "1]", "V-Y4"),
        ("a: !!python/object/apply:os.system [id]\n", "V-Y4"),
        ("a: 1\n---\nb: 2\n", "V-Y4"),
        ("\x07", "V-Y1"),
        ("{{" * 3_000, "V-Y4"),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_walked(project: Project, content: str, rule: str) -> None:
    """By counting, in little memory."""
    tracemalloc.start()
    assert rule in rules(project, content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000_000


ESCAPES = [
    *(
        "{{ x.__class__ }}",
        "{{ x['__class__'] }}",
        "{{ x.__init__.__globals__ }}",
        "{{ x._private }}",
        "{{ __import__ }}",
    ),
    *(
        "{{ x() }}",
        "{{ x.upper() }}",
        "{{ range(9) }}",
        "{{ lipsum }}",
        "{{ cycler }}",
        "{{ joiner }}",
        "{{ namespace }}",
    ),
    *(
        "{{ self }}",
        "{{ caller() }}",
        "{{ loop.index }}",
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{% extends 'a' %}",
    ),
    *("{% from 'a' import b %}", "{% macro a() %}{% endmacro %}", "{% call x() %}{% endcall %}", "{% set a = 1 %}"),
    *(
        "{% set a %}b{% endset %}",
        "{% block a %}{% endblock %}",
        "{% filter upper %}a{% endfilter %}",
        "{% with %}{% endwith %}",
    ),
    *("{% autoescape true %}{% endautoescape %}", "{% raw %}{% endraw %}{{ x.__dict__ }}", "{{ x|attr('__class__') }}"),
    *(
        "{{ x|map('upper') }}",
        "{{ x|map(attribute='__class__') }}",
        "{{ x|map(attribute='a.__class__') }}",
        "{{ x|xmlattr }}",
    ),
    *("{{ x|pprint }}", "{{ x|format('a') }}", "{{ '%s' % x }}", "{{ x|selectattr('a') }}", "{{ x|groupby('a') }}"),
    *(
        "{{ x is callable }}",
        "{{ x is sameas y }}",
        "{{ x|tojson|safe }}",
        "{{ *x }}",
        "{{ x|default(**y) }}",
        "{% do x %}",
    ),
    *(
        "{{ x|sort(attribute='_a') }}",
        "{{ (x,) }}",
        "{{ x if x.__len__ }}",
        "{{ [x.__class__][0] }}",
        "{{ {'a': x.__b__} }}",
    ),
]


def is_refused(text: str) -> bool:
    """At the latest when it is evaluated, on something with a class of its own."""
    parsed = parse_template(text)
    unknown = any(each.root not in {"x", "y"} for each in parsed.references)  # no template sees another: V-T4
    return bool(parsed.faults) or unknown


@pytest.mark.parametrize("text", ESCAPES)
def test_no_template_reaches_into_python(text: str) -> None:
    """Refused when it is read, whatever is in scope."""
    assert is_refused(text), text


class Trap:
    """Something that a program may put into a context; it has no declared fields."""

    secret = "canary"

    def method(self) -> str:
        return "called"

    @property
    def prop(self) -> str:
        raise AssertionError("a property was read")


@pytest.mark.parametrize("text", ["{{ x.secret }}", "{{ x.method }}", "{{ x.prop }}", "{{ x['secret'] }}", "a {{ x }}"])
def test_only_declared_fields_are_read(text: str) -> None:
    """Neither attributes of a class, nor methods, nor properties."""
    with pytest.raises(TemplateError):
        evaluator(parse_template(text))(TemplateFrame({"x": Trap()}))


BIG = "a" * 900_000
ROWS = [{"a": 1}] * 9_000
EXPENSIVE = [
    *(
        "{{ big ~ big }}",
        "{{ big + big }}",
        "{{ big }}{{ big }}",
        "{{ [big, big, big] | join }}",
        "{{ [big, big] | tojson }}",
    ),
    *(
        "{{ big | replace('a', 'bbbbbbbbbb') }}",
        "{{ lines | indent(200) }}",
        "{{ big | indent(9999) }}",
    ),
    *("{% for a in rows %}{% for b in rows %}x{% endfor %}{% endfor %}", "{% for a in rows %}{{ big }}{% endfor %}"),
    *(
        "{% for a in rows %}{{ big | upper | length }}{% endfor %}",
        "{% for a in rows %}{{ rows | length }}{{ rows | sort(attribute='a') | length }}{% endfor %}",
    ),
    *(
        "{% for a in rows %}{% for b in [1, 2] %}{{ a }}{% endfor %}{% endfor %}",
        "{{ rows + rows }}",
        "{{ circle | tojson }}",
    ),
    *(
        "a {{ circle }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ rows | map(attribute='a') | list | sum + 9223372036854775807 }}",
    ),
    *(
        "{{ '9' | replace('9', digits) | int }}",
        "{{ digits | float }}",
        "{{ 1 | round(4000) }}",
        "{{ rows | tojson(indent=999) }}",
    ),
    *(
        "{% for a in rows %}{{ 'a' in big }}{% endfor %}",
        "{% for a in rows %}{{ a in rows }}{% endfor %}",
        "{{ huge | list }}",
    ),
    *(
        "{{ " + "not " * 15_000 + "x }}",
        "{{ " + "(" * 20_000 + " }}",
        "{{ [" + "1," * 3_000 + "] }}",
        "{{ " + "9" * 5_000 + " }}",
    ),
    *(
        "{% if x %}" * 3_000,
        "{{ " + "x." * 30_000 + "x }}",
        "{{ " + "-" * 30_000 + "1 }}",
        "{{" * 30_000,
        "{%" * 30_000,
    ),
    *(
        "{# " + "#" * 70_000,
        "{{ '" + "a" * 63_000,
        "{{ " + "1 if x else " * 5_000 + "1 }}",
    ),
]


@pytest.mark.parametrize("text", EXPENSIVE, ids=range(len(EXPENSIVE)))
def test_no_template_runs_past_its_limits(text: str) -> None:
    """Refused by counting: parts, turns, characters, sizes of numbers."""
    circle: list[Any] = []
    circle.append(circle)
    values = {"big": BIG, "rows": ROWS, "circle": circle, "digits": "9" * 5_000, "huge": [1] * 20_000, "x": 1}
    frame = TemplateFrame({**values, "lines": "a\n" * 9_000})
    parsed = parse_template(text)
    if parsed.faults:
        assert parsed.tree is None
        return
    with pytest.raises(TemplateError):
        evaluator(parsed)(frame)
    assert frame.work <= MOST_WORK + 100_000


REPEATED = ("huge | tojson", "held | tojson", "spaces | replace(' ', '')", "ends | indent(0)")
"""Work whose cost is in the number of parts, not in the characters that are written."""


@attrs.frozen
class Held:
    values: list[int]


@pytest.mark.parametrize("expression", REPEATED)
def test_work_on_many_small_parts_is_counted(expression: str) -> None:
    """A large value may be worked on a few times, not a hundred times."""
    spaces = " " * 200_000
    values = {"huge": [1] * 20_000, "held": Held([1] * 20_000), "spaces": spaces, "ends": "\n" * 200_000}
    once, often = (
        parse_template(f"{{% for a in turns %}}{{{{ {expression} | length }}}}{{% endfor %}}") for _ in range(2)
    )
    evaluator(once)(TemplateFrame({**values, "turns": [1]}))
    with pytest.raises(TemplateError, match="does too much"):
        evaluator(often)(TemplateFrame({**values, "turns": [1] * 100}))


@pytest.mark.parametrize(
    "text", ["{{ '1e999' | float | tojson }}", "{{ 'nan' | float }}", "{{ 1e999 | tojson }}", "{{ nan | round(1) }}",
             "{{ [inf] | tojson }}", "{{ inf + 1 }}", "{{ [inf, 1] | sum }}", "{{ nan | int }}"],
)  # fmt: skip
def test_numbers_that_json_has_no_word_for_are_refused(text: str) -> None:
    """A template never writes `Infinity` or `NaN` where JSON is expected."""
    with pytest.raises(TemplateError):
        evaluator(parse_template(text))(TemplateFrame({"inf": math.inf, "nan": math.nan}))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="{}%#|.()[]'\"+-*/~ abcifnor\n_0", max_size=60))
def test_any_text_is_a_template_or_says_why_not(text: str) -> None:
    """And what is one can be evaluated, or raises the one error that it may raise."""
    for parsed in (parse_template(text), parse_expression(text)):
        if parsed.tree is not None:
            with contextlib.suppress(TemplateError):
                evaluator(parsed)(TemplateFrame({"a": {"b": [1, "c"]}}))


def test_looking_at_a_text_imports_reads_and_writes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever it names: the package of the test raises when it is imported."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    opened: list[str] = []
    real = builtins.open
    monkeypatch.setattr(builtins, "open", lambda file, *a, **k: (opened.append(str(file)), real(file, *a, **k))[1])
    text = (
        "imports: {c: child.yaml, out: ../../x.yaml}\n"
        "agents: {a: {model: test, system_prompt: {from_file: /etc/passwd}, tools: [shop.desk:greet]}}\n"
        "steps:\n  - {name: one, uses: shop.desk:greet}\n  - {name: two, uses: 'os:system', input: 'rm -rf /'}\n"
        "  - {name: three, uses: agents.a, processing: {schema: {$ref: 'http://example.com/x.json'}}}\n"
    )
    assert {"V-I2", "V-X3", "V-X1", "V-S1"} <= set(rules(project, text))
    assert "shop" not in sys.modules
    assert not [name for name in opened if not name.startswith((str(tmp_path), sys.prefix, sys.base_prefix))]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_names_and_messages_carry_no_escapes_to_a_terminal(tmp_path: Path) -> None:
    """Nor commands for a CI system."""
    make_project(tmp_path)
    file = tmp_path / "pipeline.yaml"
    file.write_text('steps:\n  - name: "\\e[31mred\\n::error::x"\n    uses: builtins.nothing\n    "\\e]0;t\\a": 1\n')
    for kind in ("text", "github", "json", "sarif"):
        done = preloaded.run(
            [sys.executable, "-m", "flujo_actors", "validate", str(file), "--format", kind],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr
        assert not [line for line in done.stdout.splitlines() if line.startswith("::error::")]


@pytest.mark.slow
def test_findings_of_a_megabyte_are_found(project: Project) -> None:
    """The largest file that is read at all."""
    step = "  - name: s{}\n    uses: builtins.passthrough\n    input: '{{{{ previous_step }}}} {}'\n"
    text = "steps:\n" + "".join(step.format(n, "words " * 12) for n in range(6_500))
    assert [each for each in found(project, text) if each.severity == "error"] == []
