"""Message history of a step: initial messages, and messages to keep.

New messages are appended to their context field when the step has succeeded: those of the last call by the model and
the user (`_agents.compaction`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from ..._agents.compaction import appended, messages_of, shortened
from ..._dsl.context_sources import FromHistory
from ..._dsl.step_declaration import Step
from ..context.context_paths import has_path, read_path, with_value


def history_in(context: object, source: FromHistory) -> list[ModelMessage]:
    """Return the messages of a context history, shortened as declared."""
    return shortened(messages_of(_kept(context, source), subject=f"context field {source.where!r}"), source.keep_last)


def remembered(step: Step, context: object, new: Sequence[ModelMessage]) -> object:
    """Return the context with the new messages of the step's agent."""
    source = None if step.context_sources is None else step.context_sources.history
    assert source is not None
    field = f"context field {source.where!r}"
    messages = appended(_kept(context, source), new, subject=field, as_messages=_holds_messages(context, source))
    return with_value(context, source.where, messages, step_name=step.name)


def _kept(context: object, source: FromHistory) -> object:
    """Return the stored conversation, or None if it has not begun."""
    if source.remember and not has_path(context, source.where):
        return None
    return read_path(context, source.where)


def _holds_messages(context: object, source: FromHistory) -> bool:
    """Return whether the field is annotated to hold messages, not plain data."""
    around, _, name = source.where.rpartition(".")
    model = type(read_path(context, around) if around else context)
    annotated = getattr(model, "__annotations__", {}).get(name, "")
    return "ModelMessage" in str(annotated) or "ModelRequest" in str(annotated)
