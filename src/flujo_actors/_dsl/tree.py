"""Every step of a declaration, however deeply it is nested."""

from __future__ import annotations

from collections.abc import Iterator

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
    return [*step.inside, step.fallback] if step.fallback is not None else [*step.inside]
