"""Writes `blueprints.md`, the reference of the language, from the table of fields: `make docs`.

The same table is behind the checks, their suggestions and the JSON Schema; the text around it is `INTRODUCTION`.
"""

from __future__ import annotations

from pathlib import Path

from flujo_actors._api.cli.file_replacement import replace_file
from flujo_actors._blueprint.parser import field_table
from flujo_actors._blueprint.parser.field_table import GROUPS, NESTED_KINDS, STEP_KINDS, BlueprintField
from flujo_actors._blueprint.templates.template_filters import FILTERS, TESTS

PAGE = Path(__file__).with_name("blueprints.md")

INTRODUCTION = """# Blueprint schema

<!-- Written by docs/blueprints_page.py from the table of fields: change that, and run `make docs`. -->

A blueprint is a pipeline written in YAML: people who do not write Python can read it, change it and let it be
checked. `flujo-actors init demo` makes a project with one that runs offline.

```yaml
version: "1"
name: letters
context:
  initial: {tone: friendly}
agents:
  clerk:
    model: openai:gpt-4o
    system_prompt: You sort letters.
    output_schema: {type: object, properties: {kind: {enum: [order, question]}}, required: [kind]}
  writer: {model: openai:gpt-4o}
steps:
  - name: sort
    uses: agents.clerk
    processing: {structured_output: openai_json}
  - name: reply
    kind: conditional
    condition_expression: previous_step.kind
    branches:
      order: [{name: confirm, uses: "shop.orders:confirm"}]
      question:
        - name: answer
          uses: agents.writer
          input: "Answer in a {{ context.tone }} way: {{ input }}"
        - {name: release, kind: hitl, message: "Send this? {{ previous_step }}"}
```

## Loading and running

```python
from pathlib import Path
from tempfile import mkdtemp

from flujo_actors import Flujo, load_blueprint

file = Path(mkdtemp()) / "pipeline.yaml"
file.write_text(\"\"\"
steps:
  - {name: greet, uses: builtins.passthrough, input: "Hello, {{ input }}"}
  - {name: shout, uses: builtins.passthrough, input: "{{ previous_step | upper }}"}
\"\"\")
pipeline = load_blueprint(file)
assert Flujo(pipeline).run("tides").output == "HELLO, TIDES"
```

- `load_blueprint(path, allow=…)` gives a `Pipeline`, or raises `BlueprintError`, whose `findings` have
  rule and location ([rules](lint.md)). `flujo-actors validate` reports them, `--fix` fixes some, and `flujo-actors
  run` runs it ([commands](cli.md)).
- Options of runs are part of the pipeline: `Flujo(pipeline)` begins with its `context` and holds its
  `usage_limits`.
- `dump_blueprint(pipeline)` writes a pipeline of Python as a blueprint; loaded again, it has the same fingerprint.
  What no blueprint can say (a lambda, a closure, `deps`) is listed in one `NotExportable`.
- A loaded pipeline is one like any other: it can be stored, resumed and watched. Texts of templates and expressions
  are part of its fingerprint, so that a run does not continue with a changed condition unnoticed.

## Safety

A text that anybody may have written imports, reads and writes nothing that its reader does not allow.

- `uses: package.module:name` is refused unless `[blueprints] allow` of `flujo.toml`, `--allow` or `allow=` has the
  module (`"shop"` allows `shop` and its submodules) or that one name. The text is checked before anything is
  imported, the object afterwards: names that an allowed module imports from another one are not allowed with it.
- Files that it names (imports, prompts) are inside the root: the directory of the nearest `flujo.toml` upward, else
  its own.
- Templates call nothing, see no private name and no method, and have limits that are counted: 64,000 characters,
  2,000 parts, 10,000 turns of all loops, 1,000,000 characters of output.
- `[blueprints] total_tokens_limit` and `total_cost_usd_limit` of `flujo.toml` hold for every blueprint.

## Templates

Texts of `input` (at any depth), `message` and `output_template` are templates; `condition_expression`,
`exit_expression` and `iterable_input` are expressions, with or without braces. The syntax is Jinja's.

| variable | |
|---|---|
| `previous_step` | the input of the step; in `exit_expression` and `output_template` the output of the turn |
| `steps.<name>.output` | output of an earlier step, of its sequence or one around it; also `steps["a name"].output` |
| `context` | what steps share: `context.notes.first` |
| `this` | the item, in the body of a map |
| `input` | the input of the run |

- A template that is one expression hands over the value itself: `"{{ previous_step }}"` may be a list. Anything else
  makes a text: texts are inserted unchanged, other values as JSON. Nothing is coerced: `"007"` stays a text,
  and `"5" > 3` is an error of its step.
- `a.b` is the key of a mapping, else a declared field of a class; never a method. A missing name is an error that
  lists the known ones; `default` covers optional names.
- `{% if %}`, and `{% for x in … %}` two deep; lists, mappings, comparisons, `and`, `or`, `not`, `if else`, `~`, `+`,
  `-`.
- Filters: FILTERS.
- Tests (`x is …`): TESTS.

## Promoted schemas

A step that runs an agent with an `output_schema` is structured by it. After loading, `processing.schema` of a step is
its own, else its agent's; `structured_output: off` opts out. `flujo-actors show --resolved` prints it.

# Reference

Keys that are not listed are errors, with a suggestion. Old spellings are read with a note; `--fix` writes the new
ones.
"""

TITLES = {
    "blueprint": "The file",
    "context": "`context`",
    "cache": "`cache`",
    "rate_limit": "`rate_limits.<name>`",
    "schedule": "`schedules.<name>`",
    "usage_limits": "`usage_limits`",
    "agent": "`agents.<name>`",
    "prompt_file": "`system_prompt` from a file",
    "tool": "`tools` with approval",
    "context_source": "`context_sources`",
    "retrieval": "`context_sources.retrieval`",
    "option": "`options` of an approval",
    "config": "`config` of a step",
    "backoff": "`config.backoff`",
    "processing": "`processing`",
    "granular": "`granular`",
    "processors": "`processors`",
    "params": "`params`",
    "step": "Every step, and those that run something (`kind: step`)",
}

OF_EVERY_STEP = {field.name for field in GROUPS["hitl"]} - {"message", "input_schema"}


def page() -> str:
    """The whole page."""
    head = INTRODUCTION.replace("FILTERS", _listed(FILTERS)).replace("TESTS", _listed(TESTS))
    order = [
        "blueprint",
        "step",
        *STEP_KINDS[1:],
        *(group for group in GROUPS if group not in ("blueprint", *STEP_KINDS)),
    ]
    return head + "".join(_group(group) for group in order)


def _listed(names: object) -> str:
    return ", ".join(f"`{name}`" for name in names)  # type: ignore[attr-defined]


def _group(group: str) -> str:
    own = group in STEP_KINDS and group != "step"
    shown = [field for field in GROUPS[group] if not (own and field.name in OF_EVERY_STEP)]
    title = f"`kind: {group}`" if own else TITLES[group]
    nested = f"\nIts keys may also be written below `{group}:`, as in old files.\n" if group in NESTED_KINDS else ""
    return f"\n## {title}\n{nested}\n| key | value | |\n|---|---|---|\n" + "".join(map(_row, shown))


def _row(field: BlueprintField) -> str:
    notes = []
    if field.required:
        notes.append("Required.")
    if field.default is not None and field.default is not False:
        notes.append(f"Default `{field.default}`.")
    if field.example:
        notes.append(f"For example `{field.example}`.")
    if field.old:
        notes.append(f"Once called `{'`, `'.join(field.old)}`.")
    return f"| `{field.name}` | {_kind(field.kind)} | {' '.join([field.doc, *notes])} |\n"


def _kind(kind: field_table.Kind) -> str:
    match kind:
        case field_table.TextField():
            return "template" if kind.template else "text"
        case field_table.Expression():
            return "expression"
        case field_table.Flag():
            return "true or false"
        case field_table.Number():
            return "whole number" if kind.whole else "number"
        case field_table.OneOf():
            return ", ".join(f"`{word}`" for word in kind.words)
        case field_table.Anything():
            return "anything"
        case field_table.Table():
            return "mapping"
        case field_table.SchemaField():
            return "JSON Schema" + (", or `agents.X`" if kind.reference else "")
        case field_table.Uses():
            return "`agents.X`, `imports.X`, `builtins.X` or `pkg.mod:name`"
        case field_table.Function():
            return "`pkg.mod:name`"
        case field_table.FailureRule():
            return "HTTP status or exception"
        case field_table.ListOf():
            return f"list of {_kind(kind.item)}"
        case field_table.TableOf():
            return f"{_kind(kind.item)}, by name"
        case field_table.Group():
            return TITLES[kind.name].replace("`agents.<name>`", "agent").replace(".<name>`", "`").replace("s`", "`")
        case field_table.Steps():
            return "steps" + (", or the name of a branch" if kind.by_name else "")
        case field_table.OneStep():
            return "one step"
        case field_table.Either():
            return f"{_kind(kind.one)}, or {_kind(kind.other)}"


if __name__ == "__main__":
    replace_file(PAGE, page())
