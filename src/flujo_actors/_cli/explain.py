"""`flujo-actors explain`: why a rule is one, with an example of each side."""

from __future__ import annotations

import json

import attrs
import click

from .._blueprint.rule import Rule
from .._blueprint.rules import RULES
from .._core.near_names import nearest
from .finding_formats import SCHEMA_VERSION


@click.command()
@click.argument("rule", required=False)
@click.option("--all", "everything", is_flag=True, help="Explain every rule.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(rule: str | None, everything: bool, as_json: bool) -> None:
    """Explain a rule: why, a bad and a good example, the fix.

    RULE is an id such as V-A5.
    """
    chosen = list(RULES.values()) if everything or rule is None else [_named(rule)]
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "rules": [_as_data(each) for each in chosen]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif rule is None and not everything:
        width = max(map(len, RULES))
        click.echo("\n".join(f"{each.id:{width}}  {each.severity:7}  {_short(each.finds)}" for each in chosen))
    else:
        click.echo("\n\n".join(map(explained, chosen)))


def _named(name: str) -> Rule:
    found = RULES.get(name.upper())
    if found is None:
        near = nearest(name.upper(), list(RULES), cutoff=0.4)
        hint = f"did you mean {near}?" if near else "`flujo-actors explain` lists them"
        raise click.UsageError(f"there is no rule {name!r}: {hint}")
    return found


def _as_data(rule: Rule) -> dict[str, object]:
    return attrs.asdict(rule) | {"can_be_ignored": rule.can_be_ignored}


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def explained(rule: Rule) -> str:
    """A rule for people."""
    severity = rule.severity if rule.also is None else f"{rule.severity} or {rule.also}"
    parts = [
        f"{rule.id} ({severity}): {rule.finds}",
        rule.why,
        "Bad:",
        _indented(rule.bad),
        "Good:",
        _indented(rule.good),
    ]
    return "\n\n".join([*parts, f"To mend it: {rule.cure}", _mending(rule)])


def _mending(rule: Rule) -> str:
    how = {
        "": "Nothing mends it by itself.",
        "safe": "`flujo-actors validate --fix` mends it where it can.",
        "unsafe": "`flujo-actors validate --fix --unsafe-fixes` mends it.",
        "safe or unsafe": "`--fix` mends what is certain, `--fix --unsafe-fixes` the rest.",
    }[rule.mends]
    silence = f"Silence it with `# flujo: ignore {rule.id}`." if rule.can_be_ignored else "It cannot be silenced."
    return f"{how} {silence}"


def _indented(text: str) -> str:
    return "\n".join(f"    {_short(line)}" for line in text.rstrip("\n").split("\n"))
