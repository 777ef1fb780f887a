"""Tree of a declaration: all steps, and lookup by run path.

Sections:

- Steps whose commit can be coalesced with their parent's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .._core import step_paths
from .._core.step_paths import DEFAULT, ROOT, Named, Segment, StepPath, named
from .kinds import BranchOn, Parallel, SequenceOf
from .pipeline import AnyStep, Pipeline


def walk_steps(root: AnyStep) -> Iterator[AnyStep]:
    """Yield the step and all nested steps, parents first, without recursion."""
    pending = [root]
    while pending:
        step = pending.pop()
        yield step
        pending.extend(reversed([child for _, child in step.children()]))


def walk_places(root: AnyStep, path: StepPath = ROOT) -> Iterator[tuple[StepPath, AnyStep]]:
    """Yield each step with its declaration path, as `walk_steps`."""
    pending = [(path, root)]
    while pending:
        path, step = pending.pop()
        yield path, step
        pending.extend(reversed([(step_paths.child(path, segment), child) for segment, child in step.children()]))


def find_step(root: Pipeline, path: StepPath) -> AnyStep | None:
    """Return the step at a run path, or None."""
    segments = step_paths.in_declaration(path)
    step: AnyStep | None = None if segments is None else root
    for segment in segments or ():
        step = None if step is None else _child_at(step, segment)
    return step


def _child_at(step: AnyStep, segment: Segment) -> AnyStep | None:
    children = dict(step.children())
    return children.get(segment, children.get(DEFAULT) if isinstance(segment, Named) else None)


# --- Steps whose commit can be coalesced with their parent's ------------------------------------------------------
# Between the end of such a step and that of its parent no user code runs, so both can be committed together. Rules:
#
# 1. The last step of a pipeline closes it, at the top level as well as nested.
# 2. Every branch of a choice closes it, and the last branch of a parallel step to end, which only the run knows.
# 3. The parent must have no work after its children: no validator, no processor, no reducer, no review.
# 4. Items of maps and turns of loops are excluded: after a turn the loop's condition is evaluated, and the number of
#    items is not declared.


def coalesced_steps(root: Pipeline) -> frozenset[StepPath]:
    """Return the paths of those steps; without recursion."""
    closing: set[StepPath] = set()
    pending: list[tuple[StepPath, AnyStep]] = [(ROOT, root)]
    while pending:
        path, step = pending.pop()
        inside = [(named(path, name), child) for name, child in _inside(step)]
        pending.extend(inside)
        closing.update(_last_of(step, [place for place, _ in inside]))
    return frozenset(closing)


def _inside(step: AnyStep) -> Iterator[tuple[str, AnyStep]]:
    match step:
        case Pipeline():
            yield from ((name, child) for child, name in step.named_steps)
        case SequenceOf():
            yield from _inside(step.body)
        case BranchOn() | Parallel():
            yield from ((str(key), branch) for key, branch in step.branches.items())


def _last_of(step: AnyStep, inside: list[StepPath]) -> list[StepPath]:
    match step:
        case Pipeline():
            return inside[-1:]
        case SequenceOf():
            return inside[-1:] if step.bare else []
        case Parallel(max_concurrency=None):
            return inside if step.bare and not isinstance(step.merge, Mapping) else []
        case BranchOn():
            return inside if step.bare else []
        case _:
            return []
