"""Where rules put what they found."""

from __future__ import annotations

import attrs

from .findings import Finding, Fix, Severity
from .nodes import Node
from .rules import RULES
from .source import Source


@attrs.define
class Told:
    """The findings of one file."""

    source: Source
    findings: list[Finding] = attrs.field(factory=list)

    def tell(
        self, rule: str, at: Node | int, message: str, *, severity: Severity | None = None, fix: Fix | None = None
    ) -> None:
        """Put down a finding at a node or a place."""
        place = at if isinstance(at, int) else at.start
        line, column = self.source.place(place)
        self.findings.append(
            Finding(
                rule=rule,
                severity=severity or RULES[rule].severity,
                file=self.source.file,
                line=line,
                column=column,
                message=message,
                fix=fix,
                at=place,
            )
        )
