"""Blueprints that run: every kind of step, through `load_blueprint` and a real `Flujo`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    BlueprintError,
    DeclarationError,
    FingerprintMismatch,
    Flujo,
    Pipeline,
    RunClient,
    Step,
    UsageLimitExceededError,
    UsageLimits,
    dump_blueprint,
    load_blueprint,
)

SHELF = '''
from flujo_actors import Step, make_agent_async
from os import system
import os as operating

async def shout(text): return str(text).upper()
async def is_long(output, context): return len(output) > 4
async def by_length(data, context): return "long" if len(data) > 4 else "short"
def no_digits(output): return not any(c.isdigit() for c in output) or "digits"
async def fails(data): raise ValueError("on purpose")
def lookup(word: str) -> str:
    """Look a word up."""
    return word
agent = make_agent_async("test")
step = Step("shouted", shout)
class Worker:
    async def run(self, data): return f"worked on {data}"
worker = Worker()
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "flujo.toml").write_text('[blueprints]\nallow = ["shelf"]\npath = ["."]\n')
    (tmp_path / "shelf.py").write_text(SHELF)
    yield tmp_path
    sys.modules.pop("shelf", None)


def write(place: Path, text: str, name: str = "pipeline.yaml") -> Path:
    (place / name).write_text(textwrap.dedent(text))
    return place / name


def run(place: Path, text: str, data: Any = "tides", **options: Any) -> Any:
    return Flujo(load_blueprint(write(place, text)), **options).run(data)


def test_modules_beside_the_blueprint_are_found_without_a_configuration(place: Path) -> None:
    """Once they are allowed, and after all others."""
    (place / "flujo.toml").unlink()
    path = write(place, 'steps: [{name: a, uses: "shelf:shout"}]')
    assert Flujo(load_blueprint(path, allow=["shelf"])).run("hey").output == "HEY"
    with pytest.raises(BlueprintError, match="not allowed"):
        load_blueprint(path)


def test_the_environment_narrows_what_a_file_allows_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of an earlier load is not used again: its file did not change, but the environment did."""
    path = write(place, 'steps: [{name: a, uses: "shelf:shout"}]')
    load_blueprint(path)
    monkeypatch.setenv("FLUJO_BLUEPRINTS__ALLOW", "other")
    with pytest.raises(BlueprintError, match="not allowed"):
        load_blueprint(path)


def test_every_limit_that_a_blueprint_says_holds(place: Path) -> None:
    """Also beside those of the configuration, which make none of them larger."""
    (place / "flujo.toml").write_text("[blueprints]\ntotal_tokens_limit = 1000\n")
    text = """
        usage_limits: {total_tokens_limit: 5000, request_limit: 1, tool_calls_limit: 3, time_limit_s: 60}
        agents: {writer: {model: test}}
        steps: [{name: a, uses: agents.writer}, {name: b, uses: agents.writer}]
    """
    with pytest.raises(UsageLimitExceededError) as caught:
        run(place, text)
    assert caught.value.limits == ("request_limit",)
    assert load_blueprint(place / "pipeline.yaml").usage_limits == UsageLimits(
        total_tokens_limit=1000, request_limit=1, tool_calls_limit=3, time_limit_s=60
    )


def test_templates_hand_values_over_and_make_texts(place: Path) -> None:
    """One expression is its value, anything else a text; a text of digits stays one."""
    text = """
        steps:
          - {name: word, uses: builtins.passthrough, input: "007"}
          - {name: sum, uses: builtins.passthrough, input: "{{ 3 + 4 }}"}
          - {name: text, uses: builtins.passthrough, input: "{{ steps.word.output }}/{{ previous_step }}/{{ input }}"}
          - {name: data, uses: builtins.passthrough, input: {a: ["{{ steps.sum.output }}", x], b: null}}
    """
    result = run(place, text)
    assert [each.output for each in result.step_history] == [
        "007",
        7,
        "007/7/tides",
        {"a": [7, "x"], "b": None},
    ]


def test_sink_to_writes_the_context_and_hands_the_output_on(place: Path) -> None:
    """Below names that are not there yet, too."""
    text = """
        context: {initial: {topic: sea}}
        steps:
          - {name: one, uses: builtins.passthrough, input: "{{ context.topic }}", sink_to: notes.first}
          - {name: two, uses: builtins.passthrough, input: "{{ context.notes.first }} and {{ previous_step }}"}
    """
    result = run(place, text)
    assert result.output == "sea and sea"
    assert result.final_context.notes == {"first": "sea"}


def test_a_flujo_may_say_more_than_the_blueprint_does(place: Path) -> None:
    """Of the context; what code says counts."""
    text = """
        context: {initial: {topic: sea, more: 1}}
        steps: [{name: one, uses: builtins.passthrough, input: "{{ context.topic }} {{ context.more }}"}]
    """
    assert run(place, text, initial_context_data={"topic": "sand"}).output == "sand 1"


def test_maps_loops_branches_and_parallel_stages(place: Path) -> None:
    """Each with the expressions that decide in it."""
    text = """
        context: {initial: {words: [a, bb]}}
        steps:
          - name: all
            kind: map
            iterable_input: context.words
            body:
              - {name: shout, uses: shelf:shout}
              - {name: frame, uses: builtins.passthrough, input: "<{{ previous_step }} of {{ this }}>"}
          - name: first
            kind: conditional
            condition_expression: "{{ previous_step | length > 1 }}"
            branches:
              true: [{name: join, uses: builtins.passthrough, input: "{{ steps.all.output | join(', ') }}"}]
            default_branch: [{name: nothing, uses: builtins.passthrough}]
          - name: both
            kind: parallel
            reduce: values
            branches:
              loud: [{name: loud, uses: shelf:shout}]
              same: [{name: same, uses: builtins.passthrough}]
          - name: grow
            kind: loop
            max_loops: 4
            exit_expression: previous_step | length >= 4
            output_template: "{{ previous_step | last }}!"
            body: [{name: more, uses: builtins.passthrough, input: "{{ previous_step + ['x'] }}"}]
    """
    result = run(place, text)
    assert result.success, result.feedback
    assert result.step_history[2].output == ["<A OF A>, <BB OF BB>", "<A of a>, <BB of bb>"]
    assert result.output == "x!"


def test_functions_decide_and_judge(place: Path) -> None:
    """Conditions, exits, validators and fallbacks by name."""
    text = """
        steps:
          - name: by length
            kind: conditional
            condition: shelf:by_length
            branches:
              short: [{name: a, uses: builtins.passthrough, input: short}]
              long: [{name: b, uses: builtins.passthrough, input: long}]
            default_branch: short
          - name: grow
            kind: loop
            max_loops: 5
            exit_condition: shelf:is_long
            body: [{name: more, uses: builtins.passthrough, input: "{{ previous_step }}+"}]
          - name: judged
            uses: builtins.passthrough
            validators: [shelf:no_digits]
            fallback: {name: instead, uses: builtins.passthrough, input: "{{ steps.grow.output }}"}
            input: "with 1"
          - name: failing
            uses: shelf:fails
            config: {max_retries: 1, backoff: {first: 0, ceiling: 0}}
            fallback: {name: ok, uses: builtins.passthrough}
    """
    result = run(place, text)
    assert result.success, result.feedback
    assert [each.output for each in result.step_history] == ["long", "long+", "long+", "long+"]
    assert result.step_history[3].attempts == 3


def test_agents_answer_in_text_in_objects_and_in_lists(place: Path) -> None:
    """An object comes out as a dict; other types are read from a text, and promoted all the same."""
    text = """
        agents:
          writer: {model: test, system_prompt: Write., model_settings: {temperature: 0}}
          clerk:
            model: test
            tools: [shelf:lookup]
            output_schema: {type: object, properties: {n: {type: integer}}, required: [n]}
          python: {uses: shelf:agent}
        steps:
          - {name: draft, uses: agents.writer}
          - {name: form, uses: agents.clerk, processing: {structured_output: openai_json}}
          - {name: mine, uses: agents.python, input: "{{ steps.form.output.n }}"}
          - {name: granular, uses: agents.writer, granular: {max_turns: 3}}
          - {name: object, uses: "shelf:worker", updates_context: false}
    """
    pipeline = load_blueprint(write(place, text))
    assert pipeline.steps[1].processing.schema["required"] == ["n"]
    result = Flujo(pipeline).run("x")
    assert result.success, result.feedback
    assert result.step_history[1].output == {"n": 0}
    assert result.output.startswith("worked on")


def test_a_prompt_comes_from_a_file_inside_the_root(place: Path) -> None:
    """With fixed texts for its variables."""
    (place / "prompt.txt").write_text("Write for {{ who }}. Keep {{ this }}.")
    text = """
        agents:
          writer: {model: test, system_prompt: {from_file: prompt.txt, variables: {who: sailors}}}
        steps: [{name: draft, uses: agents.writer}]
    """
    pipeline = load_blueprint(write(place, text))
    assert pipeline.steps[0].agent._system_prompts == ("Write for sailors. Keep {{ this }}.",)


def test_imports_share_the_context_and_take_options(place: Path) -> None:
    """A named pipeline without options, a sequence with them."""
    write(
        place,
        'steps: [{name: inner, uses: builtins.passthrough, input: "{{ context.topic }} {{ previous_step }}"}]',
        "child.yaml",
    )
    text = """
        context: {initial: {topic: sea}}
        imports: {child: child.yaml}
        steps:
          - {name: plain, uses: imports.child}
          - {name: given, uses: imports.child, input: "<{{ previous_step }}>", usage_limits: {total_tokens_limit: 5}}
    """
    pipeline = load_blueprint(write(place, text))
    assert [type(each).__name__ for each in pipeline.steps] == ["Pipeline", "SequenceOf"]
    assert Flujo(pipeline).run("x").output == "sea <sea x>"


def test_python_may_give_steps_and_pipelines(place: Path) -> None:
    """A step made in Python keeps its own name inside."""
    result = run(place, "steps: [{name: mine, uses: shelf:step}]")
    assert (result.output, result.step_history[0].name) == ("TIDES", "mine")


def test_a_question_pauses_at_any_depth_and_shows_what_it_is_about(place: Path) -> None:
    """The answer is its output; a wrong one is refused."""
    text = """
        steps:
          - name: each
            kind: map
            iterable_input: "[input]"
            body:
              - name: ask
                kind: hitl
                message: "Is {{ this }} fine?"
                input_schema: {type: object, required: [ok], properties: {ok: {type: boolean}}}
                sink_to: answer
          - {name: last, uses: builtins.passthrough, input: "{{ context.answer.ok }}"}
    """
    flujo = Flujo(load_blueprint(write(place, text)))
    paused = flujo.run("tea")
    assert paused.status == "paused"
    assert paused.feedback == "Is tea fine?"
    done = flujo.resume(paused.state_token, {"ok": True})
    assert done.output is True


def test_limits_hold_and_flujo_toml_only_makes_them_less(place: Path) -> None:
    """The blueprint's own, the file's, and the smaller of both."""
    text = """
        usage_limits: {total_tokens_limit: 1000000, total_cost_usd_limit: 2}
        agents: {writer: {model: test}}
        steps: [{name: draft, uses: agents.writer}]
    """
    (place / "flujo.toml").write_text("[blueprints]\ntotal_tokens_limit = 1\n")
    pipeline = load_blueprint(write(place, text))
    assert pipeline.usage_limits == UsageLimits(total_cost_usd_limit=2, total_tokens_limit=1)
    cheap = load_blueprint(write(place, text.replace(", total_cost_usd_limit: 2", "")))
    with pytest.raises(UsageLimitExceededError):
        Flujo(cheap).run("a text of a few words")


@pytest.mark.parametrize(
    ("uses", "why"),
    [
        ("shelf:system", "is defined in 'posix', which is not allowed"),
        ("shelf:operating", "is a module"),
        ("shelf:nothing", "has no 'nothing'"),
        ("shelf.below:x", "there is no module"),
    ],
)
def test_what_is_imported_is_checked_again(place: Path, uses: str, why: str) -> None:
    """A name in an allowed module may have come from another one."""
    with pytest.raises(BlueprintError, match=why) as caught:
        load_blueprint(write(place, f"steps: [{{name: one, uses: '{uses}'}}]"))
    rule = "V-X1" if "not allowed" in why else "V-A6"
    assert [(each.rule, each.line) for each in caught.value.findings] == [(rule, 1)]


def test_an_exact_entry_allows_what_comes_from_elsewhere(place: Path) -> None:
    """Whoever names it has looked at it."""
    file = write(place, "steps: [{name: one, uses: 'shelf:system'}]")
    assert isinstance(load_blueprint(file, allow=["shelf:system"]), Pipeline)


def test_a_refused_blueprint_carries_its_findings_and_imports_nothing(place: Path) -> None:
    """Also if only a step behind the Python is wrong."""
    with pytest.raises(BlueprintError) as caught:
        load_blueprint(
            write(place, "steps:\n  - {name: one, uses: shelf:shout}\n  - {name: two, uses: builtins.nope}\n")
        )
    assert [each.rule for each in caught.value.findings] == ["V-A6"]
    assert "shelf" not in sys.modules


def test_an_error_cannot_be_silenced_into_a_run(place: Path) -> None:
    """What cannot be carried out is refused, whatever a comment says; what could fail in the run may be silenced."""
    with pytest.raises(BlueprintError):
        load_blueprint(write(place, "# flujo: ignore-file V-*\nsteps: [{name: one, uses: builtins.nope}]"))
    text = "# flujo: ignore-file V-C1\nsteps: [{name: one, uses: builtins.stringify, updates_context: true}]"
    assert not Flujo(load_blueprint(write(place, text))).run("x").success


def test_a_stored_run_goes_on_with_the_same_text_only(place: Path) -> None:
    """Outputs that templates name are replayed; a changed template is noticed."""
    text = """
        steps:
          - {name: draft, uses: builtins.passthrough, input: "draft of {{ input }}"}
          - {name: ask, kind: hitl, message: "Send {{ previous_step }}?"}
          - {name: send, uses: builtins.passthrough, input: "{{ steps.draft.output }}: {{ previous_step }}"}
    """
    store = f"sqlite:///{place / 'runs.db'}"
    paused = Flujo(load_blueprint(write(place, text)), store=store).run("tea")
    RunClient(store).answer(paused.state_token, "yes")
    changed = load_blueprint(write(place, text.replace("}}: {{", "}} - {{")))
    with pytest.raises(FingerprintMismatch, match="the input of step 'send' changed"):
        Flujo(changed, store=store).resume(paused.run_id)
    again = Flujo(load_blueprint(write(place, text)), store=store).resume(paused.run_id)
    assert again.output == "draft of tea: yes"


def test_a_comparison_of_a_text_with_a_number_fails_its_step(place: Path) -> None:
    """Nothing is coerced; the message says what to do."""
    text = """
        steps:
          - name: choose
            kind: conditional
            condition_expression: "'5' > 3"
            branches: {true: [{name: a, uses: builtins.passthrough}], false: [{name: b, uses: builtins.passthrough}]}
    """
    result = run(place, text)
    assert not result.success
    assert "a str and a int cannot be compared" in result.feedback


def test_what_is_missing_fails_with_what_there_is(place: Path) -> None:
    """No prompt goes out with a hole in it."""
    result = run(place, 'steps: [{name: one, uses: builtins.passthrough, input: "a {{ input.b }}"}]', {"c": 1})
    assert "there is no 'b' in a dict, which has c" in result.feedback


def test_a_run_keeps_outputs_only_for_whoever_names_them(place: Path) -> None:
    """A template asks for what it refers to."""
    plain = load_blueprint(write(place, 'steps: [{name: a, uses: builtins.passthrough, input: "{{ previous_step }}"}]'))
    named = load_blueprint(write(place, 'steps: [{name: a, uses: builtins.passthrough, input: "{{ input }}"}]'))
    assert plain.scope_keywords == frozenset()
    assert named.scope_keywords == {"run_input"}


def test_a_sequence_is_a_step_with_options() -> None:
    """`Step.sequence` gives a pipeline an input, retries, a fallback."""
    calls: list[int] = []

    async def flaky(number: int) -> int:
        calls.append(number)
        if len(calls) < 2:
            raise ValueError("not yet")
        return number + 1

    async def double(number: int) -> int:
        return 2 * number

    step = Step.sequence(
        "both", Step("flaky", flaky) >> Step("double", double), input=lambda p, c: p + 10, max_retries=1
    )
    result = Flujo(step).run(1)
    assert (result.output, result.step_history[0].attempts, calls) == (24, 2, [11, 11])
    assert [each.name for each in result.step_history[0].step_history][-2:] == ["flaky", "double"]


@pytest.mark.slow
def test_without_the_extra_the_names_are_there_and_say_which_one() -> None:
    """A program that imports everything needs no extra."""
    script = "import sys; sys.modules['yaml'] = None\nfrom flujo_actors import *\n" + "".join(
        f"try: {call}\nexcept DeclarationError as error: print(error)\n"
        for call in ("lint('p.yaml')", "load_blueprint('p.yaml')", "dump_blueprint(None)")
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.count("pip install 'flujo-actors[blueprints]'") == 3


def test_runs_of_a_blueprint_have_its_labels(place: Path) -> None:
    """Texts only; those of a run replace them, and an export has them."""
    text = """
        labels: {tenant: "7", env: prod}
        steps: [{name: a, uses: builtins.passthrough}]
    """
    assert run(place, text).labels == {"tenant": "7", "env": "prod"}
    pipeline = load_blueprint(place / "pipeline.yaml")
    result = Flujo(pipeline, labels={"env": "test"}).run(1, labels={"tenant": "8"})
    assert result.labels == {"tenant": "8", "env": "test"}
    assert "tenant: '7'" in dump_blueprint(pipeline)
    with pytest.raises(DeclarationError, match="labels: the value of 'tenant' must be a text, not 7: write '7'"):
        run(place, text.replace('"7"', "7"))
