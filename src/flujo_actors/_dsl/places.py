"""Which step of a declaration stands at a path of a run."""

from __future__ import annotations

from .._core.paths import StepPath, unescaped
from .kinds import BranchOn, LoopUntil, MapOver, Parallel
from .pipeline import AnyStep, Pipeline


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
