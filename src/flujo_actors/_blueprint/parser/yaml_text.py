"""Parser from bytes to nodes; YAML errors become findings."""

from __future__ import annotations

import re
from typing import Any

import attrs

from .findings import Edit, Finding, Fix
from .nodes import MOST_BYTES, Composed, Node, Refused, Source, YamlError, YamlProblem, compose, quoted, unquoted

_MOST_UNQUOTED = 50
_UNQUOTED = re.compile(r"(?P<before>[ \t]*(?:- +)*(?:[\w.-]+ *: +)?)(?P<value>\{\{.*)")
_COMMENT = re.compile(r"[ \t]+#(?!.*\}\}).*\Z")


@attrs.frozen(eq=False)
class Read:
    """Text, its nodes if any, and its YAML findings."""

    source: Source
    root: Node | None
    findings: list[Finding]


def read_yaml(file: str, content: bytes | str) -> Read:
    """Return the nodes and findings of a file's content."""
    text, wrong = _decoded(file, content)
    source = Source.of(file, text)
    if wrong is not None:
        return Read(source, None, [wrong])
    try:
        composed = compose(source.text)
    except Refused as refused:
        return Read(source, None, [finding_of(source, refused.trouble)])
    except YamlError as error:
        return Read(source, None, _unreadable(source, error))
    return Read(source, composed.root, [finding_of(source, each) for each in _in_order(composed)])


def _in_order(composed: Composed) -> list[YamlProblem]:
    return sorted(composed.troubles, key=lambda each: each.at)


def _decoded(file: str, content: bytes | str) -> tuple[str, Finding | None]:
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    if len(content) > MOST_BYTES:
        message = f"the file has {len(content):,} bytes, and a blueprint at most {MOST_BYTES:,}; divide it with imports"
        return "", Finding(rule="V-Y4", severity="error", file=file, line=1, column=1, message=message)
    try:
        return content.decode("utf-8"), None
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        line, column = Source.of(file, before).place(len(before.removeprefix("\ufeff")))
        message = f"this is not UTF-8: byte 0x{content[error.start]:02x} is invalid here; save the file as UTF-8"
        return "", Finding(rule="V-Y1", severity="error", file=file, line=line, column=column, message=message)


def finding_of(source: Source, trouble: YamlProblem) -> Finding:
    """Return a trouble with YAML as a finding."""
    line, column = source.place(trouble.at)
    return Finding(
        rule=trouble.rule,
        severity="error",
        file=source.file,
        line=line,
        column=column,
        message=trouble.message,
        fix=_quoting(source, trouble) if trouble.rule == "V-Y3" else None,
        at=trouble.at,
    )


def _quoting(source: Source, trouble: YamlProblem) -> Fix | None:
    """Return a fix that quotes a template and its line's rest."""
    end = source.line_end(trouble.at)
    text = source.text[trouble.at : end]
    comment = _COMMENT.search(text)
    value = (text[: comment.start()] if comment else text).rstrip()
    if trouble.end is not None and trouble.end != trouble.at + len(value):
        return None  # it continues after the line, or is inside another collection
    return Fix(safe=True, edits=(Edit(start=trouble.at, end=trouble.at + len(value), text=quoted(value)),))


# --- texts that YAML cannot read ----------------------------------------------------------------------------


def _unreadable(source: Source, error: YamlError) -> list[Finding]:
    """Return unquoted templates if they are the only errors."""
    found: list[Finding] = []
    text: str = source.text
    shift_by_line: dict[int, int] = {}
    for _ in range(_MOST_UNQUOTED):
        at = _unquoted_near(text, error)
        if at is None:
            break
        finding = finding_of(source, unquoted_at(at, shift_by_line))
        if finding.fix is None:
            break
        found.append(finding)
        text = _mended(text, at, shift_by_line)
        try:
            composed = compose(text)
        except Refused:
            return found
        except YamlError as another:
            error = another
        else:
            found.extend(_also_unquoted(source, composed, shift_by_line))
            return sorted(found, key=lambda each: each.at)
    return [*found, _syntax(source, error)] if not found else sorted(found, key=lambda each: each.at)


def _also_unquoted(source: Source, composed: Composed, shifts: dict[int, int]) -> list[Finding]:
    """Return unquoted templates parsed as mappings, in a partly fixed text."""
    found = [each for each in composed.troubles if each.rule == "V-Y3" and each.end is not None]
    return [
        finding_of(source, unquoted(_original(each.at, shifts), _original(each.end or each.at, shifts)))
        for each in found
    ]


def _original(at: int, shifts: dict[int, int]) -> int:
    """Return the original position of a position in a partly fixed text."""
    return at - sum(shift for start, shift in shifts.items() if start < at)


def unquoted_at(at: int, shifts: dict[int, int]) -> YamlProblem:
    """Return the problem at its original position."""
    original = _original(at, shifts)
    return attrs.evolve(unquoted(original, original), end=None)


def _mended(text: str, at: int, shifts: dict[int, int]) -> str:
    fix = _quoting(Source("", text), attrs.evolve(unquoted(at, at), end=None))
    assert fix is not None
    (edit,) = fix.edits
    shifts[at] = len(edit.text) - (edit.end - edit.start)
    return text[: edit.start] + edit.text + text[edit.end :]


def _unquoted_near(text: str, error: YamlError) -> int | None:
    """Return the position of an unquoted template near an error."""
    source = Source("", text)
    for mark in (getattr(error, "problem_mark", None), getattr(error, "context_mark", None)):
        if mark is None:
            continue
        for at in (mark.index, max(0, source.line_start(min(mark.index, len(text))) - 1)):
            start = source.line_start(min(at, len(text)))
            found = _UNQUOTED.match(text, start, source.line_end(start))
            if found:
                return found.start("value")
    return None


def _syntax(source: Source, error: YamlError) -> Finding:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    at = min(mark.index if mark is not None else int(getattr(error, "position", 0)), len(source.text))
    line, column = source.place(at)
    said = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read")
    message = f"this is not YAML: {said}{_hint(source, error, at)}"
    return Finding(rule="V-Y1", severity="error", file=source.file, line=line, column=column, message=message, at=at)


def _hint(source: Source, error: Any, at: int) -> str:
    line = source.text[source.line_start(at) : source.line_end(at)]
    context = str(getattr(error, "context", "") or "")
    begun = getattr(error, "context_mark", None)
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "; indent with spaces, a tab cannot indent"
    if "quoted scalar" in context and begun is not None:
        return f"; the quote that begins on line {begun.line + 1} is not closed"
    if "flow" in context and begun is not None:
        return f"; the bracket that opens on line {begun.line + 1} is not closed"
    if "mapping values are not allowed" in str(getattr(error, "problem", "")):
        return "; put quotes around a text with a colon in it, or mend the indentation"
    if getattr(error, "character", None) is not None:
        return f" (character {_number(error.character)}); remove it, or write it with an escape in double quotes"
    return "; look at the indentation and the quotes around here"


def _number(character: str | int | None) -> str:
    code = ord(character[0]) if isinstance(character, str) and character else int(character or 0)
    return f"U+{code:04X}"
