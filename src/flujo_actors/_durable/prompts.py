"""Questions that wait, as those see them who may answer."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .._core import record_bodies
from .._core.approvals import Option
from .._core.questions import read_question
from .._core.records import OpenPause
from .deferring import options_of


@attrs.frozen(kw_only=True)
class Prompt:
    """A question that a run asks."""

    run_id: str
    state_token: str
    message: str
    step: str = ""
    """The step that asks."""
    to: str | None = None
    """Who is asked, if it is an approval that says so."""
    options: tuple[Option, ...] = ()
    """How it can be answered, if it is an approval."""
    due_at: float | None = None
    """Until when, in seconds since the epoch; `None` is for ever."""
    level: int = 0
    """How often the question was escalated."""
    deferrals: int = 0
    """How often it was put off."""
    metadata: Mapping[str, object] = attrs.field(factory=dict)
    """What else whoever decides shall see."""


def prompt_of(run_id: str, pause: OpenPause) -> Prompt:
    """A question of a run, with what there is to know of it."""
    body = record_bodies.read_body(pause.body, where=f"the pause at {pause.token!r}")
    question = read_question(body.get("question"))
    facts = {} if question is None else question.facts
    return Prompt(
        run_id=run_id,
        state_token=pause.token,
        message=pause.message,
        step=body.get("step_name", ""),
        to=facts.get("to"),
        options=options_of(question) if question is not None and question.kind == "approval" else (),
        due_at=pause.due_at,
        level=facts.get("level", 0),
        deferrals=facts.get("deferrals", 0),
        metadata=facts.get("metadata", {}),
    )
