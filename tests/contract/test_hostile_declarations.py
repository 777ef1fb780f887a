"""Wrong, misspelled and useless declarations: each is an error that names the option, or has a documented meaning.

The options come from signatures, tables of fields and the command tree, so a new option is covered without a new test.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import click.testing
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

import flujo_actors
from flujo_actors import (
    Backoff,
    ByBudget,
    Cache,
    Compensate,
    DeclarationError,
    Flujo,
    LoopGuard,
    Option,
    Pipeline,
    RateLimit,
    Settings,
    Step,
    ThompsonSampling,
    Undo,
    UsageLimits,
    Votes,
    Webhook,
    lint,
    load_settings,
)
from flujo_actors._api.cli.command_group import Invocation
from flujo_actors._api.cli.command_group import flujo_actors as command
from flujo_actors._blueprint.parser.field_table import GROUPS, STEP_KINDS, Anything, BlueprintField, SchemaField, Table
from flujo_actors._dsl import step_declaration as option_types

Make = Callable[..., object]


def same(data: Any) -> Any:
    return data


def always(output: Any, context: Any) -> bool:
    return True


def undo(undo: Undo) -> None:
    return None


AGENT = Agent(TestModel())
STEPS: dict[str, tuple[Make, type[Any], dict[str, Any]]] = {
    "Step": (Step, option_types.AllOptions, {"name": "s", "agent": same}),
    "granular": (Step.granular, option_types.AllOptions, {"name": "s", "agent": AGENT}),
    "parallel": (Step.parallel, option_types.ParallelOptions, {"name": "s", "branches": {"a": same}}),
    "map_over": (Step.map_over, option_types.MapOptions, {"name": "s", "body": same}),
    "branch_on": (
        Step.branch_on,
        option_types.KindOptions,
        {"name": "s", "select": always, "branches": {True: same}},
    ),
    "loop_until": (Step.loop_until, option_types.LoopOptions, {"name": "s", "body": same, "until": always}),
    "sequence": (Step.sequence, option_types.KindOptions, {"name": "s", "body": same}),
    "human_in_the_loop": (Step.human_in_the_loop, option_types.KindOptions, {"name": "s", "message": "?"}),
    "approval": (Step.approval, option_types.KindOptions, {"name": "s", "message": "?"}),
    "select_agent": (Step.select_agent, option_types.KindOptions, {"name": "s", "arms": {"a": same, "b": same}}),
}
OTHERS: dict[str, tuple[Make, dict[str, Any]]] = {
    "Backoff": (Backoff, {}),
    "ByBudget": (ByBudget, {"abundant": "a", "normal": "b", "scarce": "c", "critical": "d"}),
    "Cache": (Cache, {"ttl_s": 60}),
    "Compensate": (Compensate, {"by": undo}),
    "Flujo": (Flujo, {"pipeline": Step("s", same)}),
    "LoopGuard": (LoopGuard, {}),
    "Option": (Option, {"name": "approve"}),
    "Pipeline": (Pipeline, {"steps": [Step("s", same)]}),
    "RateLimit": (RateLimit, {"name": "r", "at_once": 1}),
    "ThompsonSampling": (ThompsonSampling, {}),
    "UsageLimits": (UsageLimits, {}),
    "Votes": (Votes, {"n": 3}),
    "Webhook": (Webhook, {"url": "https://example.org/", "secret": "s"}),
}
ANY_VALUE = {
    ("input", "replaces the data of the step by any value"),
    ("deps", "are passed to a model agent as they are"),
    ("resources", "belong to the application"),
}
"""Options that mean any object, with their documented meaning."""


def step_options(make: Make, hints: type[Any]) -> list[str]:
    own = [
        name
        for name, each in inspect.signature(make).parameters.items()
        if each.kind is not each.VAR_KEYWORD and name != "self"
    ]
    return list(dict.fromkeys([*own, *sorted(hints.__required_keys__ | hints.__optional_keys__)]))


def declarations() -> Iterator[tuple[str, str]]:
    for kind, (make, hints, _) in STEPS.items():
        yield from ((kind, option) for option in step_options(make, hints))
    for kind, (other, _) in OTHERS.items():
        yield from ((kind, option) for option in inspect.signature(other).parameters)


DECLARED = list(declarations())


def declare(kind: str, /, **given: Any) -> object:
    if kind in STEPS:
        make, _, needed = STEPS[kind]
        return make(**{**needed, **given})
    other, needed = OTHERS[kind]
    return other(**{**needed, **given})


def refusal(kind: str, /, **given: Any) -> str:
    """Return the text of the refusal of a declaration."""
    try:
        declare(kind, **given)
    except DeclarationError as error:
        return str(error)
    return "accepted"


def options_of(kind: str) -> list[str]:
    return [option for name, option in DECLARED if name == kind]


KINDS = [*STEPS, *OTHERS]


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_refuses_an_object_that_it_cannot_use(kind: str) -> None:
    """The error names the option; options for any value are listed with their meaning."""
    free = {name for name, _ in ANY_VALUE if (kind, name) != ("Step", "deps")}
    said = {option: refusal(kind, **{option: object()}) for option in options_of(kind)}
    assert {option: text for option, text in said.items() if option in free and text != "accepted"} == {}
    assert {option: text for option, text in said.items() if option not in free and option not in text} == {}


NUMBERS = ("_s", "_limit", "_concurrency", "_loops", "_turns", "_deferrals", "_retries", "_last")
"""Ends of the names of options that count or measure."""


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "3", b"3", True], ids=repr)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if any(each.endswith(NUMBERS) for each in options_of(kind))])
def test_a_number_must_be_one_that_counts_or_measures(kind: str, value: object) -> None:
    """Negative and infinite numbers, texts and truth values are refused."""
    said = {each: refusal(kind, **{each: value}) for each in options_of(kind) if each.endswith(NUMBERS)}
    assert {option: text for option, text in said.items() if option not in text} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelled_option_is_refused_with_the_right_one(kind: str) -> None:
    """Whether a letter is missing or doubled."""
    known = options_of(kind)
    for option in (each for each in known if len(each) >= 4):
        for wrong in {option[:-1] + option[-1] * 2, option[:1] + option[2:]} - {*known}:
            text = refusal(kind, **{wrong: None})
            assert "has no option" in text
            assert f"did you mean {option!r}" in text


VALUES = {
    *("Aborted", "AssembledContext", "Belief", "Budget", "Choice", "Chunk", "Decision", "ErrorInfo", "Failure"),
    *("Finding", "Frame", "LeftRun", "LiteralSegment", "OnPause", "OnStepFailure", "Paused", "PipelineResult"),
    *("PostRun", "PostStep", "PreRun", "PreStep", "Recovered", "Redirect", "RetrievalResult", "RetrievalSegment"),
    *(
        "Retrieved",
        "RunInfo",
        "Sent",
        "Steered",
        "Started",
        "StateSegment",
        "StepFailure",
        "StepResult",
        "Success",
        "Ticket",
        "ToolCall",
        "Wait",
    ),
    *(
        "CaseResult",
        "Comparison",
        "Delta",
        "Difference",
        "Evaluation",
        "GateResult",
        "Rehearsal",
        "RehearsedRun",
        "Replay",
    ),
    *("Prompt", "Question", "Sent", "ToolCalled", "TotalsRow", "Undo", "Undone", "Usage", "Wait", "WorkerInfo"),
}
"""Public classes of results, events and messages, which users read or return rather than declare."""
OTHER_DECLARATIONS = {
    *("ContextFormat", "ContextSources", "Price", "Processing", "Processors", "RunFilter", "Settings", "Step")
}
"""Declarations with tests of their own in this file or beside their feature."""


@pytest.mark.parametrize("value", ["", b"", {}, 0, 3.5], ids=repr)
@pytest.mark.parametrize("option", ["hooks", "carry", "initial_context_data", "retrievers", "store", "engine"])
def test_an_empty_value_of_another_kind_is_no_empty_list(option: str, value: object) -> None:
    """`hooks=""` is a mistake, not "no hooks"; an empty dict is one where a dict is expected."""
    if value == {} and option in ("initial_context_data", "retrievers"):
        declare("Flujo", **{option: value})
        return
    with pytest.raises(DeclarationError, match=option):
        declare("Flujo", **{option: value})


@pytest.mark.parametrize("value", ["", {}, 3], ids=repr)
def test_validators_are_callables(value: object) -> None:
    """An empty text is no empty list."""
    with pytest.raises(DeclarationError, match="validators"):
        Step("s", same, validators=value)  # type: ignore[call-overload]


# --- options that depend on one another -----------------------------------------------------------------------


def paying_agent(**config: Any) -> Agent[Any, str]:
    agent = Agent(TestModel(), **config)

    @agent.tool_plain
    def pay(cents: int) -> str:
        return "paid"

    return agent


def test_a_compensation_for_an_unknown_tool_is_refused() -> None:
    """A typo would leave a payment as it is, and the run would count as undone."""
    with pytest.raises(DeclarationError, match=r"compensate.*'pya'.*did you mean 'pay'"):
        Step.granular("s", paying_agent(), compensate={"pya": undo})
    with pytest.raises(DeclarationError, match="no tool of its agent: it has no tools"):
        Step.granular("s", AGENT, compensate={"pay": undo})
    assert Step.granular("s", paying_agent(), compensate={"pay": undo}).compensate is not None


def test_tools_of_wrapped_and_combined_toolsets_are_known() -> None:
    """Under the names that the model sees."""

    def book(room: int) -> str:
        return "booked"

    agent = paying_agent(toolsets=[FunctionToolset([book]).prefixed("hotel").filtered(lambda ctx, tool: True)])
    assert Step.granular("s", agent, compensate={"hotel_book": undo, "pay": undo}).compensate is not None
    with pytest.raises(DeclarationError, match="did you mean 'hotel_book'"):
        Step.granular("s", agent, compensate={"hotel_boook": undo})


def test_tools_that_only_a_run_knows_are_not_guessed() -> None:
    """A toolset that is made in each run may have any tool."""
    agent = paying_agent()

    @agent.toolset
    def more(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        return FunctionToolset()

    assert Step.granular("s", agent, compensate={"anything": undo}).compensate is not None


@pytest.mark.parametrize("way", ["approve", "reject", Step("late", same)], ids=["approve", "reject", "step"])
def test_a_way_after_the_timeout_needs_one(way: Any) -> None:
    """`on_timeout` without `timeout_s` would never happen."""
    with pytest.raises(DeclarationError, match="on_timeout needs timeout_s"):
        Step.approval("s", "?", on_timeout=way)
    Step.approval("s", "?", on_timeout=way, timeout_s=5)


def test_a_way_after_a_rejection_needs_an_option_that_rejects() -> None:
    """It would never be taken."""
    with pytest.raises(DeclarationError, match="on_rejection needs an option that rejects"):
        Step.approval("s", "?", options={"approve": "Yes"}, on_rejection=same)


@pytest.mark.parametrize(
    "metadata", [[1], "text", {"a": object()}, {"a": math.nan}], ids=["list", "text", "object", "nan"]
)
def test_metadata_of_an_approval_is_json(metadata: Any) -> None:
    """It is stored and shown to the approver."""
    with pytest.raises(DeclarationError, match="metadata must be"):
        Step.approval("s", "?", metadata=metadata)


class Desk:
    pass


def test_an_agent_with_deps_needs_them() -> None:
    """Its tools would find None; a union with None, and Any, say that nothing is fine."""
    with pytest.raises(DeclarationError, match="deps_type Desk, and the step gives no deps"):
        Step("s", Agent(TestModel(), deps_type=Desk))
    Step("s", Agent(TestModel(), deps_type=Desk), deps=Desk())
    Step("s", Agent(TestModel(), deps_type=Desk), deps=lambda data: Desk())
    for optional in (Desk | None, Any, object, type(None)):
        Step("s", Agent(TestModel(), deps_type=optional))  # type: ignore[arg-type]


def test_deps_need_an_agent_that_reads_them() -> None:
    """A function never sees them."""
    with pytest.raises(DeclarationError, match="deps are for a pydantic-ai agent"):
        Step("s", same, deps=Desk())


@pytest.mark.parametrize("queue", ["a,b", " a", "a ", "", "x" * 101, 3], ids=repr)
def test_a_step_runs_on_one_queue(queue: Any) -> None:
    """`runs_on="a,b"` would be a queue that no worker serves."""
    with pytest.raises(DeclarationError, match="runs_on"):
        Step("s", same, runs_on=queue)


# --- settings -------------------------------------------------------------------------------------------------


def settings_of(cls: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for field in attrs.fields(attrs.resolve_types(cls)):
        if field.type is not None and attrs.has(field.type):
            yield from settings_of(field.type, f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}", field.type


SETTINGS = dict(settings_of(Settings))


@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_refuses_an_object_that_it_cannot_use(path: str) -> None:
    """The error names it."""
    with pytest.raises(DeclarationError) as refused:
        load_settings(environ={}, overrides={path: object()})
    assert path.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize("path", [path for path, kind in SETTINGS.items() if kind in (int, float)])
def test_a_setting_in_numbers_refuses_others(path: str) -> None:
    """Negative numbers, numbers that are none, and words."""
    for value in (-1, math.nan, "-1", "nan", "soon", "30 s"):
        with pytest.raises(DeclarationError, match=path.rpartition(".")[2]):
            load_settings(environ={}, overrides={path: value})


@pytest.mark.parametrize("path", SETTINGS)
def test_a_misspelled_setting_is_refused_with_the_right_one(path: str) -> None:
    """In code and in the file."""
    with pytest.raises(DeclarationError, match="unknown setting") as refused:
        load_settings(environ={}, overrides={path + path[-1]: 1})
    assert f"did you mean {path!r}" in str(refused.value)


# --- blueprints -----------------------------------------------------------------------------------------------

BODY = "[{name: inner, uses: builtins.passthrough}]"
NEEDED = {
    "step": {"uses": "builtins.passthrough"},
    "parallel": {"branches": f"{{a: {BODY}}}"},
    "conditional": {"branches": f"{{a: {BODY}}}", "condition_expression": "\"'a'\""},
    "loop": {"body": BODY, "exit_expression": "'true'"},
    "map": {"body": BODY},
    "hitl": {"message": "ask"},
    "sequence": {"body": BODY},
    "pipeline": {"body": BODY},
}
KEYS = [(kind, field) for kind in STEP_KINDS for field in GROUPS[kind]]


def errors(place: Path, kind: str, /, **given: str) -> list[str]:
    keys = {"name": "s", "kind": kind, **NEEDED.get(kind, {}), **given}
    file = place / "p.yaml"
    file.write_text("steps:\n  - " + "\n    ".join(f"{key}: {value}" for key, value in keys.items()) + "\n")
    return [each.message for each in lint(file) if each.severity == "error"]


@pytest.mark.parametrize(("kind", "field"), KEYS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_key_of_a_step_refuses_a_value_of_another_kind(tmp_path: Path, kind: str, field: BlueprintField) -> None:
    """A list of lists is nothing that any key expects, unless it takes any value."""
    if kind in NEEDED:
        assert errors(tmp_path, kind) == []
    if isinstance(field.kind, Anything):
        return
    wrong = "[[1]]" if isinstance(field.kind, Table | SchemaField) else "[[{wrong: 1}]]"
    told = errors(tmp_path, kind, **{field.name: wrong})
    assert any(field.name in message.replace("default branch", "default_branch") for message in told)


@pytest.mark.parametrize(("kind", "field"), KEYS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_misspelled_key_of_a_step_is_refused_with_the_right_one(
    tmp_path: Path, kind: str, field: BlueprintField
) -> None:
    """An unknown key is never ignored."""
    wrong = field.name + field.name[-1]
    assert any(f"did you mean `{field.name}`" in message for message in errors(tmp_path, kind, **{wrong: "1"}))


AROUND = {
    "blueprint": "{}\nagents: {{w: {{model: test}}}}\n{}",
    "context": "context: {{{}}}\n{}",
    "usage_limits": "usage_limits: {{{}}}\n{}",
    "agent": "agents: {{w: {{model: test, {}}}}}\n{}",
    "prompt_file": "agents: {{w: {{model: test, system_prompt: {{from_file: p.txt, {}}}}}}}\n{}",
    "config": "{1}    config: {{{0}}}\n",
    "backoff": "{1}    config: {{backoff: {{{0}}}}}\n",
    "processing": "{1}    processing: {{{0}}}\n",
    "granular": "{1}    granular: {{{0}}}\n",
    "processors": "{1}    processors: {{{0}}}\n",
    "params": "{1}    params: {{{0}}}\n",
    "tool": "agents: {{w: {{model: test, tools: [{{uses: 'shop.desk:greet', {}}}]}}}}\n{}",
    "context_source": "{1}    context_sources: [{{{0}}}]\n",
    "retrieval": "{1}    context_sources: [{{retrieval: {{collection: 'shop.desk:Letter', {0}}}}}]\n",
    "option": "{1}  - {{name: ask, kind: approval, message: hi, options: {{fine: {{{0}}}}}}}\n",
    "rate_limit": "rate_limits: {{shared: {{{}}}}}\n{}",
    "cache": "{1}    cache: {{{0}}}\n",
    "schedule": "schedules: {{daily: {{every_s: 60, {}}}}}\n{}",
}
"""Each other mapping of a blueprint, with a place for one key and one for the steps."""


def test_every_mapping_of_a_blueprint_is_tried() -> None:
    """A new one gets into the table above."""
    assert set(GROUPS) - set(STEP_KINDS) == set(AROUND)


@pytest.mark.parametrize(
    ("group", "field"),
    [(group, field) for group in AROUND for field in GROUPS[group] if len(field.name) > 3],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_misspelled_key_of_any_mapping_is_refused_with_the_right_one(
    tmp_path: Path, group: str, field: BlueprintField
) -> None:
    """At the top of the file, in agents and in the options of steps."""
    uses = "agents.w" if group in ("agent", "prompt_file", "blueprint") else "builtins.passthrough"
    steps = f"steps:\n  - name: s\n    uses: {uses}\n"
    (tmp_path / "p.txt").write_text("Write.")
    (tmp_path / "p.yaml").write_text(AROUND[group].format(f"{field.name}{field.name[-1]}: 1", steps))
    found = [each.message for each in lint(tmp_path / "p.yaml") if each.severity == "error"]
    assert any(f"did you mean `{field.name}`" in message for message in found)


# --- the command line -----------------------------------------------------------------------------------------


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
    else:
        yield path, group


def label(each: object) -> str:
    return " ".join(each) if isinstance(each, tuple) else str(getattr(each, "name", each))


OPTIONS = [
    (path, option)
    for path, each in commands(command())
    for option in each.params
    if isinstance(option, click.Option) and option.opts[-1].startswith("--")
]


def called(*arguments: str) -> Any:
    return click.testing.CliRunner().invoke(command(), list(arguments), obj=Invocation())


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=label)
def test_a_misspelled_option_of_a_command_ends_with_code_two(path: tuple[str, ...], option: click.Option) -> None:
    """And names the right one."""
    named = option.opts[-1]
    known = {opt for other, each in OPTIONS if other == path for opt in each.opts}
    wrong = named + named[-1]
    assert wrong not in known
    result = called(*path, wrong, "x")
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert named in result.output


def may_be_any_path(option: click.Option) -> bool:
    """Whether the option names a file to write, which need not exist."""
    return isinstance(option.type, click.Path) and not option.type.exists


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (path, option)
        for path, option in OPTIONS
        if not option.is_flag
        and not isinstance(option.type, click.types.StringParamType)
        and not may_be_any_path(option)
    ],
    ids=label,
)
def test_a_wrong_value_of_an_option_ends_with_code_two(path: tuple[str, ...], option: click.Option) -> None:
    """Numbers, choices and spans are checked before anything is read or written."""
    result = called(*path, f"{option.opts[-1]}=nonsense", *["x"] * 3)
    assert result.exit_code == 2
    assert option.opts[-1] in result.output


def test_every_public_class_is_a_declaration_or_a_value() -> None:
    """A new class of options gets into the tables above, and so all of its options are tried."""
    public = {name: getattr(flujo_actors, name) for name in flujo_actors.__all__}
    classes = {name for name, each in public.items() if isinstance(each, type) and attrs.has(each)}
    values = {name for name in classes if name.endswith(("Info", "Result", "Report", "Totals", "Check"))}
    declared = {name for name in classes - values if not issubclass(public[name], BaseException)}
    assert declared - VALUES - OTHER_DECLARATIONS - set(OTHERS) == set()
