"""What a rule has to say about a text, and what would mend it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import attrs

Severity: TypeAlias = Literal["error", "warning", "note"]
"""`error`: the blueprint is refused; `warning`: it runs, but probably not as it was meant; `note`: shown with `-v`."""

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""From the least to the gravest."""


@attrs.frozen(kw_only=True)
class Edit:
    """Characters of a text to be replaced by others."""

    start: int
    end: int
    text: str


@attrs.frozen(kw_only=True, eq=False)
class Change:
    """What an edit does to the data of a text: it is proven by reading the text again."""

    kind: Literal["set", "rename", "remove", "value", "insert", "unwrap"]
    node: object
    """What changes: a mapping (`set`, `rename`, `remove`, `unwrap`), a list (`insert`), a value itself (`value`)."""
    key: str = ""
    value: Any = None
    """What is set, the new name of a key, the item that is put behind another one, or what was wrapped."""
    after: Any = None
    """The item of a list behind which `value` is put."""


@attrs.frozen(kw_only=True, eq=False)
class Fix:
    """Edits that mend a finding and touch nothing else; a safe one changes nothing that worked."""

    safe: bool
    edits: tuple[Edit, ...] = attrs.field(repr=False)
    changes: tuple[Change, ...] | None = attrs.field(default=None, repr=False)
    """`None` where the text could not be read before."""


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that a rule found, and where."""

    rule: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    fix: Fix | None = attrs.field(default=None, eq=False)
    at: int = attrs.field(default=0, repr=False, eq=False)
    """The same place as an offset into the text."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.rule} {self.message}"


def at_least(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    """Those of this severity or a graver one."""
    least = SEVERITIES.index(severity)
    return [each for each in findings if SEVERITIES.index(each.severity) >= least]


_FAMILY = re.compile(r"V-[A-Z]+\Z")


def matches(rule: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns means a rule: its id, a glob (`V-T*`) or a family (`V-T`)."""
    return any(_matches(rule, pattern.strip()) for pattern in patterns)


def _matches(rule: str, pattern: str) -> bool:
    if _FAMILY.match(pattern):
        return rule.rstrip("0123456789") == pattern
    return fnmatch.fnmatchcase(rule, pattern)
