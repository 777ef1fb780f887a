"""Rules about values: the context, schemas and templates: V-C, V-F, V-S, V-T."""

from __future__ import annotations

from .rule import FORM, SAME, WRITER, Rule, steps

RULES = (
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
        why="The template would fail in the run. Told only where all that writes is known.",
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
        why="When nothing else is left, the text of the model would stand for the object.",
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
        why="A schema that cannot be read is no promise; one that asks for what it does not describe is seldom meant.",
        bad="agents:\n  clerk: {model: test, output_schema: {type: objekt}}\n"
        + steps("  - {name: read, uses: agents.clerk}\n"),
        good="agents:\n  clerk: {model: test, output_schema: {type: object}}\n"
        + steps("  - {name: read, uses: agents.clerk, processing: {structured_output: auto}}\n"),
        cure="Mend the schema where the message says.",
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
        finds="an unknown variable; `steps.x` that comes later, stands inside another body, or nowhere",
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
