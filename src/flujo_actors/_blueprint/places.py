"""Where templates stand in a step, and what they may refer to there."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from .model import Entry, StepModel
from .nodes import Mapping, Node, Scalar, Sequence
from .source import Source
from .template_parsing import Parsed, parse_expression, parse_template

SEES_EVERYTHING = frozenset({"previous_step", "steps", "context", "this", "input"})
SEES_ITS_OUTPUT = frozenset({"previous_step", "context"})


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Place:
    """One text of a step that is a template or an expression."""

    key: str
    """The key of the step it stands under."""
    near: Scalar
    """The key of the mapping, or the item, on whose line findings stand."""
    node: Scalar
    parsed: Parsed
    sees: frozenset[str] = SEES_EVERYTHING

    def at(self, source: Source, line: int) -> int:
        """Where a line of the text stands; within a block the line itself, else the key."""
        if self.node.style not in ("|", ">") or self.node.start < self.near.start:
            return self.near.start
        start = source.next_line(self.node.start)
        for _ in range(line - 1):
            start = source.next_line(start)
        within = source.text[start : source.line_end(start)]
        return min(start + len(within) - len(within.lstrip()), max(self.node.end - 1, self.node.start))

    def refers_to(self, root: str) -> bool:
        """Whether the text refers to a variable."""
        return any(each.root == root for each in self.parsed.references)


_TEMPLATES = {"message": SEES_EVERYTHING, "output_template": SEES_ITS_OUTPUT}
_EXPRESSIONS = ("condition_expression", "exit_expression", "iterable_input")


def places_in(step: StepModel) -> list[Place]:
    """Every template and expression of a step itself; they are parsed once."""
    if step.templates is None:
        step.templates = list(_found(step))
    return step.templates


def _found(step: StepModel) -> list[Place]:
    found: list[Place] = []
    entry = step.entries.get("input")
    if entry is not None:
        found.extend(_in_value(entry.node, entry.key))
    for key, sees in _TEMPLATES.items():
        if (said := step.entries.get(key)) is not None and isinstance(said.node, Scalar):
            parsed = parse_template(str(said.value))
            found.append(Place(key=key, near=said.key, node=said.node, parsed=parsed, sees=sees))
    found.extend(_expression(said, key) for key in _EXPRESSIONS if (said := step.entries.get(key)) is not None)
    return found


def _expression(entry: Entry, key: str) -> Place:
    assert isinstance(entry.node, Scalar)
    return Place(key=key, near=entry.key, node=entry.node, parsed=parse_expression(str(entry.value)))


def _in_value(node: Node, near: Scalar) -> Iterator[Place]:
    match node:
        case Scalar(value=str() as text):
            yield Place(key="input", near=near, node=node, parsed=parse_template(text))
        case Sequence():
            for each in node.items:
                yield from _in_value(each, each if isinstance(each, Scalar) and each.start > near.start else near)
        case Mapping():
            for key, value in node.pairs:
                yield from _in_value(value, key)
