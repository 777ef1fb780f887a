"""Every step of a declaration, however deeply it is nested."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.paths import StepPath, unescaped
from .declared import Declared
from .kinds import BranchOn, LoopUntil, MapOver, Parallel
from .pipeline import AnyStep, Pipeline


def walk_steps(root: AnyStep) -> Iterator[AnyStep]:
    """The step and all steps inside it, parents first, each place once; without recursion."""
    pending = [root]
    while pending:
        step = pending.pop()
        yield step
        pending.extend(reversed(nested_steps(step)))


def nested_steps(step: AnyStep) -> list[AnyStep]:
    """The steps directly inside a step, its fallback last."""
    if isinstance(step, Pipeline):
        return list(step.steps)
    inside: list[AnyStep] = []
    match step:
        case Parallel():
            inside.extend(step.branches.values())
        case BranchOn():
            inside.extend(step.branches.values())
            inside.extend([] if step.default is None else [step.default])
        case MapOver() | LoopUntil():
            inside.append(step.body)
    return [*inside, step.fallback] if isinstance(step, Declared) and step.fallback is not None else inside


def find_step(root: Pipeline, path: StepPath) -> AnyStep | None:
    """The step that stands at a path of a run, if the declaration still has one there."""
    step: AnyStep | None = root
    for segment in path.split("/"):
        if step is None:
            return None
        if not segment.startswith("~a"):
            step = _inside(step, segment)
    return step


def _inside(step: AnyStep, segment: str) -> AnyStep | None:
    if isinstance(step, Pipeline):
        names = dict(zip(step.step_names(), step.steps, strict=True))
        return names.get(unescaped(segment))
    if segment == "~f":
        return step.fallback
    match step:
        case MapOver() | LoopUntil():
            return step.body
        case Parallel():
            return {str(key): child for key, child in step.branches.items()}.get(unescaped(segment))
        case BranchOn():
            return {str(key): child for key, child in step.branches.items()}.get(unescaped(segment), step.default)
    return None
