"""Table of all keys: checks, suggestions, JSON Schema, reference and `explain`.

A key has a name, a kind of value and a description; some have spellings of old files that are still accepted. A key in
no group is unknown, and an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

ONLY_IN_PYTHON: Mapping[str, str] = MappingProxyType(
    {
        "deps": "it holds objects of the program",
        "message_history": "it holds messages, or the function that makes them",
        "agent_options": "it holds models, toolsets and handlers; write settings of the agent under `agents`",
        "hooks": "they are functions",
        "resources": "they are objects of the program",
        "guard": "it holds functions",
        "batch": "it belongs to `Step.map_over`",
        "min_confidence": "it belongs to `confidence`, which holds functions",
        "confidence": "it holds functions",
        "on_low_confidence": "it holds steps",
        "webhooks": "they hold secrets",
        "retention": "it belongs to the settings of the workers",
    }
)
"""Options of steps and runs without a blueprint key, each with the reason (V-K5)."""

OF_THE_RUN = ("hooks", "resources", "webhooks")
"""Those that `Flujo` takes."""

# --- kinds of values ------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class TextField:
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
    """Number in a range."""

    least: float = 0
    most: float | None = None
    whole: bool = False
    above: bool = False
    """Whether it must be greater than `least`."""
    nullable: bool = False
    """Whether `null` is a value: no limit."""


@attrs.frozen(eq=False, repr=False)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]


@attrs.frozen(eq=False, repr=False)
class Anything:
    """Any value; nested texts are templates if `template` is set."""

    template: bool = False


@attrs.frozen(eq=False, repr=False)
class Table:
    """Any values by key."""


@attrs.frozen(eq=False, repr=False)
class SchemaField:
    """JSON Schema, or `agents.X` for an agent's if `reference` is set."""

    reference: bool = False


@attrs.frozen(eq=False, repr=False)
class Uses:
    """Target of a step: `agents.X`, `imports.X`, `builtins.X` or `package.module:name`."""


@attrs.frozen(eq=False, repr=False)
class Function:
    """`package.module:name`."""


@attrs.frozen(eq=False, repr=False)
class FailureRule:
    """HTTP status, or the name of an exception class."""


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
    """Whether the name of a branch may replace its steps."""


@attrs.frozen(eq=False, repr=False)
class OneStep:
    """One step."""


@attrs.frozen(eq=False, repr=False)
class Either:
    """A value of one of two kinds."""

    one: Kind
    other: Kind


Kind: TypeAlias = (
    TextField
    | Expression
    | Flag
    | Number
    | OneOf
    | Anything
    | Table
    | SchemaField
    | Uses
    | Function
    | FailureRule
    | ListOf
    | TableOf
    | Group
    | Steps
    | OneStep
    | Either
)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BlueprintField:
    """One key of a group."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    old: tuple[str, ...] = ()
    """Spellings of old files; still accepted, with a note."""
    default: object = None
    since: str = "0.1"
    example: str | None = None


def _field(name: str, kind: Kind, doc: str, **more: Any) -> BlueprintField:
    return BlueprintField(name=name, kind=kind, doc=doc, **more)


STEP_KINDS = (
    *("step", "parallel", "conditional", "loop", "map", "hitl", "approval", "sleep", "wait_for"),
    *("sequence", "pipeline"),
)
NESTED_KINDS = ("loop", "map")
"""Kinds whose keys old files nest under the kind's name."""

SECONDS = Number(least=0, above=True)
COUNT = Number(least=0, whole=True, most=1_000)
AT_LEAST_ONE = Number(least=1, whole=True, most=1_000_000)
MERGING = OneOf(("context_update", "overwrite", "keep_first", "error_on_conflict", "no_merge"))
REDUCING = OneOf(("keys", "values", "union", "concat", "first", "last"))

_NAME = _field("name", TextField(), "Name of the step, unique in its sequence.", required=True, old=("step",))
_KIND = _field("kind", OneOf(STEP_KINDS), "Kind of step.", default="step")

_EVERY_STEP = (
    _NAME,
    _KIND,
    _field("description", TextField(), "For people."),
    _field(
        "input",
        Anything(template=True),
        "Replacement of the previous output; texts in it are templates.",
    ),
    _field("config", Group("config"), "How the step is supervised."),
    _field("usage_limits", Group("usage_limits"), "Limits of the step."),
    _field("updates_context", Flag(), "Merge the output, an object, into the context.", default=False),
    _field(
        "mergeable_output",
        Flag(),
        "Whether the output can be merged into the context, where the linter cannot know it.",
        default=False,
    ),
    _field("sink_to", TextField(), "Put the output under this path of the context.", example="report.title"),
    _field("fallback", OneStep(), "Step that replaces this one after its final failure."),
    _field("validators", ListOf(Function()), "Functions that judge the output."),
    _field("processors", Group("processors"), "Functions on the data before, and on the output after the work."),
    _field("meta", Table(), "Anything, for hooks and people."),
    _field("runs_on", TextField(), "Queue whose workers execute the step.", example="gpu"),
    _field("compensate", Function(), "Function that undoes the step if the run fails."),
    _field(
        "on_failure",
        Either(Function(), Steps()),
        "Function, or steps, that run after the final failure; the step stays failed.",
    ),
)

_BRANCHES = _field(
    "branches", TableOf(Steps()), "Steps by the name of their branch: a list, or one step.", required=True
)

GROUPS: Mapping[str, tuple[BlueprintField, ...]] = MappingProxyType(
    {
        "blueprint": (
            _field("version", OneOf(("1", "0.1")), "The version of the language.", default="1"),
            _field("name", TextField(), "Name of the pipeline."),
            _field("description", TextField(), "For people."),
            _field("context", Group("context"), "What steps share, as a run begins."),
            _field("usage_limits", Group("usage_limits"), "Limits of a run; `flujo.toml` may only lower them."),
            _field("labels", Table(), "Labels of its runs: texts by name, to find them by. No secrets."),
            _field("agents", TableOf(Group("agent")), "Model agents by name; a step runs one with `uses: agents.X`."),
            _field(
                "imports",
                TableOf(TextField()),
                "Other blueprints by name, as paths seen from this file; a step runs one with `uses: imports.X`, and "
                "it shares the context.",
            ),
            _field(
                "rate_limits",
                TableOf(Group("rate_limit")),
                "Rate limits by name; a step uses one with `rate_limit`.",
            ),
            _field(
                "schedules",
                TableOf(Group("schedule")),
                "Schedules by name; `flujo-actors worker FILE` applies them when it starts.",
            ),
            _field("steps", Steps(), "The steps, one after the other.", required=True),
        ),
        "cache": (
            _field("ttl_s", Number(above=True), "Seconds for which an output is reused.", required=True),
            _field("scope", TextField(), "Runs that share outputs: `pipeline`, `key` or `label:NAME`."),
        ),
        "rate_limit": (
            _field("requests_per_min", Number(above=True), "Requests per minute."),
            _field("tokens_per_min", Number(above=True), "Tokens per minute."),
            _field("at_once", AT_LEAST_ONE, "Concurrent requests."),
            _field("burst_s", Number(), "Seconds of the rate that may be used at once.", default=5.0),
            _field("max_wait_s", Number(), "Longest wait of a request.", default=600.0),
        ),
        "schedule": (
            _field("cron", TextField(), "Five fields: minute, hour, day, month, weekday.", example="0 9 * * 1-5"),
            _field("every_s", Number(least=1), "Seconds between two runs, instead of `cron`."),
            _field("zone", TextField(), "Time zone of `cron`.", default="UTC", example="Europe/Madrid"),
            _field("input", Anything(), "Input of each run."),
            _field("context", Table(), "Values of the first context."),
            _field("labels", TableOf(TextField()), "Labels of each run."),
            _field("queue", TextField(), "Queue of the runs.", default="default"),
            _field("priority", Number(least=-100, most=100, whole=True), "Priority in the queue.", default=0),
            _field("key", TextField(), "Key of the runs in the queue."),
            _field(
                "overlap",
                OneOf(("skip", "queue", "cancel", "allow")),
                "Handling of an instant while an earlier run has not ended.",
                default="skip",
            ),
            _field("missed", OneOf(("one", "skip", "all")), "Handling of instants without a worker.", default="one"),
            _field("missed_within_s", Number(), "Age of the oldest missed instant that runs.", default=86_400),
            _field("jitter_s", Number(), "Longest delay of an instant.", default=0.0),
            _field("starts_at", TextField(), "First instant at the earliest, as ISO 8601 with an offset."),
            _field("ends_at", TextField(), "End of the schedule, as ISO 8601 with an offset."),
            _field("paused", Flag(), "Whether the schedule is created paused.", default=False),
        ),
        "context": (
            _field("initial", Table(), "The values that a run begins with."),
            _field("schema", SchemaField(), "Schema of the context, for the linter."),
        ),
        "usage_limits": (
            _field("total_cost_usd_limit", Number(least=0), "Dollars."),
            _field("total_tokens_limit", Number(least=0, whole=True), "Input and output tokens."),
            _field("request_limit", Number(least=0, whole=True), "Requests to models."),
            _field("tool_calls_limit", Number(least=0, whole=True), "Tool calls that begin."),
            _field("step_limit", Number(least=0, whole=True), "Steps of agents that are done."),
            _field("time_limit_s", Number(least=0), "Seconds of work, without pauses."),
            _field(
                "window",
                OneOf(("hour", "day", "week", "month")),
                "Calendar window: the limits hold for all runs of the name in it. Only for the whole file.",
            ),
            _field("zone", TextField(), "Time zone of the window.", default="UTC", example="Europe/Madrid"),
            _field("scope", TextField(), "`pipeline`, `key` or `label:NAME`: one budget for each value of a window."),
            _field("name", TextField(), "Name of the window's budget; by default the pipeline's."),
            _field(
                "warn_at",
                Number(most=1, above=True),
                "Used share of a limit at which `budget.warned` is emitted.",
            ),
            _field(
                "when_reached",
                OneOf(("fail", "pause", "wait")),
                "Action at the limit of a window: fail, ask for a higher limit, or sleep until the window ends.",
                default="fail",
            ),
        ),
        "agent": (
            _field(
                "model", TextField(), "A model by pydantic-ai's name; `test` needs no network.", example="openai:gpt-4o"
            ),
            _field("system_prompt", Either(TextField(), Group("prompt_file")), "System prompt of the agent."),
            _field(
                "output_schema",
                SchemaField(),
                "Schema of the agent's answers. An object becomes a dict; without a schema the answer is text.",
            ),
            _field("model_settings", Table(), "`temperature`, `max_tokens` and whatever else the model takes."),
            _field("tools", ListOf(Either(Function(), Group("tool"))), "Functions that the agent may call."),
            _field("timeout_s", SECONDS, "Seconds that one call may take.", old=("timeout",)),
            _field("retries", COUNT, "How often the model may mend a refused call.", default=1, old=("max_retries",)),
            _field("uses", Function(), "An agent made in Python, instead of all the above."),
            _field("name", TextField(nullable=True), "Name of the agent in traces; by default its key."),
            _field("description", TextField(), "For people."),
        ),
        "tool": (
            _field("uses", Function(), "The function.", required=True),
            _field("requires_approval", Flag(), "Whether each call waits for a person.", default=False),
        ),
        "prompt_file": (
            _field("from_file", TextField(), "The file with the text, inside the root.", required=True),
            _field("variables", TableOf(TextField()), "Fixed texts for `{{ name }}` in the file."),
        ),
        "config": (
            _field("max_retries", COUNT, "How often the step is tried again.", default=0),
            _field("timeout_s", SECONDS, "Seconds that one attempt may take.", old=("timeout",)),
            _field("backoff", Group("backoff"), "How long to wait before trying again."),
            _field(
                "retry_on",
                ListOf(FailureRule()),
                "Failures that are retried: HTTP statuses, `provider_errors`, and exceptions of Python, pydantic-ai or "
                "this library by name. All failures by default.",
            ),
        ),
        "backoff": (
            _field("first", Number(), "Seconds before the second attempt.", default=0.1),
            _field("factor", Number(least=1), "How much longer each further wait is.", default=2.0),
            _field("ceiling", Number(), "No wait is longer.", default=30.0),
            _field("jitter", Number(most=1), "The share of a wait that chance may take off.", default=0.1),
            _field(
                "longest_retry_after_s",
                Number(),
                "Longest accepted `Retry-After`; a failure that requires more is final.",
                default=120.0,
            ),
        ),
        "processing": (
            _field(
                "structured_output",
                OneOf(("off", "auto", "openai_json")),
                "`auto`: structured where a schema is known; `openai_json`: ask the provider for JSON, too; `off`: the "
                "output is what the agent returned.",
                default="auto",
            ),
            _field("schema", SchemaField(reference=True), "Schema of the output; by default the agent's own."),
            _field(
                "enforcement",
                OneOf(("off", "validate", "repair")),
                "`repair`: repair, retry, fall back; `validate`: repair, then fail; `off`: accept any output.",
                default="repair",
            ),
            _field("degrade", Flag(), "Whether the model's text may replace the value as a last resort."),
        ),
        "granular": (
            _field("max_turns", AT_LEAST_ONE, "How many model turns there may be.", default=20),
            _field(
                "on_uncertain",
                OneOf(("rerun", "pause", "fail")),
                "Handling of a tool call that may have run before a crash.",
                default="rerun",
            ),
            _field("keep_last", AT_LEAST_ONE, "How many messages of a long conversation the model is shown."),
        ),
        "processors": (
            _field("before", ListOf(Function()), "On the data, before the work."),
            _field("after", ListOf(Function()), "On the output, before validators."),
        ),
        "context_source": (
            _field("literal", TextField(), "A fixed text."),
            _field("state", TextField(), "Path of a value of the context.", example="user.name"),
            _field("history", TextField(), "Path of the messages in the context."),
            _field("retrieval", Group("retrieval"), "A search; `Flujo(retrievers=…)` gives the collection."),
        ),
        "retrieval": (
            _field("collection", Function(), "Class of the collection.", required=True, example="shop.data:Papers"),
            _field("query", TextField(), "Fixed query; by default the data of the step."),
            _field("top_k", AT_LEAST_ONE, "How many passages there may be.", default=5),
            _field("filters", Table(), "Values of fields of the collection."),
        ),
        "option": (
            _field("label", TextField(), "Text of the button; by default the name."),
            _field("kind", OneOf(("approve", "reject", "defer")), "Effect; by default that of the name."),
            _field("description", TextField(), "For the approver."),
        ),
        "params": (_field("key", TextField(), "The key of `builtins.wrap_dict` and `builtins.ensure_object`."),),
        "step": (
            *_EVERY_STEP,
            _field("uses", Uses(), "Target of the step.", required=True, old=("agent",)),
            _field("params", Group("params"), "Arguments of a built-in; Python is configured in Python."),
            _field("processing", Group("processing"), "How the output becomes a value."),
            _field("granular", Either(Flag(), Group("granular")), "Commit every model turn and tool call by itself."),
            _field("cache", Group("cache"), "Reuse of the output in later runs."),
            _field(
                "rehearse",
                OneOf(("recorded", "live")),
                "Handling in replays and rehearsals; `live` for functions without effects.",
                default="recorded",
            ),
            _field("conversation", TextField(template=True), "Id of the stored conversation that the agent continues."),
            _field("rate_limit", TextField(), "Entry of `rate_limits` for the requests of its agent."),
            _field("context_sources", ListOf(Group("context_source")), "Parts of the context that the agent gets."),
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
            _field("body", Steps(), "Steps of a turn; its input is the last turn's output.", required=True),
            _field(
                "max_loops",
                Number(least=1, whole=True, most=10_000, nullable=True),
                "How many turns there may be; `null`, with `keep_history`, for any number.",
                default=5,
            ),
            _field("keep_history", AT_LEAST_ONE, "How many turns are kept, in memory and in the store."),
            _field("exit_condition", Function(), "A function `(output, context)` that ends the loop."),
            _field(
                "exit_expression",
                Expression(),
                "An expression on a turn's output, `previous_step`, that ends the loop.",
            ),
            _field("output_template", TextField(template=True), "Makes the output of the last one, `previous_step`."),
        ),
        "map": (
            *_EVERY_STEP,
            _field(
                "iterable_input",
                Expression(),
                "Items; by default the incoming data.",
                example="context.items",
            ),
            _field("body", Steps(), "The steps for one item, `this`.", required=True),
            _field("max_concurrency", AT_LEAST_ONE, "How many items are worked on at once."),
            _field("merge_strategy", MERGING, "What becomes of changes of the context.", default="context_update"),
        ),
        "hitl": (
            *_EVERY_STEP,
            _field("message", TextField(template=True), "Prompt of the pause.", required=True),
            _field("input_schema", SchemaField(), "Schema of the answer."),
        ),
        "approval": (
            *_EVERY_STEP,
            _field("message", TextField(template=True), "Prompt of the pause.", required=True),
            _field("to", TextField(), "Addressee; the application defines its meaning."),
            _field(
                "options",
                TableOf(Either(TextField(), Group("option"))),
                "Labels by name, or `label`, `kind` and `description`; by default approve, reject and defer.",
            ),
            _field("timeout_s", SECONDS, "Seconds after which `on_timeout` happens."),
            _field(
                "on_timeout",
                Either(OneOf(("fail", "approve", "reject")), Steps()),
                "Decision after `timeout_s`, or steps instead of one.",
                default="fail",
            ),
            _field("max_deferrals", COUNT, "How often the answer may be deferred.", default=3),
            _field("comment_required", Flag(), "Whether a rejection needs a comment.", default=False),
            _field("metadata", Table(), "Further facts for the approver."),
            _field("on_rejection", Steps(), "Steps after a rejection; without them the step fails."),
        ),
        "sleep": (
            *_EVERY_STEP,
            _field(
                "seconds", Anything(template=True), "Seconds, as a number or a template; or `until`.", example="3600"
            ),
            _field("until", Anything(template=True), "Time with a zone, or epoch seconds; a template, too."),
        ),
        "wait_for": (
            *_EVERY_STEP,
            _field("event", TextField(), "Name of the event.", required=True),
            _field("key", TextField(template=True), "Key of the event; by default the id of the run."),
            _field("schema", SchemaField(), "Schema of the data, which is the output."),
            _field("timeout_s", SECONDS, "Seconds to wait at most."),
            _field(
                "on_timeout",
                Either(OneOf(("fail", "none")), Steps()),
                "Result without an event in time, or steps instead of one.",
                default="fail",
            ),
        ),
        "sequence": (
            *_EVERY_STEP,
            _field("body", Steps(), "Steps one after the other, which the options hold for as a whole.", required=True),
        ),
        "pipeline": (
            _NAME,
            _KIND,
            _field("description", TextField(), "For people."),
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
"""Keys of every mapping by group; steps use their kind's."""


def fields_of(group: str) -> Mapping[str, BlueprintField]:
    """Return the keys of a group by name."""
    return _BY_NAME[group]


_BY_NAME: Mapping[str, Mapping[str, BlueprintField]] = MappingProxyType(
    {group: MappingProxyType({field.name: field for field in fields}) for group, fields in GROUPS.items()}
)

OLD_SPELLINGS: Mapping[str, Mapping[str, BlueprintField]] = MappingProxyType(
    {group: {old: field for field in fields for old in field.old} for group, fields in GROUPS.items()}
)
"""Keys of a group by their old spelling."""
