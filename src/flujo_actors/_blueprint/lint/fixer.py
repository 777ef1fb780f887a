"""Verified application of fixes to a text.

Rules:

1. Edits of all findings are applied together, from the end; those that overlap, or change the same value, wait for the
   next pass. There are at most five.
2. After each pass the text is parsed again: its data must equal the declared effect of the edits. Otherwise they are
   applied one by one, and an unverifiable one is skipped.
3. A text that a further pass would change again is not changed at all.
4. An unsafe fix of an error is kept only if the text then has fewer errors; one of a milder finding, if it has no more
   errors and fewer findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from ..parser.findings import SEVERITIES, Change, Edit, Finding, Fix
from ..parser.nodes import Node, data_of
from ..parser.yaml_text import read_yaml
from .edits import changed_data
from .linter import Linted

MOST_PASSES = 5
MOST_HALVED = 32
"""Maximum number of unsafe fixes that are searched for harmful ones."""

Look: TypeAlias = Callable[[str], "Linted"]
"""Lints a text."""


@attrs.frozen(kw_only=True)
class Fixed:
    """A text after its fixes."""

    text: str
    """Text of the file, with its byte order mark."""
    applied: tuple[Finding, ...]
    linted: Linted
    """Remaining findings."""


def fix_all(linted: Linted, lint: Look, *, unsafe: bool, wanted: Callable[[Finding], bool]) -> Fixed:
    """Apply the possible fixes; `lint` lints a text, `wanted` selects findings."""
    first = linted
    applied: list[Finding] = []
    for _ in range(MOST_PASSES):
        found = [each for each in linted.findings if wanted(each) and _may(each.fix, linted, each, unsafe=unsafe)]
        done, better = _better(linted, found, lint)
        if not done:
            return Fixed(text=linted.source.whole, applied=tuple(applied), linted=linted)
        applied.extend(done)
        linted = better
    return Fixed(text=first.source.whole, applied=(), linted=first)


def _may(fix: Fix | None, linted: Linted, finding: Finding, *, unsafe: bool) -> bool:
    return fix is not None and (fix.safe or unsafe) and finding.file == linted.source.file


def _better(linted: Linted, findings: Sequence[Finding], lint: Look) -> tuple[list[Finding], Linted]:
    """Apply one pass: safe fixes, else unsafe ones that reduce findings."""
    safe = [each for each in findings if each.fix is not None and each.fix.safe]
    chosen = safe or _improving(linted, findings, lint)
    text, done = _one_pass(linted, chosen)
    after = lint(linted.source.with_text(text).whole) if done else linted
    return (done, after) if safe or _improves(linted, after, done) else ([], linted)


def _improving(linted: Linted, findings: Sequence[Finding], lint: Look) -> list[Finding]:
    """Return the unsafe fixes after which there are fewer findings, by halving."""
    text, done = _one_pass(linted, findings)
    if done and _improves(linted, lint(linted.source.with_text(text).whole), done):
        return list(findings)
    if not 1 < len(findings) <= MOST_HALVED:
        return []
    half = len(findings) // 2
    return [*_improving(linted, findings[:half], lint), *_improving(linted, findings[half:], lint)]


def _improves(before: Linted, after: Linted, done: Sequence[Finding]) -> bool:
    """Return whether errors decreased, or milder findings did without a new error."""
    old, new = _weight(before), _weight(after)
    return new[0] < old[0] if any(each.severity == "error" for each in done) else new < old


def _weight(linted: Linted) -> tuple[int, ...]:
    """Return the number of errors, of warnings and of notes."""
    counts = Counter(each.severity for each in linted.findings)
    return tuple(counts[severity] for severity in reversed(SEVERITIES))


def _one_pass(linted: Linted, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    chosen = _disjoint(findings)
    text = _applied(linted.source.text, chosen)
    if not chosen or _is_proven(linted.root, text, chosen):
        return text, chosen
    return _one_by_one(linted, chosen)


def _one_by_one(linted: Linted, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Return the fixes that can be proven alone, and then together."""
    kept: list[Finding] = []
    for finding in findings:
        tried = [*kept, finding]
        if _is_proven(linted.root, _applied(linted.source.text, tried), tried):
            kept = tried
    return _applied(linted.source.text, kept), kept


def _disjoint(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with disjoint edits; the first of overlapping ones wins."""
    chosen: list[Finding] = []
    spans: list[Edit] = []
    values: set[int] = set()
    for finding in findings:
        assert finding.fix is not None
        mine = {id(change.node) for change in finding.fix.changes or () if change.kind == "value"}
        if mine & values or any(_touch(edit, other) for edit in finding.fix.edits for other in spans):
            continue
        chosen.append(finding)
        spans.extend(finding.fix.edits)
        values |= mine
    return chosen


def _touch(one: Edit, other: Edit) -> bool:
    if one.start == one.end == other.start == other.end:
        return True  # two insertions at one place: their order would be chance
    return one.start < other.end and other.start < one.end


def _applied(text: str, findings: Sequence[Finding]) -> str:
    edits = [edit for finding in findings for edit in (finding.fix.edits if finding.fix else ())]
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _is_proven(root: Node | None, text: str, findings: Sequence[Finding]) -> bool:
    """Return whether the text has the data that the fixes promise."""
    after = read_yaml("", text)
    unread = [finding for finding in findings if finding.fix is None or finding.fix.changes is None]
    if unread:
        return len(unread) == len(findings) and after.root is not None
    if root is None or after.root is None:
        return False
    changes: list[Change] = [each for finding in findings if finding.fix for each in finding.fix.changes or ()]
    return bool(changed_data(root, changes) == data_of(after.root)) and _is_in_order(after.findings)


def _is_in_order(findings: Sequence[Finding]) -> bool:
    return all(each.rule != "V-Y1" for each in findings)
