"""Rule type, and scaffolds of the examples in explanations.

Sections:

- Rules about flow, imports and safety: V-P, V-B, V-L, V-I, V-X, V-U.
- Rules about text, keys and targets: V-Y, V-K, V-N, V-A.
- Rules about values: the context, schemas and templates: V-C, V-F, V-S, V-T.
- Table of rules: finding, reason, examples and fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import attrs

from ..parser.findings import Severity

Mending: TypeAlias = Literal["", "safe", "unsafe", "safe or unsafe"]
"""Whether `--fix` repairs it, or `--unsafe-fixes`; empty: nothing does."""


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
        """Return whether a comment may silence the rule."""
        return not self.id.startswith(("V-Y", "V-X"))


def steps(text: str) -> str:
    """Return an example blueprint around a list of steps."""
    return "steps:\n" + text


WRITER = "agents:\n  writer: {model: test}\n"
FORM = (
    "agents:\n"
    "  clerk:\n"
    "    model: test\n"
    "    output_schema: {type: object, properties: {kind: {enum: [order, question]}, text: {type: string}}}\n"
)
SAME = "  - {name: first, uses: builtins.passthrough}\n"


# --- Rules about flow ---------------------------------------------------------------------------------------------


FLOW_RULES = (
    Rule(
        id="V-P1",
        severity="warning",
        finds="two branches that write one key of the context, under a strategy that makes it an error",
        why="The merge of the branches would fail the run.",
        bad=steps(
            "  - name: both\n    kind: parallel\n    branches:\n"
            "      a: [{name: one, uses: builtins.passthrough, sink_to: found}]\n"
            "      b: [{name: two, uses: builtins.passthrough, sink_to: found}]\n"
        ),
        good=steps(
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
        bad=steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      yes: [{name: one, uses: builtins.passthrough}]\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
            "      'false': [{name: three, uses: builtins.passthrough}]\n"
        ),
        good=steps(
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
        bad=steps(
            "  - name: choose\n    kind: conditional\n    condition_expression: \"input == 'a'\"\n    branches:\n"
            "      'true': [{name: two, uses: builtins.passthrough}]\n"
        ),
        good=steps(
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
        bad=steps("  - name: again\n    kind: loop\n    body: [{name: same, uses: builtins.passthrough}]\n"),
        good=steps(
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
        bad=steps(
            "  - name: again\n    kind: loop\n    exit_expression: previous_step == 'done'\n"
            "    body: [{name: same, uses: builtins.passthrough}]\n"
        ),
        good=steps(
            "  - name: again\n    kind: loop\n    max_loops: 5\n    exit_expression: previous_step == 'done'\n"
            "    body: [{name: same, uses: builtins.passthrough}]\n"
        ),
        cure="Say `max_loops`, and `usage_limits` where there may be many turns.",
    ),
    Rule(
        id="V-I1",
        severity="error",
        finds="an import, or a file with a prompt, that is missing or cannot be read",
        why="The step would have nothing to run.",
        bad="imports: {child: nowhere.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        cure="Write the path as it is seen from this file.",
    ),
    Rule(
        id="V-I2",
        severity="error",
        finds="an import that leaves the root: absolute, with `..` or through a link",
        why="A blueprint reads nothing outside the directory of `flujo.toml`, or of the file itself without one.",
        bad="imports: {child: ../other/child.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        cure="Move the file inside, or put a `flujo.toml` above both.",
    ),
    Rule(
        id="V-I3",
        severity="error",
        finds="imports that go in a circle",
        why="The pipeline would have no end.",
        bad="imports: {child: pipeline.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        cure="Break the circle where the message shows it; repeat with `kind: loop`.",
    ),
    Rule(
        id="V-I4",
        severity="error",
        finds="an import that has errors",
        why="They are listed with their own file and line.",
        bad="imports: {child: broken.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        good="imports: {child: child.yaml}\n" + steps("  - {name: first, uses: imports.child}\n"),
        cure="Mend them there.",
    ),
    Rule(
        id="V-X1",
        severity="error",
        finds="Python that is not allowed",
        why="An untrusted text must not choose the imported modules. The operator allows modules in `flujo.toml`, "
        "with `--allow` or `load_blueprint(…, allow=…)`.",
        bad=steps("  - {name: first, uses: os:system}\n"),
        good=steps("  - {name: first, uses: shop.desk:greet}\n"),
        cure='Allow the module: `[blueprints] allow = ["shop"]` in `flujo.toml`.',
    ),
    Rule(
        id="V-X2",
        severity="error",
        finds="a secret in the file",
        why="Files are copied, committed and printed. The value is never shown.",
        bad=steps("  - {name: first, uses: builtins.passthrough, input: {api_key: hunter2-hunter2}}\n"),
        good=steps("  - {name: first, uses: builtins.passthrough, input: {topic: tides}}\n"),
        cure="Take it from the environment in Python, or hand it over as `resources`; change the secret.",
    ),
    Rule(
        id="V-X3",
        severity="error",
        finds="a file with a prompt outside the root",
        why="A blueprint reads nothing outside its root, or a prompt could carry any file of the machine to a model.",
        bad="agents: {writer: {model: test, system_prompt: {from_file: ../../secret.txt}}}\n"
        + steps("  - {name: draft, uses: agents.writer}\n"),
        good="agents: {writer: {model: test, system_prompt: {from_file: prompt.txt}}}\n"
        + steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Move the file inside the root.",
    ),
    Rule(
        id="V-U1",
        severity="warning",
        finds="an agent or import that is never used; an ignore that silences nothing",
        why="Unused parts mislead readers of the file.",
        bad="agents:\n  writer: {model: test}\n  editor: {model: test}\n"
        + steps("  - {name: draft, uses: agents.writer}\n"),
        good=WRITER + steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Remove it.",
    ),
    Rule(
        id="V-D1",
        severity="error",
        finds="a schedule without a valid cron expression, interval, zone or time",
        why="A schedule that is not understood never runs.",
        bad="schedules: {daily: {cron: '0 0 9 * * *'}}\n" + steps("  - {name: first, uses: builtins.passthrough}\n"),
        good="schedules: {daily: {cron: '0 9 * * *', zone: Europe/Madrid}}\n"
        + steps("  - {name: first, uses: builtins.passthrough}\n"),
        cure="Write five fields: minute, hour, day, month and weekday. Seconds have no field; use `every_s`.",
    ),
    Rule(
        id="V-D2",
        severity="note",
        finds="a schedule between 02:00 and 03:00 in a zone whose clock changes then",
        why="That hour is missing on one day of the year and repeated on another.",
        bad="schedules: {nightly: {cron: '30 2 * * *', zone: Europe/Madrid}}\n"
        + steps("  - {name: first, uses: builtins.passthrough}\n"),
        good="schedules: {nightly: {cron: '30 4 * * *', zone: Europe/Madrid}}\n"
        + steps("  - {name: first, uses: builtins.passthrough}\n"),
        cure="Choose another hour, or UTC.",
    ),
)


# --- Rules about text ---------------------------------------------------------------------------------------------


TEXT_RULES = (
    Rule(
        id="V-Y1",
        severity="error",
        finds="a text that is not YAML",
        why="An unreadable text cannot be checked; line and column are where parsing ended.",
        bad='steps:\n  - name: "first\n    uses: builtins.passthrough\n',
        good=steps('  - name: "first"\n    uses: builtins.passthrough\n'),
        cure="Close the quote or the bracket that the message names, indent with spaces, save the file as UTF-8.",
    ),
    Rule(
        id="V-Y2",
        severity="error",
        finds="a duplicate key",
        why="Most readers of YAML take the last one silently; which of them was meant is not to be seen.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n    input: b\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: b\n"),
        cure="Remove one of them.",
    ),
    Rule(
        id="V-Y3",
        severity="error",
        finds="`{{ … }}` without quotes",
        why="YAML reads braces as a mapping, so the template never reaches the step.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    input: {{ previous_step }}\n"),
        good=steps('  - name: first\n    uses: builtins.passthrough\n    input: "{{ previous_step }}"\n'),
        cure="Put quotes around the value.",
        mends="safe",
    ),
    Rule(
        id="V-Y4",
        severity="error",
        finds="more than 1 MiB, 60 levels or 50,000 values with aliases followed; a tag, a merge key, a second "
        "document, an alias in itself",
        why="A few lines of aliases can expand to more data than a machine holds, and tags can name classes.",
        bad=steps("  - !step {name: first, uses: builtins.passthrough}\n"),
        good=steps(SAME),
        cure="Write the values out, or divide the file with `imports`.",
    ),
    Rule(
        id="V-K1",
        severity="error",
        finds="an unknown key",
        why="A misspelled key has no effect, without any notice.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    inputs: a\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Write the key that the message suggests, or remove it.",
        mends="unsafe",
    ),
    Rule(
        id="V-K2",
        severity="error",
        finds="a key that is missing, or a value of another kind; `yes` or `on` where true or false is meant",
        why="Words such as `yes` are texts in YAML 1.2; a value of the wrong kind cannot be executed.",
        bad=steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: yes\n"),
        good=steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: true\n"),
        cure="Write the value that the message asks for.",
        mends="safe",
    ),
    Rule(
        id="V-K3",
        severity="error",
        finds="something of the language that this one replaces",
        why="It has no effect here; the message names its replacement.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    plugins: [a]\n"),
        good=steps(SAME),
        cure="Use the replacement in the message.",
    ),
    Rule(
        id="V-K4",
        severity="note",
        finds="an old spelling that is still read",
        why="One spelling for one thing makes files easy to search.",
        bad=steps("  - step: first\n    uses: builtins.passthrough\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n"),
        cure="Write the new spelling.",
        mends="safe",
    ),
    Rule(
        id="V-K5",
        severity="error",
        finds="a key that can only be set in Python",
        why="It holds functions, steps or objects of the program, which a file cannot name.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    deps: a\n"),
        good=steps(SAME),
        cure="Declare the step in Python and name it by `uses`; pass options of the run to `Flujo`.",
    ),
    Rule(
        id="V-N1",
        severity="error",
        finds="two steps of one sequence with one name",
        why="Steps are identified by name in results, in stored runs and in `steps.<name>.output`.",
        bad=steps(SAME + SAME),
        good=steps(SAME + "  - {name: second, uses: builtins.passthrough}\n"),
        cure="Give one of them another name.",
    ),
    Rule(
        id="V-A1",
        severity="error",
        finds="a step with nothing to run",
        why="A step that runs nothing is a mistake; a step that passes its input on is `builtins.passthrough`.",
        bad=steps("  - name: first\n    input: a\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Give it `uses`.",
    ),
    Rule(
        id="V-A2",
        severity="error",
        finds="a map over a value known not to be a list",
        why="The run would fail there.",
        bad=WRITER
        + steps(
            "  - {name: write, uses: agents.writer}\n"
            "  - name: each\n    kind: map\n    body:\n      - {name: same, uses: builtins.passthrough}\n"
        ),
        good="agents:\n  writer: {model: test, output_schema: {type: array, items: {type: string}}}\n"
        + steps(
            "  - {name: write, uses: agents.writer, processing: {structured_output: openai_json}}\n"
            "  - name: each\n    kind: map\n    body:\n      - {name: same, uses: builtins.passthrough}\n"
        ),
        cure="Give `iterable_input` an expression that is a list, or the step before a schema of a list.",
    ),
    Rule(
        id="V-A5",
        severity="warning",
        finds="an unused output",
        why="A model was paid for it. Used means: handed to the next step, named in a later template, or put into the "
        "context.",
        bad=WRITER
        + steps("  - {name: draft, uses: agents.writer}\n  - {name: report, uses: agents.writer, input: Write it}\n"),
        good=WRITER
        + steps(
            "  - {name: draft, uses: agents.writer}\n"
            '  - {name: report, uses: agents.writer, input: "Write it: {{ previous_step }}"}\n'
        ),
        cure="Name it in a later template as `previous_step` or `steps.<name>.output`, or remove the step.",
    ),
    Rule(
        id="V-A6",
        severity="error",
        also="warning",
        finds="an agent, import, built-in or model that is not there, or something that is not `package.module:name`",
        why="The step would have nothing to run. With `--resolve` the names of Python are looked for, too.",
        bad=WRITER + steps("  - {name: draft, uses: agents.writter}\n"),
        good=WRITER + steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Write the name that the message suggests.",
    ),
    Rule(
        id="V-A7",
        severity="error",
        finds="something that is not a number, or out of range",
        why="A timeout that is not understood is no timeout.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    config: {timeout_s: soon}\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    config: {timeout_s: 30}\n"),
        cure="Write a number in the range that the message names.",
    ),
    Rule(
        id="V-A8",
        severity="warning",
        finds="an agent with a schema, in a step without structured output options",
        why="The step is structured anyway, since a schema is promoted; the step should show it.",
        bad=FORM + steps("  - name: read\n    uses: agents.clerk\n"),
        good=FORM
        + steps("  - name: read\n    uses: agents.clerk\n    processing:\n      structured_output: openai_json\n"),
        cure="Add `processing: {structured_output: openai_json}`, or `off` to opt out.",
        mends="safe",
    ),
)


# --- Rules about values -------------------------------------------------------------------------------------------


VALUE_RULES = (
    Rule(
        id="V-C1",
        severity="error",
        also="warning",
        finds="a step that updates the context with what cannot, or may not, be merged",
        why="Only an object can be merged. A text, a list or a number fails the run there (an error); of a Python "
        "function without an annotation it is not known (a warning).",
        bad=WRITER + steps("  - name: draft\n    uses: agents.writer\n    updates_context: true\n"),
        good=WRITER + steps("  - name: draft\n    uses: agents.writer\n    sink_to: draft\n"),
        cure="`sink_to: <key>` puts any output under a key, and is the shortest way. Or put the output into an object "
        "with `builtins.wrap_dict`, which is what `--fix` does, or say `mergeable_output: true` where you know better.",
        mends="safe or unsafe",
    ),
    Rule(
        id="V-C2",
        severity="warning",
        finds="`context.x` that nothing writes or declares",
        why="The template would fail in the run. Reported only if all writes are known.",
        bad=steps('  - {name: first, uses: builtins.passthrough, input: "{{ context.topic }}"}\n'),
        good="context: {initial: {topic: tides}}\n"
        + steps('  - {name: first, uses: builtins.passthrough, input: "{{ context.topic }}"}\n'),
        cure="Declare it under `context`, write it with `sink_to`, or give it a `default`.",
    ),
    Rule(
        id="V-C3",
        severity="warning",
        finds="a literal of more than 50,000 characters",
        why="It is part of every record of the run.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    input: " + "tides " * 8_400 + "\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: tides\n"),
        cure="Put it into a file: `system_prompt: {from_file: …}`, or let a function read it.",
    ),
    Rule(
        id="V-F1",
        severity="note",
        finds="a structured step before one that needs an object, without `fallback`, while degrading to text is on",
        why="As a last resort, the text of the model would replace the object.",
        bad=WRITER
        + steps(
            "  - name: read\n    uses: agents.writer\n    processing: {schema: {type: object, properties: {a: {}}}, "
            "degrade: true}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.a }}"}\n'
        ),
        good=WRITER
        + steps(
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
        why="An unreadable schema guarantees nothing; one that requires undescribed fields is seldom meant.",
        bad="agents:\n  clerk: {model: test, output_schema: {type: objekt}}\n"
        + steps("  - {name: read, uses: agents.clerk}\n"),
        good="agents:\n  clerk: {model: test, output_schema: {type: object}}\n"
        + steps("  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"),
        cure="Fix the schema at the reported place.",
    ),
    Rule(
        id="V-T1",
        severity="error",
        finds="`previous_step.output`",
        why="`previous_step` is the output itself; `.output` belongs to `steps.<name>.output`.",
        bad=steps(SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ previous_step.output }}"}\n'),
        good=steps(SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ previous_step }}"}\n'),
        cure="Write `previous_step`.",
        mends="safe",
    ),
    Rule(
        id="V-T2",
        severity="error",
        finds="`this` outside the body of a map",
        why="There is no item there.",
        bad=steps('  - {name: first, uses: builtins.passthrough, input: "{{ this }}"}\n'),
        good=steps(
            '  - name: each\n    kind: map\n    iterable_input: "[1, 2]"\n    body:\n'
            '      - {name: same, uses: builtins.passthrough, input: "{{ this }}"}\n'
        ),
        cure="Write `previous_step` or `input`, or put the step into the body of a map.",
    ),
    Rule(
        id="V-T3",
        severity="error",
        finds="an unknown filter or test",
        why="The language has a fixed set of both, which its reference lists.",
        bad=steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upcase }}"}\n'),
        good=steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upper }}"}\n'),
        cure="Write the one that the message suggests.",
        mends="safe",
    ),
    Rule(
        id="V-T4",
        severity="error",
        finds="an unknown variable; `steps.x` that comes later, is inside another body, or does not exist",
        why="A step sees what ran before it: earlier steps of its sequence and of the sequences around it.",
        bad=steps(
            '  - {name: first, uses: builtins.passthrough, input: "{{ steps.second.output }}"}\n'
            "  - {name: second, uses: builtins.passthrough}\n"
        ),
        good=steps(SAME + '  - {name: second, uses: builtins.passthrough, input: "{{ steps.first.output }}"}\n'),
        cure="Write the name that the message suggests, or move the step.",
    ),
    Rule(
        id="V-T5",
        severity="warning",
        finds="a field that the known schema does not have",
        why="The template would fail in the run, or the condition never hold.",
        bad=FORM
        + steps(
            "  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"
            '  - {name: show, uses: builtins.passthrough, input: "{{ previous_step.txt }}"}\n'
        ),
        good=FORM
        + steps(
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
        bad=steps('  - {name: first, uses: builtins.passthrough, input: "{{ input.upper() }}"}\n'),
        good=steps('  - {name: first, uses: builtins.passthrough, input: "{{ input | upper }}"}\n'),
        cure="Use a filter, or a step that calls your function.",
    ),
)


# --- Table of rules -----------------------------------------------------------------------------------------------
# The page of rules (docs/lint.md), `flujo-actors explain` and the tests of the rules use this table.


RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in (*TEXT_RULES, *VALUE_RULES, *FLOW_RULES)})
"""Every rule by its id."""
