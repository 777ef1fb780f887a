"""The conversation of a step with its model: what it begins with, and what is kept of it.

What is kept goes to the field of the context that it was read from, when the step has succeeded: the messages of the
last call, as far as they are the model's and the user's (`_agents.shown_context`).
"""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage

from .._agents.history import appended, messages_of, shortened
from .._context.reading import has_path, read_path, with_value
from .._dsl.context_sources import FromHistory
from .._dsl.step import Step
from .._run.messages import Assembly


def history_in(context: object, source: FromHistory) -> list[ModelMessage]:
    """The messages that a history source finds in the context, shortened as it says."""
    return shortened(messages_of(_kept(context, source), what=f"context field {source.where!r}"), source.keep_last)


def remembered(step: Step, context: object, assembly: Assembly) -> object:
    """The context with what the step's agent has said and heard."""
    source = None if step.context_sources is None else step.context_sources.history
    assert source is not None
    field = f"context field {source.where!r}"
    messages = appended(_kept(context, source), assembly.said, what=field, as_messages=_holds_messages(context, source))
    return with_value(context, source.where, messages, step_name=step.name)


def _kept(context: object, source: FromHistory) -> object:
    """A conversation that will be remembered may not have begun yet."""
    if source.remember and not has_path(context, source.where):
        return None
    return read_path(context, source.where)


def _holds_messages(context: object, source: FromHistory) -> bool:
    """Whether the field is annotated to hold messages, so that plain data would not fit."""
    around, _, name = source.where.rpartition(".")
    model = type(read_path(context, around) if around else context)
    annotated = getattr(model, "__annotations__", {}).get(name, "")
    return "ModelMessage" in str(annotated) or "ModelRequest" in str(annotated)
