"""Every key of the language, in one table: it drives the checks, the suggestions, the JSON Schema, the reference page
and `explain`.

A key has a name, a kind of value and a line that says what it is for; some have spellings of old files that are still
read. What stands in no group is unknown, and an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

# --- kinds of values ------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class Text:
    """A text."""

    template: bool = False
    """Whether `{{ … }}` in it is read."""
    nullable: bool = False


@attrs.frozen(eq=False, repr=False)
class Expression:
    """One expression of the template language, with or without braces."""


@attrs.frozen(eq=False, repr=False)
class Flag:
    """`true` or `false`."""


@attrs.frozen(eq=False, repr=False)
class Number:
    """A number between two others."""

    least: float = 0
    most: float | None = None
    whole: bool = False
    above: bool = False
    """Whether it must be greater than `least`."""


@attrs.frozen(eq=False, repr=False)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]


@attrs.frozen(eq=False, repr=False)
class Anything:
    """Any value; texts in it, at any depth, are templates if `template` says so."""

    template: bool = False


@attrs.frozen(eq=False, repr=False)
class Table:
    """Any values by key."""


@attrs.frozen(eq=False, repr=False)
class Schema:
    """A JSON Schema, or `agents.X` for the one of an agent, where `reference` says so."""

    reference: bool = False


@attrs.frozen(eq=False, repr=False)
class Uses:
    """What a step runs: `agents.X`, `imports.X`, `builtins.X` or `package.module:name`."""


@attrs.frozen(eq=False, repr=False)
class Function:
    """`package.module:name`."""


@attrs.frozen(eq=False, repr=False)
class ListOf:
    """A list of values of one kind."""

    item: Kind


@attrs.frozen(eq=False, repr=False)
class TableOf:
    """Values of one kind by names that the author chooses."""

    item: Kind


@attrs.frozen(eq=False, repr=False)
class Group:
    """A mapping with the keys of a group."""

    name: str


@attrs.frozen(eq=False, repr=False)
class Steps:
    """A list of steps, one step, or (with a note) `{steps: […]}`."""

    by_name: bool = False
    """Whether the name of a branch may stand for its steps."""


@attrs.frozen(eq=False, repr=False)
class OneStep:
    """One step."""


@attrs.frozen(eq=False, repr=False)
class Either:
    """A value of one of two kinds."""

    one: Kind
    other: Kind


Kind: TypeAlias = (
    Text
    | Expression
    | Flag
    | Number
    | OneOf
    | Anything
    | Table
    | Schema
    | Uses
    | Function
    | ListOf
    | TableOf
    | Group
    | Steps
    | OneStep
    | Either
)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Field:
    """One key of a group."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    old: tuple[str, ...] = ()
    """How old files call it; still read, with a note."""
    default: object = None
    since: str = "0.1"
    example: str | None = None


def _field(name: str, kind: Kind, doc: str, **more: Any) -> Field:
    return Field(name=name, kind=kind, doc=doc, **more)


STEP_KINDS = ("step", "parallel", "conditional", "loop", "map", "hitl", "sequence", "pipeline")

SECONDS = Number(least=0, above=True)
COUNT = Number(least=0, whole=True, most=1_000)
AT_LEAST_ONE = Number(least=1, whole=True, most=1_000_000)
MERGING = OneOf(("context_update", "overwrite", "keep_first", "error_on_conflict", "no_merge"))
REDUCING = OneOf(("keys", "values", "union", "concat", "first", "last"))

_NAME = _field(
    "name", Text(), "What the step is called; no two of one sequence are called the same.", required=True, old=("step",)
)
_KIND = _field("kind", OneOf(STEP_KINDS), "What the step does.", default="step")

_EVERY_STEP = (
    _NAME,
    _KIND,
    _field("description", Text(), "For people."),
    _field(
        "input",
        Anything(template=True),
        "Replaces what the step before handed over; texts in it are templates.",
    ),
    _field("config", Group("config"), "How the step is supervised."),
    _field("usage_limits", Group("usage_limits"), "What the step may spend."),
    _field("updates_context", Flag(), "Merge the output, an object, into the context.", default=False),
    _field(
        "mergeable_output",
        Flag(),
        "Says that the output can be merged into the context, where the linter cannot know it.",
        default=False,
    ),
    _field("sink_to", Text(), "Put the output under this path of the context.", example="report.title"),
    _field("fallback", OneStep(), "The step that stands in when this one failed for good."),
    _field("validators", ListOf(Function()), "Functions that judge the output."),
    _field("processors", Group("processors"), "Functions on the data before, and on the output after the work."),
    _field("meta", Table(), "Anything, for hooks and people."),
)

_BRANCHES = _field(
    "branches", TableOf(Steps()), "Steps by the name of their branch: a list, or one step.", required=True
)

GROUPS: Mapping[str, tuple[Field, ...]] = MappingProxyType(
    {
        "blueprint": (
            _field("version", OneOf(("1", "0.1")), "The version of the language.", default="1"),
            _field("name", Text(), "What the pipeline is called."),
            _field("description", Text(), "For people."),
            _field("context", Group("context"), "What steps share, as a run begins."),
            _field("usage_limits", Group("usage_limits"), "What a run may spend; `flujo.toml` may only make it less."),
            _field("agents", TableOf(Group("agent")), "Model agents by name; a step runs one with `uses: agents.X`."),
            _field(
                "imports",
                TableOf(Text()),
                "Other blueprints by name, as paths seen from this file; a step runs one with `uses: imports.X`, and "
                "it shares the context.",
            ),
            _field("steps", Steps(), "The steps, one after the other.", required=True),
        ),
        "context": (
            _field("initial", Table(), "The values that a run begins with."),
            _field("schema", Schema(), "What the context holds; lets the linter know its keys."),
        ),
        "usage_limits": (
            _field("total_cost_usd_limit", Number(least=0), "Dollars."),
            _field("total_tokens_limit", Number(least=0, whole=True), "Input and output tokens."),
            _field("request_limit", Number(least=0, whole=True), "Requests to models."),
            _field("tool_calls_limit", Number(least=0, whole=True), "Tool calls that begin."),
            _field("step_limit", Number(least=0, whole=True), "Steps of agents that are done."),
            _field("time_limit_s", Number(least=0), "Seconds of work, without pauses."),
        ),
        "agent": (
            _field("model", Text(), "A model by pydantic-ai's name; `test` needs no network.", example="openai:gpt-4o"),
            _field("system_prompt", Either(Text(), Group("prompt_file")), "What the agent is told before its input."),
            _field(
                "output_schema",
                Schema(),
                "What the agent's answers look like. An object comes out as a dict; without a schema it is a text.",
            ),
            _field("model_settings", Table(), "`temperature`, `max_tokens` and whatever else the model takes."),
            _field("tools", ListOf(Function()), "Functions that the agent may call."),
            _field("timeout_s", SECONDS, "Seconds that one call may take.", old=("timeout",)),
            _field("retries", COUNT, "How often the model may mend a refused call.", default=1, old=("max_retries",)),
            _field("uses", Function(), "An agent made in Python, instead of all the above."),
            _field("name", Text(nullable=True), "What the agent is called in traces; by default its key."),
            _field("description", Text(), "For people."),
        ),
        "prompt_file": (
            _field("from_file", Text(), "The file with the text, inside the root.", required=True),
            _field("variables", TableOf(Text()), "Fixed texts for `{{ name }}` in the file."),
        ),
        "config": (
            _field("max_retries", COUNT, "How often the step is tried again.", default=0),
            _field("timeout_s", SECONDS, "Seconds that one attempt may take.", old=("timeout",)),
            _field("backoff", Group("backoff"), "How long to wait before trying again."),
        ),
        "backoff": (
            _field("first", Number(), "Seconds before the second attempt.", default=0.1),
            _field("factor", Number(least=1), "How much longer each further wait is.", default=2.0),
            _field("ceiling", Number(), "No wait is longer.", default=30.0),
            _field("jitter", Number(most=1), "The share of a wait that chance may take off.", default=0.1),
        ),
        "processing": (
            _field(
                "structured_output",
                OneOf(("off", "auto", "openai_json")),
                "`auto`: structured where a schema is known; `openai_json`: ask the provider for JSON, too; `off`: the "
                "output is what the agent returned.",
                default="auto",
            ),
            _field("schema", Schema(reference=True), "What the output must fit; by default the agent's own."),
            _field(
                "enforcement",
                OneOf(("off", "validate", "repair")),
                "`repair`: mend, ask again, fall back; `validate`: mend, then fail; `off`: take what comes.",
                default="repair",
            ),
            _field("degrade", Flag(), "Whether the model's text may stand for the value when nothing else is left."),
        ),
        "granular": (
            _field("max_turns", AT_LEAST_ONE, "How many model turns there may be.", default=20),
            _field(
                "on_uncertain",
                OneOf(("rerun", "pause", "fail")),
                "What happens to a tool call that may have run before a crash.",
                default="rerun",
            ),
            _field("keep_last", AT_LEAST_ONE, "How many messages of a long conversation the model is shown."),
        ),
        "processors": (
            _field("before", ListOf(Function()), "On the data, before the work."),
            _field("after", ListOf(Function()), "On the output, before validators."),
        ),
        "params": (_field("key", Text(), "The key of `builtins.wrap_dict` and `builtins.ensure_object`."),),
        "step": (
            *_EVERY_STEP,
            _field("uses", Uses(), "What the step runs.", required=True, old=("agent",)),
            _field("params", Group("params"), "Arguments of a built-in; Python is configured in Python."),
            _field("processing", Group("processing"), "How the output becomes a value."),
            _field("granular", Either(Flag(), Group("granular")), "Commit every model turn and tool call by itself."),
        ),
        "parallel": (
            *_EVERY_STEP,
            _BRANCHES,
            _field("merge_strategy", MERGING, "What becomes of changes of the context.", default="context_update"),
            _field(
                "on_branch_failure",
                OneOf(("propagate", "ignore")),
                "Whether one failure fails all.",
                default="propagate",
            ),
            _field("max_concurrency", AT_LEAST_ONE, "How many branches run at once."),
            _field("reduce", REDUCING, "Makes one value of the outputs by branch."),
        ),
        "conditional": (
            *_EVERY_STEP,
            _field("condition", Function(), "A function `(data, context)` that names the branch."),
            _field(
                "condition_expression",
                Expression(),
                "An expression that names the branch: `true`, `false`, a text.",
            ),
            _BRANCHES,
            _field("default_branch", Steps(by_name=True), "The steps, or the name of the branch, for anything else."),
        ),
        "loop": (
            *_EVERY_STEP,
            _field("body", Steps(), "The steps of a turn, which begins with what the last one gave.", required=True),
            _field("max_loops", Number(least=1, whole=True, most=10_000), "How many turns there may be.", default=5),
            _field("exit_condition", Function(), "A function `(output, context)` that ends the loop."),
            _field(
                "exit_expression",
                Expression(),
                "An expression on a turn's output, `previous_step`, that ends the loop.",
            ),
            _field("output_template", Text(template=True), "Makes the output of the last one, `previous_step`."),
        ),
        "map": (
            *_EVERY_STEP,
            _field(
                "iterable_input",
                Expression(),
                "The items; by default what the step is handed.",
                example="context.items",
            ),
            _field("body", Steps(), "The steps for one item, `this`.", required=True),
            _field("max_concurrency", AT_LEAST_ONE, "How many items are worked on at once."),
            _field("merge_strategy", MERGING, "What becomes of changes of the context.", default="context_update"),
        ),
        "hitl": (
            *_EVERY_STEP,
            _field("message", Text(template=True), "What is asked.", required=True),
            _field("input_schema", Schema(), "What an answer must fit."),
        ),
        "sequence": (
            *_EVERY_STEP,
            _field("body", Steps(), "Steps one after the other, which the options hold for as a whole.", required=True),
        ),
        "pipeline": (
            _NAME,
            _KIND,
            _field("description", Text(), "For people."),
            _field("usage_limits", Group("usage_limits"), "What its steps may spend together."),
            _field(
                "body",
                Steps(),
                "Steps one after the other, under a name. Of the other keys it has `description` and `usage_limits`; a "
                "`sequence` has all.",
                required=True,
            ),
        ),
    }
)
"""The keys of every mapping of the language, by the name of its group; a step has those of its kind."""


def fields_of(group: str) -> Mapping[str, Field]:
    """The keys of a group by name."""
    return _BY_NAME[group]


_BY_NAME: Mapping[str, Mapping[str, Field]] = MappingProxyType(
    {group: MappingProxyType({field.name: field for field in fields}) for group, fields in GROUPS.items()}
)

OLD_SPELLINGS: Mapping[str, Mapping[str, Field]] = MappingProxyType(
    {group: {old: field for field in fields for old in field.old} for group, fields in GROUPS.items()}
)
"""The keys of a group by what old files call them."""
