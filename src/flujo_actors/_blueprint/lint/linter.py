"""From the content of a file to its findings: reading, looking, silencing.

Sections:

- Comments that silence rules: `# flujo: ignore V-A5, V-T*`, `# flujo: ignore-file V-A5`.
- Rules about JSON Schemas: invalid ones, and undescribed requirements (V-S1).
- Secrets in blueprints (V-X2): found by shape and by name, never printed.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as AbstractMapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from ..._core.validators import nearest
from ...telemetry._redaction.credential_shapes import is_secret_name, shape_spans
from ..parser.analysis import Analysis
from ..parser.blueprint_model import AgentEntry, AgentModel, BlueprintModel, ImportModel
from ..parser.file_parser import read_model
from ..parser.findings import Finding, Severity, matches
from ..parser.nodes import FindingCollector, Mapping, Node, Scalar, Sequence, Source, key_of, walk
from ..parser.nodes import Mapping as Table
from ..parser.project import Outside, Project, content_of, inside
from ..parser.yaml_text import read_yaml
from ..templates.template_parser import is_template
from . import lint_context, lint_flow, lint_names
from .flow import Flow
from .rules import RULES
from .value_schemas import Shape

# --- Comments that silence rules ----------------------------------------------------------------------------------
# Rules:
#
# 1. A comment is on the first line of a step (or an agent), or above it; it applies to everything inside.
# 2. `ignore-file` comes before everything else.
# 3. Text values contain no comments. V-Y and V-X cannot be silenced. A comment that silences nothing is reported
#    (V-U1).


_COMMENT = re.compile(r"#\s*flujo:\s*(?P<what>ignore-file|ignore)\b:?\s*(?P<rules>[^#\r\n]*)")


@attrs.define(eq=False)
class Ignore:
    """One comment, and the stretch of the text that it holds for."""

    at: int
    rules: tuple[str, ...]
    start: int
    end: int
    used: bool = False

    def silences(self, finding: Finding) -> bool:
        """Return whether a finding is meant."""
        inside = self.start <= finding.at < max(self.end, self.start + 1)
        return inside and RULES[finding.rule].can_be_ignored and matches(finding.rule, self.rules)


def ignores_in(model: BlueprintModel) -> list[Ignore]:
    """Return the comments of a file."""
    source = model.source
    if "flujo:" not in source.text:
        return []
    texts = sorted((node.start, node.end) for node in walk(model.root) if isinstance(node, Scalar))
    anchors: dict[int, list[Node]] = {}
    for node in _anchored(model):
        anchors.setdefault(source.line_start(node.start), []).append(node)
    comments = (match for match in _COMMENT.finditer(source.text) if not _is_within(match.start(), texts))
    known: dict[int, int] = {}
    return [_ignore(source, match, anchors, model.root, known) for match in comments]


def _is_within(at: int, texts: list[tuple[int, int]]) -> bool:
    """Return whether a position is inside one of the ordered texts."""
    before = bisect_right(texts, (at, sys.maxsize)) - 1
    return before >= 0 and at < texts[before][1]


def _anchored(model: BlueprintModel) -> list[Node]:
    agents: list[Node] = [agent.node for agent in model.agents.values()]
    keys: list[Node] = [agent.key for agent in model.agents.values()]
    return [*(step.node for step in model.all_steps()), *agents, *keys]


def _ignore(
    source: Source, match: re.Match[str], anchors: dict[int, list[Node]], root: Mapping, known: dict[int, int]
) -> Ignore:
    rules = tuple(part.strip() for part in re.split(r"[,\s]+", match["rules"]) if part.strip().startswith("V-"))
    if match["what"] == "ignore-file":
        at_top = match.start() < root.start or source.place(match.start())[0] == 1
        return Ignore(match.start(), rules, 0, len(source.text) + 1 if at_top else 0)
    line = source.line_start(match.start())
    alone = not source.text[line : match.start()].strip(" -")
    if alone:
        line = _next_content(source, line, known)
    held = anchors.get(line, [])
    if not held:
        return Ignore(match.start(), rules, match.start(), match.start())
    return Ignore(match.start(), rules, line, max(_end(source, node) for node in held))


def _end(source: Source, node: Node) -> int:
    return node.end if not isinstance(node, Scalar) else source.line_end(node.end)


def _next_content(source: Source, line: int, known: dict[int, int]) -> int:
    """Return the start of the next nonempty line; `known` is a cache."""
    passed = []
    while line < len(source.text) and line not in known:
        passed.append(line)
        following = source.next_line(line)
        if following == line or _has_content(source, line):
            break
        line = following
    line = known.get(line, line)
    known.update(dict.fromkeys(passed, line))
    return line


def _has_content(source: Source, line: int) -> bool:
    text = source.text[line : source.line_end(line)].strip()
    return bool(text) and text != "-" and not text.startswith("#")


def silenced(collector: FindingCollector, model: BlueprintModel, findings: list[Finding]) -> list[Finding]:
    """Return the findings not silenced; unused comments are findings themselves."""
    comments = ignores_in(model)
    kept = []
    for finding in findings:
        mine = [each for each in comments if finding.file == collector.source.file and each.silences(finding)]
        for each in mine:
            each.used = True
        if not mine:
            kept.append(finding)
    for each in comments:
        if not each.used:
            what = ", ".join(each.rules) if each.rules else "no rule"
            collector.report("V-U1", each.at, f"this comment silences nothing ({what}): remove it")
            kept.append(collector.findings[-1])
    return kept


# --- Rules about JSON Schemas -------------------------------------------------------------------------------------


_MOST_LEVELS = 60


def lint_schemas(analysis: Analysis) -> None:
    """Add the findings."""
    for entry in _schemas(analysis):
        wrong = _problem(entry.value)
        if wrong is not None:
            why, path = wrong
            analysis.collector.report("V-S1", _key_at(entry, path), f"this is not a JSON Schema: {why}")
            _ignore_schema(analysis, entry)
            continue
        for doubt in _doubts(entry.value, 0):
            analysis.collector.report("V-S1", entry.key, doubt, severity="warning")


def _ignore_schema(analysis: Analysis, entry: AgentEntry) -> None:
    """Ignore an invalid schema in later rules."""
    for agent in analysis.model.agents.values():
        agent.broken = agent.broken or entry in agent.entries.values()
    for step in analysis.model.all_steps():
        used = step.uses
        of_agent = used is not None and used.kind == "agent" and used.name in analysis.model.agents
        step.broken = step.broken or bool(of_agent and used and analysis.model.agents[used.name].broken)


def _schemas(analysis: Analysis) -> Iterator[AgentEntry]:
    model = analysis.model
    tables: list[object] = [model.value("context"), *(agent.entries for agent in model.agents.values())]
    for step in model.all_steps():
        tables.extend((step.entries, step.value("processing")))
    for table in tables:
        for key in ("schema", "output_schema", "input_schema"):
            entry = table.get(key) if isinstance(table, dict) else None
            if entry is not None and isinstance(entry.value, dict):
                yield entry


_TYPES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "map": "object",
    "None": "null",
}
"""Names of types in other languages."""


def _key_at(entry: AgentEntry, path: list[str | int]) -> Scalar:
    """Return the innermost key of a path inside a schema."""
    node: Node = entry.node
    key = entry.key
    for part in path:
        if isinstance(node, Table) and isinstance(part, str) and (inner := node.get(part)) is not None:
            key, node = node.key(part) or key, inner
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            break
    return key


def _problem(schema: dict[str, object]) -> tuple[str, list[str | int]] | None:
    """Return the first flaw of a schema, with its path."""
    import jsonschema_rs  # only for files with schemas in them

    try:
        jsonschema_rs.validator_for(schema, retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        path = list(getattr(error, "instance_path", ()))
        message = str(getattr(error, "message", None) or error).partition("\n")[0][:200]
        return _wrong_type(schema, path) or message, path
    return None


def _wrong_type(schema: object, path: list[str | int]) -> str | None:
    """Return the message for `type: str`; the validator's own lists all types."""
    found: Any = schema
    for part in path:
        found = found[part]
    if path[-1:] != ["type"] or not isinstance(found, str):
        return None
    meant = _TYPES.get(found) or nearest(found, sorted(set(_TYPES.values())))
    hint = f"write `{meant}`" if meant else f"there are {', '.join(sorted(set(_TYPES.values())))}"
    return f"there is no type `{found[:40]}`: {hint}"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri[:100]}, and schemas are never fetched")


def _doubts(schema: object, level: int) -> Iterator[str]:
    if not isinstance(schema, AbstractMapping) or level > _MOST_LEVELS:
        return
    properties = schema.get("properties")
    required = schema.get("required")
    if isinstance(properties, AbstractMapping) and isinstance(required, list):
        missing = [name for name in required if isinstance(name, str) and name not in properties]
        if missing:
            yield f"`required` names {missing[0]!r}, which is not among `properties`"
    if schema.get("type") == "array" and "items" not in schema and "prefixItems" not in schema:
        yield "an array without `items` does not describe its elements"
    inner = [*(properties.values() if isinstance(properties, AbstractMapping) else ()), schema.get("items")]
    for each in inner:
        yield from _doubts(each, level + 1)


# --- Secrets in blueprints (V-X2): found by shape and by name -----------------------------------------------------


_SHORTEST = 6
_REFERS = re.compile(r"\{\{|\$\{|^<.*>$|^(?:env|secret)[.:]", re.IGNORECASE)
_REPORTED = (
    "there is a secret here: take it out of the file, hand it over from the environment in Python, and change it"
)
HIDDEN = "[redacted]"


def lint_secrets(collector: FindingCollector, root: Node | None) -> frozenset[str]:
    """Add the findings; return the secrets, so that no message prints them."""
    source = collector.source
    spans = {*shape_spans(source.text), *(_by_name(root) if root is not None else ())}
    for start, _ in sorted(_apart(spans)):
        collector.report("V-X2", _line_of(source, start), _REPORTED)
    return frozenset(source.text[start:end] for start, end in spans)


def _apart(spans: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans without those that begin inside another one."""
    kept: list[tuple[int, int]] = []
    for span in sorted(spans):
        if not kept or span[0] >= kept[-1][1]:
            kept.append(span)
    return kept


def _line_of(source: Source, at: int) -> int:
    start = source.line_start(at)
    line = source.text[start : source.line_end(at)]
    return start + len(line) - len(line.lstrip(" -"))


def _by_name(root: Node) -> set[tuple[int, int]]:
    return {
        (value.start, value.end)
        for node in walk(root)
        if isinstance(node, Mapping)
        for key, value in node.pairs
        if isinstance(value, Scalar) and _is_secret(key_of(key), value)
    }


def _is_secret(name: str, value: Scalar) -> bool:
    text = value.value
    return (
        isinstance(text, str)
        and len(text) >= _SHORTEST
        and " " not in text.strip()
        and is_secret_name(name)
        and not _REFERS.search(text)
    )


def without(secrets: frozenset[str], text: str) -> str:
    """Return a text in which no secret is left."""
    for secret in sorted(secrets, key=len, reverse=True):
        for spelled in (secret, secret.strip("'\"")):
            if len(spelled) >= _SHORTEST:
                text = text.replace(spelled, HIDDEN)
    return text


# --- From the content of a file to its findings -------------------------------------------------------------------


_STRUCTURAL = (
    "V-Y*",
    "V-K1",
    "V-K2",
    "V-K3",
    "V-K5",
    "V-N*",
    "V-A1",
    "V-A6",
    "V-A7",
    "V-T1",
    "V-T2",
    "V-T3",
    "V-T4",
    "V-T6",
)
CANNOT_RUN = (*_STRUCTURAL, "V-I*", "V-X*")
"""Errors that no comment or setting can silence: the blueprint cannot run."""


MOST_IMPORTS_DEEP = 20


@attrs.define(kw_only=True, eq=False, repr=False)
class Linted:
    """Linted file."""

    source: Source
    model: BlueprintModel | None
    findings: list[Finding]
    """Findings after comments and settings, in text order."""
    refusals: list[Finding]
    """Errors that prevent loading, regardless of comments."""
    secrets: frozenset[str] = frozenset()
    output: Shape = None
    root: Node | None = None
    analysis: Analysis | None = None


class Linter:
    """Linter of a file and its imports, each parsed once."""

    def __init__(self, project: Project, *, copy_schema: bool = False) -> None:
        self._project, self._copy_schema = project, copy_schema
        self._children: dict[Path, Linted] = {}
        self._open: list[Path] = []

    def lint(self, file: str, content: bytes | str, path: Path | None = None, *, is_child: bool = False) -> Linted:
        """Return the findings of a file's content; `path` is its location."""
        read = read_yaml(file, content)
        collector = FindingCollector(read.source, list(read.findings))
        secrets = lint_secrets(collector, read.root)
        readable = read.root is not None and not any(each.rule == "V-Y1" for each in read.findings)
        model = read_model(collector, read.root, path) if readable or not read.findings else None
        if path is not None:
            self._open.append(path.resolve())
        analysis = None if model is None else self._analyzed(collector, model, is_child=is_child)
        if path is not None:
            self._open.pop()
        return self._judged(collector, model, analysis, secrets, read.root)

    def _analyzed(self, collector: FindingCollector, model: BlueprintModel, *, is_child: bool) -> Analysis:
        for each in model.imports.values():
            self._import(collector, model, each)
        for agent in model.agents.values():
            self._prompt(collector, model, agent)
        flow = Flow(model, self._project, self._output_of)
        analysis = Analysis(model, self._project, collector, flow, is_child)
        lint_names.add_findings(analysis)
        lint_schemas(analysis)
        flow.walk()
        lint_names.lint_templates(analysis)
        lint_flow.add_findings(analysis)
        lint_context.add_findings(analysis, copy_schema=self._copy_schema)
        return analysis

    def _output_of(self, child: BlueprintModel) -> Shape:
        return next((each.output for each in self._children.values() if each.model is child), None)

    # --- other files

    def _import(self, collector: FindingCollector, model: BlueprintModel, each: ImportModel) -> None:
        directory = self._project.root if model.path is None else model.path.parent
        try:
            path = inside(self._project.root, directory, each.path)
        except (Outside, OSError, ValueError):
            collector.report(
                "V-I2", each.key, f"import {each.name!r} leaves the root: {each.path[:80]!r}; move the file inside"
            )
            return
        if path in self._open:
            circle = " -> ".join(step.name for step in (*self._open[self._open.index(path) :], path))
            collector.report("V-I3", each.key, f"imports go in a circle: {circle}")
            return
        if len(self._open) >= MOST_IMPORTS_DEEP:
            collector.report("V-I3", each.key, f"imports are more than {MOST_IMPORTS_DEEP} deep")
            return
        child = self._child(collector, each, path)
        if child is None:
            return
        collector.findings.extend(
            child.findings if child.model is None or child.refusals else _highest_severity(child.findings)
        )
        if child.refusals:
            count = len(child.refusals)
            collector.report(
                "V-I4", each.key, f"import {each.name!r} has {count} error{'s' * (count > 1)}, listed with its file"
            )
        else:
            each.child = child.model

    def _child(self, collector: FindingCollector, each: ImportModel, path: Path) -> Linted | None:
        if path in self._children:
            known = self._children[path]
            return attrs.evolve(known, findings=[])
        try:
            content = content_of(path)
        except OSError as error:
            collector.report("V-I1", each.key, f"import {each.name!r} cannot be read: {_reason(error)}")
            return None
        label = (
            (Path(collector.source.file).parent / each.path).as_posix()
            if collector.source.file != "<stdin>"
            else each.path
        )
        self._children[path] = self.lint(label, content, path, is_child=True)
        return self._children[path]

    def _prompt(self, collector: FindingCollector, model: BlueprintModel, agent: AgentModel) -> None:
        said = agent.value("system_prompt")
        entry = said.get("from_file") if isinstance(said, dict) else None
        if entry is None:
            return
        directory = self._project.root if model.path is None else model.path.parent
        try:
            content_of(inside(self._project.root, directory, entry.value)).decode("utf-8")
        except (Outside, ValueError):
            collector.report(
                "V-X3", entry.key, "the file with the prompt is outside the root, or no text: move it inside"
            )
        except OSError as error:
            collector.report("V-I1", entry.key, f"the file with the prompt cannot be read: {_reason(error)}")
        variables = said.get("variables") if isinstance(said, dict) else None
        for name, text in variables.value.items() if variables is not None else ():
            if variables is not None and is_template(text):
                why = "an agent sees neither steps nor context: put it into the step's `input`"
                key = variables.node.key(name) if isinstance(variables.node, Mapping) else None
                collector.report(
                    "V-T6", key or variables.key, f"the variable {name[:60]!r} of a prompt must be a fixed text: {why}"
                )

    # --- remaining rules

    def _judged(
        self,
        collector: FindingCollector,
        model: BlueprintModel | None,
        analysis: Analysis | None,
        secrets: frozenset[str],
        root: Node | None,
    ) -> Linted:
        collector.findings = _deduplicated(collector.findings)
        own = [each for each in collector.findings if each.file == collector.source.file]
        refusals = [each for each in own if each.severity == "error" and matches(each.rule, CANNOT_RUN)]
        kept = collector.findings if model is None else silenced(collector, model, collector.findings)
        found = [self._as_set(each) for each in kept if not self._is_ignored(each)]
        left = [each for each in found if each.severity == "error" and each not in refusals]
        clean = [_without(secrets, each) for each in found]
        return Linted(
            source=collector.source,
            model=model,
            findings=sorted(
                clean, key=lambda each: (each.file != collector.source.file, each.file, each.line, each.column)
            ),
            refusals=[_without(secrets, each) for each in (*refusals, *left)],
            secrets=secrets,
            output=None if analysis is None else analysis.flow.output,
            root=root,
            analysis=analysis,
        )

    def _is_ignored(self, finding: Finding) -> bool:
        return RULES[finding.rule].can_be_ignored and matches(finding.rule, self._project.ignore)

    def _as_set(self, finding: Finding) -> Finding:
        severity: Severity = finding.severity
        if matches(finding.rule, self._project.error):
            severity = "error"
        elif matches(finding.rule, self._project.warning) and not matches(finding.rule, CANNOT_RUN):
            severity = "warning"
        return attrs.evolve(finding, severity=severity)


def _without(secrets: frozenset[str], finding: Finding) -> Finding:
    return attrs.evolve(finding, message=without(secrets, finding.message)) if secrets else finding


def _deduplicated(findings: list[Finding]) -> list[Finding]:
    """Return each finding once, however many aliases lead to its place."""
    return list({(each.rule, each.file, each.at, each.message): each for each in findings}.values())


def _highest_severity(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity != "note"]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
