"""Analysis of one file for rules: model, data flow and findings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import attrs

from ...errors import BlueprintError
from ..lint.flow import Flow, StepVisit
from ..lint.value_schemas import Shape, keys_of
from .blueprint_model import AgentEntry, BlueprintModel, StepModel
from .findings import Finding
from .nodes import FindingCollector, Node, Scalar, Sequence
from .project import Project


@attrs.define(slots=False, eq=False)
class Analysis:
    """Input of the rules."""

    model: BlueprintModel
    project: Project
    collector: FindingCollector
    flow: Flow
    is_child: bool = False
    """Whether another blueprint imports this one and shares its context."""
    troubled: set[int] = attrs.field(factory=set)
    """Steps with template errors, by identity: their references are unknown."""

    @cached_property
    def visits(self) -> list[StepVisit]:
        """Return every step in its place."""
        return self.flow.visits

    @cached_property
    def context_keys(self) -> frozenset[str]:
        """Return the context keys that the file itself names."""
        declared = self.model.value("context")
        entry = declared.get("initial") if isinstance(declared, dict) else None
        initial = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        written = writes_of(self, list(self.model.all_steps())).paths
        return frozenset(initial) | {path.partition(".")[0] for path in written}

    @property
    def context(self) -> Shape:
        """Return the declared shape of the context."""
        return self.flow.context

    def python_references(self) -> Iterator[tuple[str, Node]]:
        """Yield every `package.module:name` of the file with its key."""
        for agent in self.model.agents.values():
            yield from _functions(agent.entries, ("uses", "tools"))
        for step in self.model.all_steps():
            if step.uses is not None and step.uses.kind == "python":
                entry = step.entries["uses"]
                yield step.uses.name, entry.key
            yield from _functions(
                step.entries, ("validators", "condition", "exit_condition", "compensate", "on_failure")
            )
            for source in step.value("context_sources") or ():
                if "retrieval" in source:
                    yield from _functions(source["retrieval"].value, ("collection",))
            inside = step.value("processors")
            if isinstance(inside, dict):
                yield from _functions(inside, ("before", "after"))


_NAMED = ("validators", "condition", "exit_condition", "compensate", "on_failure")
"""Keys of a step that name functions."""


def _functions(entries: dict[str, AgentEntry], keys: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    for key in keys:
        entry = entries.get(key)
        if entry is None:
            continue
        if isinstance(entry.value, list):
            items = entry.node.items if isinstance(entry.node, Sequence) else []
            for text, item in zip(entry.value, items, strict=False):
                named = text["uses"].value if isinstance(text, dict) and "uses" in text else text
                yield named, item if isinstance(item, Scalar) else entry.key
        elif isinstance(entry.value, str):
            yield entry.value, entry.key


@attrs.frozen
class Writes:
    """Context paths written by steps, and whether the list is complete."""

    paths: frozenset[str] = frozenset()
    complete: bool = True

    def __or__(self, other: Writes) -> Writes:
        return Writes(self.paths | other.paths, self.complete and other.complete)


def writes_of(analysis: Analysis, steps: list[StepModel]) -> Writes:
    """Return the context writes of a sequence including nested steps."""
    found = Writes()
    outputs = {id(visit.step): visit.output for visit in analysis.visits}
    pending = list(steps)
    while pending:
        step = pending.pop()
        found |= _writes(analysis, step, outputs.get(id(step)))
        for inner in step.inner():
            pending.extend(inner)
    return found


def _writes(analysis: Analysis, step: StepModel, output: Shape) -> Writes:
    found = Writes()
    sink = step.value("sink_to")
    if isinstance(sink, str):
        found |= Writes(frozenset({sink}))
    imported = step.uses is not None and step.uses.kind == "import"
    if imported:
        return found | Writes(complete=False)
    if step.value("updates_context"):
        keys = keys_of(output)
        found |= Writes(frozenset(keys or ()), keys is not None)
    runs_python = step.uses is not None and step.uses.kind == "python"
    around = any(key in step.entries for key in ("validators", "processors", "condition", "exit_condition"))
    return found | Writes(complete=not (runs_python or around or step.broken))


def refusal(model: BlueprintModel, at: int, message: str, *, rule: str = "V-A6") -> BlueprintError:
    """Return the error of a file for a finding of the compiler."""
    line, column = model.source.place(at)
    finding = Finding(
        rule=rule, severity="error", file=model.source.file, line=line, column=column, message=message, at=at
    )
    return refused(model.source.file, [finding])


def refused(file: str, findings: list[Finding]) -> BlueprintError:
    """Return the error of findings; its message names the first one."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    first = str(findings[0]) if findings else "it cannot be read"
    return BlueprintError(f"{file} is refused: {first}{more}", tuple(findings))
