"""How one attempt of a step ends; what comes after it is decided in `decisions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from ..errors import ControlError
from .error_info import leaves_of
from .outcomes import Aborted, ErrorInfo, Paused
from .paths import StepPath

if TYPE_CHECKING:  # what only runs need that ask for more than a text
    from .questions import Question

NOTHING: Mapping[str, object] = {}
"""The metadata of an attempt that has none to report."""

PLAIN = frozenset({str, int, float, bool, bytes, list, dict, tuple, type(None)})
"""Types of answers that are outputs and nothing else."""


@attrs.frozen(kw_only=True)
class Done:
    """The attempt has an output; `context` is the copy it worked on."""

    output: object
    context: object
    metadata: Mapping[str, object] = NOTHING


@attrs.frozen(kw_only=True)
class Failed:
    """The attempt has no output, or one that was refused; `output` is what there was."""

    error: BaseException | ErrorInfo | None
    feedback: str
    output: object = None
    metadata: Mapping[str, object] = NOTHING
    refusal: str | None = None
    """Why an answer was refused, for whoever gave it; `None` if it was no answer that failed."""
    redirect: object = None
    """The agent that shall have the next attempt, if a validator named one."""
    of_child: bool = False
    """Whether it is a step inside that failed, and that has been said of it already."""
    context: object = None
    """What handlers have left in the context, if they did."""


@attrs.frozen(kw_only=True)
class Stopped:
    """The attempt ended in a pause or was aborted."""

    outcome: Paused | Aborted
    undoes: bool = True
    """Whether what was done until then is undone, if it was aborted."""
    place: StepPath | None = None
    """What waits, if it is something inside the step: a tool call."""
    question: Question | None = None
    """What is asked besides the message, if anything."""
    context: object = None
    """What an agent that asks itself had written into its copy of the context by then."""


Attempt: TypeAlias = Done | Failed | Stopped
"""How one attempt of a step ended."""


def must_escalate(error: object) -> bool:
    """Whether an error stops the run, whatever stands around the step."""
    return isinstance(error, ControlError | KeyboardInterrupt | SystemExit)


def escalating(error: object) -> BaseException | None:
    """The error that stops the run: the error itself, or the first such in a group."""
    if isinstance(error, BaseException) and must_escalate(error):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(must_escalate, leaves_of(error)), None)
    return None
