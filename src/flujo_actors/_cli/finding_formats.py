"""Findings as people and machines read them: lines, JSON, commands of GitHub Actions, SARIF."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from .._blueprint.findings import Finding
from .._blueprint.rules import RULES
from .printing import printable, styled

SCHEMA_VERSION = 1


@attrs.frozen(kw_only=True)
class Report:
    """What a call of `validate` came to."""

    findings: Sequence[Finding]
    fixed: Sequence[Finding] = ()
    color: bool = False


def as_text(report: Report) -> str:
    """`file:line:column: severity RULE message`, a line for each."""
    return "".join(f"{_line(finding, color=report.color)}\n" for finding in report.findings)


def _line(finding: Finding, *, color: bool) -> str:
    place = f"{_file(finding)}:{finding.line}:{finding.column}:"
    severity = styled(finding.severity, finding.severity, color=color)
    rule = styled(finding.rule, "rule", color=color)
    return f"{place} {severity} {rule} {printable(finding.message)}"


def _file(finding: Finding) -> str:
    """The name of a file; no line may begin as a command of a CI system does."""
    name = printable(finding.file)
    return f"./{name}" if name.startswith(("::", "##")) else name


def as_json(report: Report) -> str:
    """One document."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "findings": [_as_data(finding) for finding in report.findings],
        "fixed": [{"rule": each.rule, "file": each.file, "line": each.line} for each in report.fixed],
    }
    return json.dumps(document, indent=2) + "\n"


def _as_data(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "fix": None if finding.fix is None else {"safe": finding.fix.safe},
    }


def as_github(report: Report) -> str:
    """Commands that annotate the lines of a pull request."""
    return "".join(_annotation(finding) for finding in report.findings)


def _annotation(finding: Finding) -> str:
    kind = "notice" if finding.severity == "note" else finding.severity
    options = {"file": finding.file, "line": finding.line, "col": finding.column, "title": finding.rule}
    listed = ",".join(f"{key}={_escaped(str(value), more=':,')}" for key, value in options.items())
    return f"::{kind} {listed}::{_escaped(printable(finding.message))}\n"


def _escaped(text: str, *, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_sarif(report: Report) -> str:
    """SARIF 2.1.0, with all rules declared and fixes carried."""
    driver = {
        "name": "flujo-actors",
        "rules": [_declared(rule) for rule in RULES],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [*map(_result, report.findings)]}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2) + "\n"


def _declared(rule_id: str) -> dict[str, object]:
    rule = RULES[rule_id]
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.finds},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.cure},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding) -> dict[str, Any]:
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": finding.file},
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }
    }
    result = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [place],
    }
    return result if finding.fix is None else result | {"fixes": [_sarif_fix(finding)]}


def _sarif_fix(finding: Finding) -> dict[str, object]:
    assert finding.fix is not None
    replacements = [
        {
            "deletedRegion": {"charOffset": edit.start, "charLength": edit.end - edit.start},
            "insertedContent": {"text": edit.text},
        }
        for edit in finding.fix.edits
    ]
    changes = [{"artifactLocation": {"uri": finding.file}, "replacements": replacements}]
    return {"description": {"text": RULES[finding.rule].cure}, "artifactChanges": changes}


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
