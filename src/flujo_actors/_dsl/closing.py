"""Which steps of a pipeline are the last thing that is done before what is around them settles.

Between the end of such a step and that of what is around it no code of the user's runs, so that both can be written
down together. Rules:

1. The last step of a pipeline closes it, the whole run's as well as one inside another.
2. Every branch of a choice closes it, and the branch of a parallel step that ends last, which only the run knows.
3. What is around it must have nothing to do after its work: no validator, no processor, no reducer, nobody to ask.
4. Items of maps and turns of loops are not among them: after a turn the loop's condition is asked, and how many items
   there are no declaration says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .._core.paths import ROOT, StepPath, named
from .kinds import BranchOn, Parallel, SequenceOf
from .pipeline import AnyStep, Pipeline


def closing_steps(root: Pipeline) -> frozenset[StepPath]:
    """The paths of those steps; without recursion."""
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
