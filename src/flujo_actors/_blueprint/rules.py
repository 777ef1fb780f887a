"""Every rule: what it finds, why that matters, an example of each, and what mends it.

The page of rules (docs/lint.md), `flujo-actors explain` and the tests of the rules are made of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import attrs

from .findings import Severity

Mending: TypeAlias = Literal["", "safe", "unsafe", "safe or unsafe"]
"""Whether `--fix` mends it, or `--unsafe-fixes`; empty: nothing does."""


@attrs.frozen(kw_only=True)
class Rule:
    """One rule."""

    id: str
    severity: Severity
    finds: str
    why: str
    bad: str
    good: str
    cure: str
    mends: Mending = ""
    also: Severity | None = None
    """The other severity of a rule that has two."""

    @property
    def can_be_ignored(self) -> bool:
        """What a text itself may not silence: that it cannot be read, and what it must not do."""
        return not self.id.startswith(("V-Y", "V-X"))


def _steps(text: str) -> str:
    """An example that is a list of steps, with what it needs around it."""
    return "steps:\n" + text


_WRITER = "agents:\n  writer: {model: test}\n"
_FORM = (
    "agents:\n"
    "  clerk:\n"
    "    model: test\n"
    "    output_schema: {type: object, properties: {kind: {enum: [order, question]}, text: {type: string}}}\n"
)
_SAME = "  - {name: first, uses: builtins.passthrough}\n"

_RULES = (
    # --- text
    Rule(
        id="V-Y1",
        severity="error",
        finds="a text that is not YAML",
        why="Nothing can be said of a text that cannot be read; the line and the column are where reading ended.",
        bad='steps:\n  - name: "first\n    uses: builtins.passthrough\n',
        good=_steps('  - name: "first"\n    uses: builtins.passthrough\n'),
        cure="Close the quote or the bracket that the message names, indent with spaces, save the file as UTF-8.",
    ),
    Rule(
        id="V-Y2",
        severity="error",
        finds="a key that stands twice",
        why="Most readers of YAML take the last one silently; which of them was meant is not to be seen.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n    input: b\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n    input: b\n"),
        cure="Remove one of them.",
    ),
    Rule(
        id="V-Y3",
        severity="error",
        finds="`{{ … }}` without quotes",
        why="YAML reads braces as a mapping, so the template never reaches the step.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    input: {{ previous_step }}\n"),
        good=_steps('  - name: first\n    uses: builtins.passthrough\n    input: "{{ previous_step }}"\n'),
        cure="Put quotes around the value.",
        mends="safe",
    ),
    Rule(
        id="V-Y4",
        severity="error",
        finds="more than 1 MiB, 60 levels or 50,000 values with aliases followed; a tag, a merge key, a second document, "
        "an alias in itself",
        why="A few lines of aliases can stand for more data than a machine holds, and tags can name classes.",
        bad=_steps("  - !step {name: first, uses: builtins.passthrough}\n"),
        good=_steps(_SAME),
        cure="Write the values out, or divide the file with `imports`.",
    ),
    # --- keys
    Rule(
        id="V-K1",
        severity="error",
        finds="an unknown key",
        why="A misspelt key does nothing, and nobody notices.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    inputs: a\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Write the key that the message suggests, or remove it.",
        mends="unsafe",
    ),
    Rule(
        id="V-K2",
        severity="error",
        finds="a key that is missing, or a value of another kind; `yes` or `on` where true or false is meant",
        why="Words such as `yes` are texts in YAML 1.2; what is not of its kind cannot be carried out.",
        bad=_steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: yes\n"),
        good=_steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: true\n"),
        cure="Write the value that the message asks for.",
        mends="safe",
    ),
    Rule(
        id="V-K3",
        severity="error",
        finds="something of the language that this one replaces",
        why="It would be read there and ignored here; the message says what does the same.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    plugins: [a]\n"),
        good=_steps(_SAME),
        cure="Use what the message names.",
    ),
    Rule(
        id="V-K4",
        severity="note",
        finds="an old spelling that is still read",
        why="One spelling for one thing makes files easy to search.",
        bad=_steps("  - step: first\n    uses: builtins.passthrough\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n"),
        cure="Write the new spelling.",
        mends="safe",
    ),
    Rule(
        id="V-N1",
        severity="error",
        finds="two steps of one sequence with one name",
        why="Steps are told apart by name, in results, in stored runs and in `steps.<name>.output`.",
        bad=_steps(_SAME + _SAME),
        good=_steps(_SAME + "  - {name: second, uses: builtins.passthrough}\n"),
        cure="Give one of them another name.",
    ),
    # --- what runs
    Rule(
        id="V-A1",
        severity="error",
        finds="a step with nothing to run",
        why="A step that runs nothing is a mistake; one that hands on what it gets is `builtins.passthrough`.",
        bad=_steps("  - name: first\n    input: a\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Give it `uses`.",
    ),
    Rule(
        id="V-A2",
        severity="error",
        finds="a map over what is known to be no list",
        why="The run would fail there.",
        bad=_WRITER
        + _steps(
            "  - {name: write, uses: agents.writer}\n"
            "  - name: each\n    kind: map\n    body:\n      - {name: same, uses: builtins.passthrough}\n"
        ),
        good="agents:\n  writer: {model: test, output_schema: {type: array, items: {type: string}}}\n"
        + _steps(
            "  - {name: write, uses: agents.writer, processing: {structured_output: openai_json}}\n"
            "  - name: each\n    kind: map\n    body:\n      - {name: same, uses: builtins.passthrough}\n"
        ),
        cure="Give `iterable_input` an expression that is a list, or the step before a schema of a list.",
    ),
    Rule(
        id="V-A5",
        severity="warning",
        finds="an output that nobody uses",
        why="A model was paid for it. Used means: handed to the next step, named in a later template, or put into the "
        "context.",
        bad=_WRITER
        + _steps("  - {name: draft, uses: agents.writer}\n  - {name: report, uses: agents.writer, input: Write it}\n"),
        good=_WRITER
        + _steps(
            "  - {name: draft, uses: agents.writer}\n"
            '  - {name: report, uses: agents.writer, input: "Write it: {{ previous_step }}"}\n'
        ),
        cure="Name it in a later template as `previous_step` or `steps.<name>.output`, or remove the step.",
    ),
    Rule(
        id="V-A6",
        severity="error",
        finds="an agent, import or built-in that is not there, or something that is not `package.module:name`",
        why="The step would have nothing to run. With `--resolve` the names of Python are looked for, too.",
        bad=_WRITER + _steps("  - {name: draft, uses: agents.writter}\n"),
        good=_WRITER + _steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Write the name that the message suggests.",
    ),
    Rule(
        id="V-A7",
        severity="error",
        finds="something that is not a number, or out of range",
        why="A timeout that is not understood is no timeout.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    config: {timeout_s: soon}\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n    config: {timeout_s: 30}\n"),
        cure="Write a number in the range that the message names.",
    ),
    Rule(
        id="V-A8",
        severity="warning",
        finds="an agent with a schema, in a step that says nothing about structured output",
        why="The step is structured anyway, since a schema is promoted; whoever reads the step should see it.",
        bad=_FORM + _steps("  - name: read\n    uses: agents.clerk\n"),
        good=_FORM
        + _steps("  - name: read\n    uses: agents.clerk\n    processing:\n      structured_output: openai_json\n"),
        cure="Add `processing: {structured_output: openai_json}`, or `off` to opt out.",
        mends="safe",
    ),
    # --- context
    Rule(
        id="V-C1",
        severity="error",
        also="warning",
        finds="a step that updates the context with what cannot, or may not, be merged",
        why="Only an object can be merged. A text, a list or a number fails the run there (an error); of a Python "
        "function without an annotation it is not known (a warning).",
        bad=_WRITER + _steps("  - name: draft\n    uses: agents.writer\n    updates_context: true\n"),
        good=_WRITER + _steps("  - name: draft\n    uses: agents.writer\n    sink_to: draft\n"),
        cure="`sink_to: <key>` puts any output under a key, and is the shortest way. Or put the output into an object "
        "with `builtins.wrap_dict`, which is what `--fix` does, or say `mergeable_output: true` where you know better.",
        mends="safe or unsafe",
    ),
    Rule(
        id="V-C2",
        severity="warning",
        finds="`context.x` that nothing writes or declares",
        why="The template would fail in the run. Told only where all that writes is known.",
        bad=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ context.topic }}"}\n'),
        good="context: {initial: {topic: tides}}\n"
        + _steps('  - {name: first, uses: builtins.passthrough, input: "{{ context.topic }}"}\n'),
        cure="Declare it under `context`, write it with `sink_to`, or give it a `default`.",
    ),
    Rule(
        id="V-C3",
        severity="warning",
        finds="a literal of more than 50,000 characters",
        why="It is part of every record of the run.",
        bad=_steps("  - name: first\n    uses: builtins.passthrough\n    input: " + "tides " * 8_400 + "\n"),
        good=_steps("  - name: first\n    uses: builtins.passthrough\n    input: tides\n"),
        cure="Put it into a file: `system_prompt: {from_file: …}`, or let a function read it.",
    ),
    Rule(
        id="V-F1",
        severity="note",
        finds="a structured step before one that needs an object, without `fallback`, while degrading to text is on",
        why="When nothing else is left, the text of the model would stand for the object.",
        bad=_WRITER
        + _steps(
            "  - name: read\n    uses: agents.writer\n    processing: {schema: {type: object, properties: {a: {}}}, "
            "degrade: true}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.a }}"}\n'
        ),
        good=_WRITER
        + _steps(
            "  - name: read\n    uses: agents.writer\n    processing: {schema: {type: object, properties: {a: {}}}, "
            "degrade: false}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.a }}"}\n'
        ),
        cure="Say `degrade: false`, or give the step a `fallback`.",
    ),
    Rule(
        id="V-S1",
        severity="error",
        also="warning",
        finds="something that is not a JSON Schema; as a warning, `required` that names no property, an array without "
        "`items`",
        why="A schema that cannot be read is no promise; one that asks for what it does not describe is seldom meant.",
        bad="agents:\n  clerk: {model: test, output_schema: {type: objekt}}\n"
        + _steps("  - {name: read, uses: agents.clerk}\n"),
        good="agents:\n  clerk: {model: test, output_schema: {type: object}}\n"
        + _steps("  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"),
        cure="Mend the schema where the message says.",
    ),
    # --- templates
    Rule(
        id="V-T1",
        severity="error",
        finds="`previous_step.output`",
        why="`previous_step` is the output itself; `.output` belongs to `steps.<name>.output`.",
        bad=_steps(_SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ previous_step.output }}"}\n'),
        good=_steps(_SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ previous_step }}"}\n'),
        cure="Write `previous_step`.",
        mends="safe",
    ),
    Rule(
        id="V-T2",
        severity="error",
        finds="`this` outside the body of a map",
        why="There is no item there.",
        bad=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ this }}"}\n'),
        good=_steps(
            '  - name: each\n    kind: map\n    iterable_input: "[1, 2]"\n    body:\n'
            '      - {name: same, uses: builtins.passthrough, input: "{{ this }}"}\n'
        ),
        cure="Write `previous_step` or `input`, or put the step into the body of a map.",
    ),
    Rule(
        id="V-T3",
        severity="error",
        finds="an unknown filter or test",
        why="The language has a fixed set of both: `explain templates` lists it.",
        bad=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upcase }}"}\n'),
        good=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upper }}"}\n'),
        cure="Write the one that the message suggests.",
        mends="safe",
    ),
    Rule(
        id="V-T4",
        severity="error",
        finds="an unknown variable; `steps.x` that comes later, stands inside another body, or nowhere",
        why="A step sees what ran before it: earlier steps of its sequence and of the sequences around it.",
        bad=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ steps.second.output }}"}\n' + "  - {name: second, uses: builtins.passthrough}\n"),
        good=_steps(_SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ steps.first.output }}"}\n'),
        cure="Write the name that the message suggests, or move the step.",
    ),
    Rule(
        id="V-T5",
        severity="warning",
        finds="a field that the known schema does not have",
        why="The template would fail in the run, or the condition never hold.",
        bad=_FORM
        + _steps(
            "  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.txt }}"}\n'
        ),
        good=_FORM
        + _steps(
            "  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.text }}"}\n'
        ),
        cure="Write a field of the schema, or add it there.",
    ),
    Rule(
        id="V-T6",
        severity="error",
        finds="something that is not of the template language",
        why="No calls, no private names, no `*`, `/`, `%`, `**`, no set, macro, include or import, loops two deep: a "
        "template can neither reach into Python nor run for long.",
        bad=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ input.upper() }}"}\n'),
        good=_steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upper }}"}\n'),
        cure="Use a filter, or a step that calls your function.",
    ),
    # --- flow
    Rule(
        id="V-P1",
        severity="warning",
        finds="two branches that write one key of the context, under a strategy that makes it an error",
        why="The merge of the branches would fail the run.",
        bad=_steps(
            "  - name: both\n    kind: parallel\n    branches:\n"
            "      a: [{name: one, uses: builtins.passthrough, sink_to: found}]\n"
            "      b: [{name: two, uses: builtins.passthrough, sink_to: found}]\n"
        ),
        good=_steps(
            "  - name: both\n    kind: parallel\n    branches:\n"
            "      a: [{name: one, uses: builtins.passthrough, sink_to: found.a}]\n"
            "      b: [{name: two, uses: builtins.passthrough, sink_to: found.b}]\n"
        ),
        cure="Write to different keys, or say `merge_strategy: overwrite`, `keep_first` or `no_merge`.",
    ),
    Rule(
        id="V-B1",
        severity="warning",
        finds="a branch that the expression never gives",
        why="Its steps can never run.",
        bad=_steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      yes: [{name: one, uses: builtins.passthrough}]\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
            "      'false': [{name: three, uses: builtins.passthrough}]\n"
        ),
        good=_steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
            "      'false': [{name: three, uses: builtins.passthrough}]\n"
        ),
        cure="Name the branch as the value is written: a truth is `true` or `false`.",
    ),
    Rule(
        id="V-B2",
        severity="warning",
        finds="a value without a branch, and no `default_branch`",
        why="The run would fail when the expression gives it.",
        bad=_steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
        ),
        good=_steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
            "    default_branch: [{name: three, uses: builtins.passthrough}]\n"
        ),
        cure="Add the branch, or a `default_branch`.",
    ),
    Rule(
        id="V-L1",
        severity="error",
        also="warning",
        finds="a loop without an exit, or with one that is never true; as a warning, one that is always true",
        why="A loop whose exit never holds fails after `max_loops`; one whose exit always holds is no loop.",
        bad=_steps("  - name: again\n    kind: loop\n    body: [{name: same, uses: builtins.passthrough}]\n"),
        good=_steps(
            "  - name: again\n    kind: loop\n    max_loops: 3\n    exit_expression: previous_step == 'done'\n"
            "    body: [{name: same, uses: builtins.passthrough}]\n"
        ),
        cure="Give it `exit_expression` or `exit_condition`.",
    ),
    Rule(
        id="V-L2",
        severity="note",
        also="warning",
        finds="a loop whose `max_loops` is left to 5; as a warning, more than 100 turns without `usage_limits`",
        why="A loop that does not end costs money with every turn.",
        bad=_steps(
            "  - name: again\n    kind: loop\n    exit_expression: previous_step == 'done'\n"
            "    body: [{name: same, uses: builtins.passthrough}]\n"
        ),
        good=_steps(
            "  - name: again\n    kind: loop\n    max_loops: 5\n    exit_expression: previous_step == 'done'\n"
            "    body: [{name: same, uses: builtins.passthrough}]\n"
        ),
        cure="Say `max_loops`, and `usage_limits` where there may be many turns.",
    ),
    # --- files
    Rule(
        id="V-I1",
        severity="error",
        finds="an import, or a file with a prompt, that is missing or cannot be read",
        why="The step would have nothing to run.",
        bad="imports: {child: nowhere.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        cure="Write the path as it is seen from this file.",
    ),
    Rule(
        id="V-I2",
        severity="error",
        finds="an import that leaves the root: absolute, with `..` or through a link",
        why="A blueprint reads nothing outside the directory of `flujo.toml`, or of the file itself without one.",
        bad="imports: {child: ../other/child.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        cure="Move the file inside, or put a `flujo.toml` above both.",
    ),
    Rule(
        id="V-I3",
        severity="error",
        finds="imports that go in a circle",
        why="The pipeline would have no end.",
        bad="imports: {child: pipeline.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        cure="Break the circle where the message shows it; repeat with `kind: loop`.",
    ),
    Rule(
        id="V-I4",
        severity="error",
        finds="an import that has errors",
        why="They are listed with their own file and line.",
        bad="imports: {child: broken.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + _steps("  - {name: first, uses: imports.child}\n"),
        cure="Mend them there.",
    ),
    # --- safety
    Rule(
        id="V-X1",
        severity="error",
        finds="Python that is not allowed",
        why="A text that anybody may write must not name what is imported. Who runs it allows modules in `flujo.toml`, "
        "with `--allow` or `load_blueprint(…, allow=…)`.",
        bad=_steps("  - {name: first, uses: os:system}\n"),
        good=_steps("  - {name: first, uses: shop.desk:greet}\n"),
        cure="Allow the module: `[blueprints] allow = [\"shop\"]` in `flujo.toml`.",
    ),
    Rule(
        id="V-X2",
        severity="error",
        finds="a secret in the file",
        why="Files are copied, committed and printed. The value is never shown.",
        bad=_steps("  - {name: first, uses: builtins.passthrough, input: {api_key: hunter2-hunter2}}\n"),
        good=_steps("  - {name: first, uses: builtins.passthrough, input: {topic: tides}}\n"),
        cure="Take it from the environment in Python, or hand it over as `resources`; change the secret.",
    ),
    Rule(
        id="V-X3",
        severity="error",
        finds="a file with a prompt outside the root",
        why="A blueprint reads nothing outside its root, or a prompt could carry any file of the machine to a model.",
        bad="agents: {writer: {model: test, system_prompt: {from_file: ../../secret.txt}}}\n"
        + _steps("  - {name: draft, uses: agents.writer}\n"),
        good="agents: {writer: {model: test, system_prompt: {from_file: prompt.txt}}}\n"
        + _steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Move the file inside the root.",
    ),
    Rule(
        id="V-U1",
        severity="warning",
        finds="an agent or import that is never used; an ignore that silences nothing",
        why="What is not used misleads whoever reads the file.",
        bad="agents:\n  writer: {model: test}\n  editor: {model: test}\n"
        + _steps("  - {name: draft, uses: agents.writer}\n"),
        good=_WRITER + _steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Remove it.",
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in _RULES})
"""Every rule by its id."""
