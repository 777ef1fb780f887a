"""Rules about the flow, other files and safety: V-P, V-B, V-L, V-I, V-X, V-U."""

from __future__ import annotations

from .rule import WRITER, Rule, steps

RULES = (
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
        why="A text that anybody may write must not name what is imported. Who runs it allows modules in `flujo.toml`, "
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
        why="What is not used misleads whoever reads the file.",
        bad="agents:\n  writer: {model: test}\n  editor: {model: test}\n"
        + steps("  - {name: draft, uses: agents.writer}\n"),
        good=WRITER + steps("  - {name: draft, uses: agents.writer}\n"),
        cure="Remove it.",
    ),
)
