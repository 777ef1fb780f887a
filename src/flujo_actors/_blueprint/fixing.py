"""Fixes, applied to a text and proven.

Rules:

1. Edits of all findings are applied together, from the end; those that overlap, or change the same value, wait for the
   next pass. There are at most five.
2. After each pass the text is read again: its data must be what the edits say, and nothing else. If it is not, they are
   applied one by one, and what cannot be proven is left out.
3. A text that a further pass would change again is not changed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from .edits import changed_data
from .findings import Change, Edit, Finding, Fix
from .linting import Linted
from .nodes import Node, data_of
from .yaml_text import read_yaml

MOST_PASSES = 5


@attrs.frozen(kw_only=True)
class Fixed:
    """A text after its fixes."""

    text: str
    """As it stands in the file, with its byte order mark."""
    applied: tuple[Finding, ...]
    linted: Linted
    """What there is to say of it now."""


def fix_all(linted: Linted, look: Callable[[str], Linted], *, unsafe: bool, wanted: Callable[[Finding], bool]) -> Fixed:
    """Apply what can be applied; `look` says what there is to say of a text, `wanted` which findings are meant."""
    first = linted
    applied: list[Finding] = []
    for _ in range(MOST_PASSES):
        found = [each for each in linted.findings if wanted(each) and _may(each.fix, linted, each, unsafe=unsafe)]
        text, done = _one_pass(linted, found)
        if not done:
            return Fixed(text=linted.source.whole, applied=tuple(applied), linted=linted)
        applied.extend(done)
        linted = look(linted.source.with_text(text).whole)
    return Fixed(text=first.source.whole, applied=(), linted=first)


def _may(fix: Fix | None, linted: Linted, finding: Finding, *, unsafe: bool) -> bool:
    return fix is not None and (fix.safe or unsafe) and finding.file == linted.source.file


def _one_pass(linted: Linted, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    chosen = _apart(findings)
    text = _applied(linted.source.text, chosen)
    if not chosen or _is_proven(linted.root, text, chosen):
        return text, chosen
    return _one_by_one(linted, chosen)


def _one_by_one(linted: Linted, findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """The fixes that can be proven alone, and then together."""
    kept: list[Finding] = []
    for finding in findings:
        tried = [*kept, finding]
        if _is_proven(linted.root, _applied(linted.source.text, tried), tried):
            kept = tried
    return _applied(linted.source.text, kept), kept


def _apart(findings: Sequence[Finding]) -> list[Finding]:
    """Those whose edits do not touch one another; of two that do, the first."""
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
    """Whether the text has the data that the fixes promise."""
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
