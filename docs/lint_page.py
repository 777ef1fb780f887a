"""Writes `lint.md` from the table of rules: `make docs`.

The same table is behind `flujo-actors explain` and the tests of the rules; the text around it is `INTRODUCTION`.
"""

from __future__ import annotations

from pathlib import Path

from flujo_actors._api.cli.file_replacement import replace_file
from flujo_actors._blueprint.lint.rules import RULES, Rule

PAGE = Path(__file__).with_name("lint.md")

INTRODUCTION = """# Lint rules

<!-- Written by docs/lint_page.py from the table of rules: change that, and run `make docs`. -->

`flujo-actors validate` reports the findings of a pipeline in YAML, and `flujo_actors.lint(path)`
gives the same as a list. Nothing is imported or run for it: names of Python are checked as texts, return annotations
are read from the source.

- An **error** refuses the blueprint, a **warning** is about what probably was meant otherwise, a **note** is shown
  with `-v`.
- `--fix` applies safe fixes, `--fix --unsafe-fixes` also those that guess. A fix changes the lines it names and no
  other character: comments, quotes, newlines and the byte order mark stay. It is proven before it is written, by
  reading the text again; unproven cases (flow style, values shared by an alias) are left alone. `--diff` shows it
  and writes nothing.
- A comment silences rules in a step: `# flujo: ignore V-A5, V-T*`, on its first line or above it; `# flujo:
  ignore-file V-A5` above everything else silences it in the file. `[lint]` in `flujo.toml` has `ignore`, `error` and
  `warning`, lists of ids, families (`V-T`) and globs ([settings](settings.md)). V-Y and V-X cannot be silenced.
- `flujo-actors explain V-A5` prints an entry of this page.

| rule | | finds | fix |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = "".join(_row(rule) for rule in RULES.values())
    return INTRODUCTION + rows + "".join(_entry(rule) for rule in RULES.values())


def _row(rule: Rule) -> str:
    return f"| [{rule.id}](#{rule.id.lower()}) | {_severity(rule)} | {rule.finds} | {rule.mends or '–'} |\n"


def _severity(rule: Rule) -> str:
    return rule.severity if rule.also is None else f"{rule.severity}, {rule.also}"


def _entry(rule: Rule) -> str:
    fix = {"": "", "safe": " `--fix` does it.", "unsafe": " `--fix --unsafe-fixes` does it."}
    mends = fix.get(rule.mends, " `--fix` applies certain fixes, `--fix --unsafe-fixes` the rest.")
    return (
        f"\n## {rule.id}\n\n{rule.finds[0].upper()}{rule.finds[1:]} ({_severity(rule)}). {rule.why}\n\n"
        f"Bad:\n\n```yaml\n{_shown(rule.bad)}```\n\nGood:\n\n```yaml\n{_shown(rule.good)}```\n\n{rule.cure}{mends}\n"
    )


def _shown(text: str) -> str:
    return "".join(f"{line if len(line) <= 110 else line[:60] + ' …'}\n" for line in text.rstrip("\n").split("\n"))


if __name__ == "__main__":
    replace_file(PAGE, page())
