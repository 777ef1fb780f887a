"""Texts for fixes: twenty ways to write YAML, each with both kinds of newlines, with a byte order mark, and without a
last newline. `ADDED` says which lines a fix may add to each, `None` that it must be refused.
"""

from __future__ import annotations

HEAD = "agents:\n  clerk: {model: test, output_schema: {type: object, properties: {a: {type: string}}}}\n"
TWO = ["    processing:", "      structured_output: openai_json"]

TEXTS: dict[str, tuple[str, list[str] | None]] = {
    "plain": ("steps:\n  - name: one\n    uses: agents.clerk\n", TWO),
    "comments everywhere": (
        "# top\nsteps: # here\n  # before\n  - name: one # n\n    # between\n    uses: agents.clerk   # u\n"
        "    # after\n# end\n",
        TWO,
    ),
    "blank lines": ("steps:\n\n  - name: one\n\n    uses: agents.clerk\n\n\n    meta: {a: 1}\n\n", TWO),
    "uses first": ("steps:\n  - uses: agents.clerk\n    name: one\n", TWO),
    "dash alone": ("steps:\n  -\n    name: one\n    uses: agents.clerk\n", TWO),
    "deep dash": (
        "steps:\n      -   name: one\n          uses: agents.clerk\n",
        ["          processing:", "            structured_output: openai_json"],
    ),
    "no indent": (
        "steps:\n- name: one\n  uses: agents.clerk\n",
        ["  processing:", "    structured_output: openai_json"],
    ),
    "quotes": ('steps:\n  - "name": \'one\'\n    "uses": "agents.clerk"\n', TWO),
    "block scalar before": (
        "steps:\n  - name: one\n    input: |\n      # no comment\n      uses: nothing\n    uses: agents.clerk\n",
        TWO,
    ),
    "block scalar behind": (
        "steps:\n  - name: one\n    uses: agents.clerk\n    input: >-\n      a\n\n      b\n\n",
        TWO,
    ),
    "kept newlines": ("steps:\n  - name: one\n    uses: agents.clerk\n    input: |+\n      a\n\n\n", TWO),
    "quoted lines": ('steps:\n  - name: one\n    input: "a\n      # b\n\n      c"\n    uses: agents.clerk\n', TWO),
    "plain lines": ("steps:\n  - name: one\n    input: a\n      b\n      c\n    uses: agents.clerk\n", TWO),
    "an anchor that nobody uses": ("steps:\n  - &a\n    name: one\n    uses: agents.clerk\n", TWO),
    "an alias as a value": ("steps:\n  - name: one\n    meta: &m {a: 1}\n    uses: agents.clerk\n    input: *m\n", TWO),
    "document markers": ("steps:\n  - name: one\n    uses: agents.clerk\n...\n", TWO),
    "emoji and letters": ("steps:\n  - name: größe 🙂\n    uses: agents.clerk # 🙂\n", TWO),
    "inside branches in a loop": (
        "steps:\n  - name: again\n    kind: loop\n    max_loops: 2\n    exit_expression: previous_step.a\n    body:\n"
        "      - name: choose\n        kind: conditional\n        condition_expression: input\n        branches:\n"
        "          a:\n            - name: one\n              uses: agents.clerk\n"
        "          b: [{name: x, uses: builtins.passthrough}]\n",
        ["              processing:", "                structured_output: openai_json"],
    ),
    "processing without it": (
        "steps:\n  - name: one\n    uses: agents.clerk\n    processing:\n      enforcement: validate  # strict\n",
        ["      structured_output: openai_json"],
    ),
    "flow style": ("steps:\n  - {name: one, uses: agents.clerk}\n", None),
    "flow list": ("steps: [{name: one, uses: agents.clerk}]\n", None),
    "a shared step": (
        "steps:\n  - name: both\n    kind: parallel\n    branches:\n      a: &s\n        - name: one\n"
        "          uses: agents.clerk\n      b: *s\n",
        None,
    ),
    "question marks": ("steps:\n  - ? name\n    : one\n    ? uses\n    : agents.clerk\n", None),
}

VARIANTS = {
    "lf": lambda text: text,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "bom": lambda text: "\ufeff" + text,
    "no last newline": lambda text: text.rstrip("\n"),
}


def corpus() -> list[tuple[str, str, list[str] | None]]:
    """Every text in every variant."""
    return [
        (f"{name}, {kind}", change(HEAD + text), None if lines is None else list(lines))
        for name, (text, lines) in TEXTS.items()
        for kind, change in VARIANTS.items()
        if not (kind == "no last newline" and name == "kept newlines")
    ]
