"""From the content of a file to its findings: reading, looking, silencing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs

from . import lint_context, lint_flow, lint_names, lint_schemas, lint_secrets, lint_templates
from .analysis import Analysis
from .file_reading import read_model
from .findings import Finding, Severity, matches
from .flow import Flow
from .ignores import silenced
from .model import AgentModel, BlueprintModel, ImportModel
from .nodes import Node
from .project import Outside, Project, content_of, inside
from .rules import RULES
from .shapes import Shape
from .source import Source
from .telling import Told
from .template_parsing import is_template
from .yaml_text import read_yaml

_STRUCTURAL = ("V-Y*", "V-K1", "V-K2", "V-K3", "V-N*", "V-A1", "V-A6", "V-A7", "V-T1", "V-T2", "V-T3", "V-T4", "V-T6")
CANNOT_RUN = (*_STRUCTURAL, "V-I*", "V-X*")
"""Errors that no comment and no setting makes harmless: what they are about cannot be carried out."""


MOST_IMPORTS_DEEP = 20


@attrs.define(kw_only=True, eq=False, repr=False)
class Linted:
    """A file that was looked at."""

    source: Source
    model: BlueprintModel | None
    findings: list[Finding]
    """What is left after comments and settings had their say, in the order of the text."""
    refusals: list[Finding]
    """The errors that keep it from being loaded, whatever comments say."""
    secrets: frozenset[str] = frozenset()
    output: Shape = None
    root: Node | None = None
    analysis: Analysis | None = None


class Linter:
    """Looks at a file and all it imports; a file that is imported twice is read once."""

    def __init__(self, project: Project, *, copy_schema: bool = False) -> None:
        self._project, self._copy_schema = project, copy_schema
        self._children: dict[Path, Linted] = {}
        self._open: list[Path] = []

    def lint(self, file: str, content: bytes | str, path: Path | None = None, *, is_child: bool = False) -> Linted:
        """What there is to say of a file's content; `path` is where it stands."""
        read = read_yaml(file, content)
        told = Told(read.source, list(read.findings))
        secrets = lint_secrets.look(told, read.root)
        readable = read.root is not None and not any(each.rule == "V-Y1" for each in read.findings)
        model = read_model(told, read.root, path) if readable or not read.findings else None
        if path is not None:
            self._open.append(path.resolve())
        analysis = None if model is None else self._looked(told, model, is_child=is_child)
        if path is not None:
            self._open.pop()
        return self._judged(told, model, analysis, secrets, read.root)

    def _looked(self, told: Told, model: BlueprintModel, *, is_child: bool) -> Analysis:
        for each in model.imports.values():
            self._import(told, model, each)
        for agent in model.agents.values():
            self._prompt(told, model, agent)
        flow = Flow(model, self._project, self._output_of)
        analysis = Analysis(model, self._project, told, flow, is_child)
        lint_names.look(analysis)
        lint_schemas.look(analysis)
        flow.walk()
        lint_templates.look(analysis)
        lint_flow.look(analysis)
        lint_context.look(analysis, copy_schema=self._copy_schema)
        return analysis

    def _output_of(self, child: BlueprintModel) -> Shape:
        return next((each.output for each in self._children.values() if each.model is child), None)

    # --- other files

    def _import(self, told: Told, model: BlueprintModel, each: ImportModel) -> None:
        directory = self._project.root if model.path is None else model.path.parent
        try:
            path = inside(self._project.root, directory, each.path)
        except (Outside, OSError, ValueError):
            told.tell(
                "V-I2", each.key, f"import {each.name!r} leaves the root: {each.path[:80]!r}; move the file inside"
            )
            return
        if path in self._open:
            circle = " -> ".join(step.name for step in (*self._open[self._open.index(path) :], path))
            told.tell("V-I3", each.key, f"imports go in a circle: {circle}")
            return
        if len(self._open) >= MOST_IMPORTS_DEEP:
            told.tell("V-I3", each.key, f"imports are more than {MOST_IMPORTS_DEEP} deep")
            return
        child = self._child(told, each, path)
        if child is None:
            return
        told.findings.extend(child.findings if child.model is None or child.refusals else _graver(child.findings))
        if child.refusals:
            count = len(child.refusals)
            told.tell(
                "V-I4", each.key, f"import {each.name!r} has {count} error{'s' * (count > 1)}, listed with its file"
            )
        else:
            each.child = child.model

    def _child(self, told: Told, each: ImportModel, path: Path) -> Linted | None:
        if path in self._children:
            known = self._children[path]
            return attrs.evolve(known, findings=[])
        try:
            content = content_of(path)
        except OSError as error:
            told.tell("V-I1", each.key, f"import {each.name!r} cannot be read: {_reason(error)}")
            return None
        label = (Path(told.source.file).parent / each.path).as_posix() if told.source.file != "<stdin>" else each.path
        self._children[path] = self.lint(label, content, path, is_child=True)
        return self._children[path]

    def _prompt(self, told: Told, model: BlueprintModel, agent: AgentModel) -> None:
        said = agent.value("system_prompt")
        entry = said.get("from_file") if isinstance(said, dict) else None
        if entry is None:
            return
        directory = self._project.root if model.path is None else model.path.parent
        try:
            content_of(inside(self._project.root, directory, entry.value)).decode("utf-8")
        except (Outside, ValueError):
            told.tell("V-X3", entry.key, "the file with the prompt is outside the root, or no text: move it inside")
        except OSError as error:
            told.tell("V-I1", entry.key, f"the file with the prompt cannot be read: {_reason(error)}")
        variables = said.get("variables") if isinstance(said, dict) else None
        for name, text in variables.value.items() if variables is not None else ():
            if variables is not None and is_template(text):
                why = "an agent sees neither steps nor context: put it into the step's `input`"
                told.tell("V-T6", variables.key, f"the variable {name[:60]!r} of a prompt must be a fixed text: {why}")

    # --- what is left

    def _judged(
        self,
        told: Told,
        model: BlueprintModel | None,
        analysis: Analysis | None,
        secrets: frozenset[str],
        root: Node | None,
    ) -> Linted:
        told.findings = _once(told.findings)
        own = [each for each in told.findings if each.file == told.source.file]
        refusals = [each for each in own if each.severity == "error" and matches(each.rule, CANNOT_RUN)]
        kept = told.findings if model is None else silenced(told, model, told.findings)
        found = [self._as_set(each) for each in kept if not self._is_ignored(each)]
        left = [each for each in found if each.severity == "error" and each not in refusals]
        clean = [_without(secrets, each) for each in found]
        return Linted(
            source=told.source,
            model=model,
            findings=sorted(clean, key=lambda each: (each.file != told.source.file, each.file, each.line, each.column)),
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
    return attrs.evolve(finding, message=lint_secrets.without(secrets, finding.message)) if secrets else finding


def _once(findings: list[Finding]) -> list[Finding]:
    """Each finding once, however many aliases lead to its place."""
    return list({(each.rule, each.file, each.at, each.message): each for each in findings}.values())


def _graver(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity != "note"]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
