"""One file as rules look at it: the model, what flows through it, and where to put what is found."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import attrs

from .flow import Flow, Visit
from .model import BlueprintModel, Entry, StepModel
from .nodes import Node, Scalar, Sequence
from .project import Project
from .shapes import Shape, keys_of
from .telling import Told


@attrs.define(slots=False, eq=False)
class Analysis:
    """What rules need."""

    model: BlueprintModel
    project: Project
    told: Told
    flow: Flow
    is_child: bool = False
    """Whether another blueprint imports this one, and shares its context with it."""
    troubled: set[int] = attrs.field(factory=set)
    """Steps whose templates have errors, by identity: what they refer to is not known."""

    @cached_property
    def visits(self) -> list[Visit]:
        """Every step in its place."""
        return self.flow.visits

    @property
    def context(self) -> Shape:
        """What is declared of the context."""
        return self.flow.context

    def python_references(self) -> Iterator[tuple[str, Node]]:
        """Every `package.module:name` of the file, and the key it stands under."""
        for agent in self.model.agents.values():
            yield from _functions(agent.entries, ("uses", "tools"))
        for step in self.model.all_steps():
            if step.uses is not None and step.uses.kind == "python":
                entry = step.entries["uses"]
                yield step.uses.name, entry.key
            yield from _functions(step.entries, ("validators", "condition", "exit_condition"))
            inside = step.value("processors")
            if isinstance(inside, dict):
                yield from _functions(inside, ("before", "after"))


def _functions(entries: dict[str, Entry], keys: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    for key in keys:
        entry = entries.get(key)
        if entry is None:
            continue
        if isinstance(entry.value, list):
            items = entry.node.items if isinstance(entry.node, Sequence) else []
            for text, item in zip(entry.value, items, strict=False):
                yield text, item if isinstance(item, Scalar) else entry.key
        elif isinstance(entry.value, str):
            yield entry.value, entry.key


@attrs.frozen
class Writes:
    """What steps write into the context: paths, and whether these are all."""

    paths: frozenset[str] = frozenset()
    complete: bool = True

    def __or__(self, other: Writes) -> Writes:
        return Writes(self.paths | other.paths, self.complete and other.complete)


def writes_of(analysis: Analysis, steps: list[StepModel]) -> Writes:
    """What a sequence writes, with everything inside it."""
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
