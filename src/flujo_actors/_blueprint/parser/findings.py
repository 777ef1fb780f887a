"""Findings of rules, and their fixes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import attrs

Severity: TypeAlias = Literal["error", "warning", "note"]
"""`error`: refused; `warning`: runs, maybe not as intended; `note`: shown by `-v`."""

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""From the least to the gravest."""


@attrs.frozen(kw_only=True)
class Edit:
    """Replacement of characters in a text."""

    start: int
    end: int
    text: str


@attrs.frozen(kw_only=True, eq=False)
class Change:
    """Effect of an edit on the data, verified by parsing."""

    kind: Literal["set", "rename", "remove", "value", "insert", "unwrap", "spread"]
    node: object
    """Changed node: a list (`insert`), a value (`value`), else a mapping."""
    key: str = ""
    value: Any = None
    """New value, new key name, inserted item or wrapped value."""
    after: Any = None
    """The item of a list behind which `value` is put."""


@attrs.frozen(kw_only=True, eq=False)
class Fix:
    """Edits that resolve a finding; safe ones change no working behavior."""

    safe: bool
    edits: tuple[Edit, ...] = attrs.field(repr=False)
    changes: tuple[Change, ...] | None = attrs.field(default=None, repr=False)
    """`None` where the text could not be read before."""


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that a rule found, and where."""

    rule: str
    """Id of the rule."""
    severity: Severity
    """`"error"`, `"warning"` or `"note"`."""
    file: str
    """File of the finding."""
    line: int
    """Line, from 1."""
    column: int
    """Column, from 1."""
    message: str
    """Description of the problem."""
    fix: Fix | None = attrs.field(default=None, eq=False)
    """Edit that repairs it, if there is one."""
    at: int = attrs.field(default=0, repr=False, eq=False)
    """The same place as an offset into the text."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.rule} {self.message}"


def at_least(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    """Return the findings of at least this severity."""
    least = SEVERITIES.index(severity)
    return [each for each in findings if SEVERITIES.index(each.severity) >= least]


_FAMILY = re.compile(r"V-[A-Z]+\Z")


def matches(rule: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern selects a rule: id, glob or family."""
    return any(_matches(rule, pattern.strip()) for pattern in patterns)


def _matches(rule: str, pattern: str) -> bool:
    if _FAMILY.match(pattern):
        return rule.rstrip("0123456789") == pattern
    return fnmatch.fnmatchcase(rule, pattern)
