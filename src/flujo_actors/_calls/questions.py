"""What an agent's call asks a person before it can go on, as a pause: each at a place of its own in the run."""

from __future__ import annotations

from .._agents.approved_tools import ApprovalNeeded
from .._agents.granular.loop_watch import GO_ON, LoopQuestion
from .._agents.granular.request import GranularRequest
from .._core.approvals import TOOL_ANSWERS
from .._core.attempts import Stopped
from .._core.outcomes import Paused
from .._core.questions import Question
from .._run.run import Run
from ..errors import UncertainUnit
from .units import RERUN, RunUnits


def question_of(run: Run, request: GranularRequest, error: BaseException) -> Stopped | None:
    """The pause that an error of a call stands for; `None` if it is just an error."""
    units = request.journal
    assert isinstance(units, RunUnits)
    match error:
        case UncertainUnit(policy="pause"):
            return _uncertain(run, units, error)
        case LoopQuestion():
            text = f"{error}. Answer {GO_ON!r} to let it go on, or with a hint for the model."
            place = units.place(error.key)
            return Stopped(outcome=Paused(message=run.redact(text)), place=place, question=Question(kind="loop"))
        case ApprovalNeeded(call=call):
            question = Question(kind="tool", schema=TOOL_ANSWERS, facts=call.facts)
            return Stopped(
                outcome=Paused(message=run.redact(call.question)), place=units.place(error.key), question=question
            )
        case _:
            return None


def _uncertain(run: Run, units: RunUnits, error: UncertainUnit) -> Stopped:
    """A pause that asks what became of a tool call; each time another question, so no answer counts twice."""
    place = units.place(error.key)
    asked = run.journal.times_answered(place)
    again = f" This was asked {asked} times before, and it was run again since." if asked else ""
    question = f"{error}.{again} Answer {RERUN!r} to run it again, or with what it returned."
    return Stopped(outcome=Paused(message=run.redact(question)), place=place)
