"""The sources of a step, and what a step that has some or a conversation must have besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DeclarationError
from .context_sources import ContextSources, as_context_sources

if TYPE_CHECKING:
    from .step import Step


def sources_of(name: str, value: object) -> ContextSources:
    """The sources of the step of that name, which is told with whatever is wrong with them."""
    try:
        return as_context_sources(value)
    except DeclarationError as error:
        raise DeclarationError(f"step {name!r}: {error}") from None


def check_sources(step: Step) -> None:
    """Refuse what only a model agent can have, and sources that would reach nobody."""
    is_model = step.plan.shape == "model"
    if step.message_history is not None:
        _ = step.history_plan  # planned now, so that a wrong function is refused now
        if not is_model:
            raise _needs_model(step, "a message_history")
    if step.context_sources is not None:
        (_check_of_model if is_model else _check_of_function)(step, step.context_sources)


def _check_of_model(step: Step, sources: ContextSources) -> None:
    if sources.history is not None and step.message_history is not None:
        raise DeclarationError(
            f"step {step.name!r} has a message_history and from_history({sources.history.where!r}): one will do"
        )


def _check_of_function(step: Step, sources: ContextSources) -> None:
    if sources.history is not None:
        raise _needs_model(step, f"from_history({sources.history.where!r})")
    if not any(plan is not None and "assembled" in plan.named for plan in (step.plan, step.plan.stream)):
        raise DeclarationError(
            f"step {step.name!r} has context_sources, but its function takes no `assembled`: add the parameter "
            "`*, assembled: AssembledContext`, or leave the sources away"
        )


def _needs_model(step: Step, what: str) -> DeclarationError:
    return DeclarationError(
        f"step {step.name!r} has {what}, so its agent must be a pydantic-ai agent, not {step.agent!r}"
    )
