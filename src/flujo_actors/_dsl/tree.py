"""The tree of a declaration: every step in it, and which stands at a path of a run. Folds over `children`."""

from __future__ import annotations

from collections.abc import Iterator

from .._core import paths
from .._core.paths import DEFAULT, ROOT, Named, Segment, StepPath
from .pipeline import AnyStep, Pipeline


def walk_steps(root: AnyStep) -> Iterator[AnyStep]:
    """The step and all steps inside it, parents first, each place once; without recursion."""
    pending = [root]
    while pending:
        step = pending.pop()
        yield step
        pending.extend(reversed([child for _, child in step.children()]))


def walk_places(root: AnyStep, path: StepPath = ROOT) -> Iterator[tuple[StepPath, AnyStep]]:
    """As `walk_steps`, each step with the path of its place in the declaration."""
    pending = [(path, root)]
    while pending:
        path, step = pending.pop()
        yield path, step
        pending.extend(reversed([(paths.child(path, segment), child) for segment, child in step.children()]))


def find_step(root: Pipeline, path: StepPath) -> AnyStep | None:
    """The step that stands at a path of a run, if the declaration still has one there."""
    segments = paths.in_declaration(path)
    step: AnyStep | None = None if segments is None else root
    for segment in segments or ():
        step = None if step is None else _child_at(step, segment)
    return step


def _child_at(step: AnyStep, segment: Segment) -> AnyStep | None:
    children = dict(step.children())
    return children.get(segment, children.get(DEFAULT) if isinstance(segment, Named) else None)
