"""What a rule is, and the beginnings of the examples that rules are explained with."""

from __future__ import annotations

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


def steps(text: str) -> str:
    """An example that is a list of steps, with what it needs around it."""
    return "steps:\n" + text


WRITER = "agents:\n  writer: {model: test}\n"
FORM = (
    "agents:\n"
    "  clerk:\n"
    "    model: test\n"
    "    output_schema: {type: object, properties: {kind: {enum: [order, question]}, text: {type: string}}}\n"
)
SAME = "  - {name: first, uses: builtins.passthrough}\n"
