"""Rules about the text, its keys, and what steps run: V-Y, V-K, V-N, V-A."""

from __future__ import annotations

from .rule import FORM, SAME, WRITER, Rule, steps

RULES = (
    Rule(
        id="V-Y1",
        severity="error",
        finds="a text that is not YAML",
        why="Nothing can be said of a text that cannot be read; the line and the column are where reading ended.",
        bad='steps:\n  - name: "first\n    uses: builtins.passthrough\n',
        good=steps('  - name: "first"\n    uses: builtins.passthrough\n'),
        cure="Close the quote or the bracket that the message names, indent with spaces, save the file as UTF-8.",
    ),
    Rule(
        id="V-Y2",
        severity="error",
        finds="a key that stands twice",
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
        why="A few lines of aliases can stand for more data than a machine holds, and tags can name classes.",
        bad=steps("  - !step {name: first, uses: builtins.passthrough}\n"),
        good=steps(SAME),
        cure="Write the values out, or divide the file with `imports`.",
    ),
    Rule(
        id="V-K1",
        severity="error",
        finds="an unknown key",
        why="A misspelt key does nothing, and nobody notices.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    inputs: a\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Write the key that the message suggests, or remove it.",
        mends="unsafe",
    ),
    Rule(
        id="V-K2",
        severity="error",
        finds="a key that is missing, or a value of another kind; `yes` or `on` where true or false is meant",
        why="Words such as `yes` are texts in YAML 1.2; what is not of its kind cannot be carried out.",
        bad=steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: yes\n"),
        good=steps("  - name: first\n    uses: builtins.ensure_object\n    updates_context: true\n"),
        cure="Write the value that the message asks for.",
        mends="safe",
    ),
    Rule(
        id="V-K3",
        severity="error",
        finds="something of the language that this one replaces",
        why="It would be read there and ignored here; the message says what does the same.",
        bad=steps("  - name: first\n    uses: builtins.passthrough\n    plugins: [a]\n"),
        good=steps(SAME),
        cure="Use what the message names.",
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
        id="V-N1",
        severity="error",
        finds="two steps of one sequence with one name",
        why="Steps are told apart by name, in results, in stored runs and in `steps.<name>.output`.",
        bad=steps(SAME + SAME),
        good=steps(SAME + "  - {name: second, uses: builtins.passthrough}\n"),
        cure="Give one of them another name.",
    ),
    Rule(
        id="V-A1",
        severity="error",
        finds="a step with nothing to run",
        why="A step that runs nothing is a mistake; one that hands on what it gets is `builtins.passthrough`.",
        bad=steps("  - name: first\n    input: a\n"),
        good=steps("  - name: first\n    uses: builtins.passthrough\n    input: a\n"),
        cure="Give it `uses`.",
    ),
    Rule(
        id="V-A2",
        severity="error",
        finds="a map over what is known to be no list",
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
        finds="an output that nobody uses",
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
        finds="an agent, import or built-in that is not there, or something that is not `package.module:name`",
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
        finds="an agent with a schema, in a step that says nothing about structured output",
        why="The step is structured anyway, since a schema is promoted; whoever reads the step should see it.",
        bad=FORM + steps("  - name: read\n    uses: agents.clerk\n"),
        good=FORM
        + steps("  - name: read\n    uses: agents.clerk\n    processing:\n      structured_output: openai_json\n"),
        cure="Add `processing: {structured_output: openai_json}`, or `off` to opt out.",
        mends="safe",
    ),
)
