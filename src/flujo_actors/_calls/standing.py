"""What all calls of a model agent in one attempt have in common: its deps, the conversation so far, its context."""

from __future__ import annotations

from typing import Any

import attrs
from outcome import Error
from pydantic_ai.messages import ModelMessage

from .._agents.compaction import shortened_history
from .._agents.history import history_options, messages_of
from .._agents.request import with_options
from .._agents.shown_context import ShownContext
from .._bridge.guard import guarded
from .._core.attempts import Failed
from .._dsl.step import Step
from .._run.messages import Work
from .._run.run import Run
from .._run.user_calls import failure_of, made
from .remembering import history_in


@attrs.frozen(kw_only=True, eq=False)
class Standing:
    """What all calls of one attempt have in common."""

    deps: object = None
    history: list[ModelMessage] = attrs.field(factory=list)
    """What was said before."""
    shown: str = ""
    """The context of the step, as the model is shown it."""

    def options(self) -> dict[str, Any]:
        """Arguments for pydantic-ai's `run`: the conversation, and what shows the context."""
        if not self.history and not self.shown:
            return {}
        shown = {"capabilities": [ShownContext(self.shown)]} if self.shown else {}
        return with_options(history_options(self.history), shown)

    def shortened(self, options: dict[str, object], keep_last: int | None) -> dict[str, object]:
        """The same arguments, of a conversation of which the model is shown the end; what was said before it stays."""
        return with_options(options, shortened_history(keep_last, after=len(self.history)))


def ready_standing(step: Step, work: Work) -> Standing | None:
    """The deps and the conversation of an attempt, if nobody has to be called or read for them, as in most steps."""
    made = step.deps_plan is not None or step.message_history is not None or step.context_sources is not None
    return None if made or work.assembly is not None else Standing(deps=step.deps)


async def standing_for(run: Run, step: Step, work: Work) -> Standing | Failed:
    """The deps and the conversation of an attempt, made by functions if the step says so."""
    deps, history = step.deps, step.message_history
    if deps is not None and step.deps_plan is not None:
        got = await made(run, step.deps_plan, deps, work)
        if isinstance(got, Error):
            return failure_of(run, got.error, plan=step.deps_plan, what=f"The deps of step {step.name!r}")
        deps = got.value
        run.telemetry.learn(deps)
    what = f"The message_history of step {step.name!r}"
    if history is not None and step.history_plan is not None:
        got = await made(run, step.history_plan, history, work)
        if isinstance(got, Error):
            return failure_of(run, got.error, plan=step.history_plan, what=what)
        history = got.value
    read = await guarded(_messages, step, work, history)
    if isinstance(read, Error):
        return failure_of(run, read.error, what=what)
    shown = "" if work.assembly is None else work.assembly.text
    return Standing(deps=deps, history=read.value, shown=shown)


async def _messages(step: Step, work: Work, given: object) -> list[ModelMessage]:
    source = None if step.context_sources is None else step.context_sources.history
    if source is not None:
        return history_in(work.context, source)
    return [] if given is None else messages_of(given, what="message_history")
