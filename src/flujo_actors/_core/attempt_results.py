"""Results of one attempt of a step; `decisions` chooses the next action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from ..errors import ControlError, FlujoError
from .error_info import leaves_of
from .outcomes import Aborted, ErrorInfo, Paused, StepResult
from .step_paths import StepPath

if TYPE_CHECKING:  # needed only by runs that pause with more than a text, or are cancelled
    from .policies.approval_policy import QuestionSpec
    from .records.records import CancelRequest

NOTHING: Mapping[str, object] = {}
"""The metadata of an attempt that has none to report."""

PLAIN = frozenset({str, int, float, bool, bytes, list, dict, tuple, type(None)})
"""Types of answers that are outputs and nothing else."""


@attrs.frozen(kw_only=True)
class AttemptSucceeded:
    """The attempt has an output; `context` is the copy it worked on."""

    output: object
    context: object
    metadata: Mapping[str, object] = NOTHING


@attrs.frozen(kw_only=True)
class AttemptFailed:
    """Attempt without an accepted output; `output` is the rejected one, if any."""

    error: BaseException | ErrorInfo | None
    feedback: str
    output: object = None
    metadata: Mapping[str, object] = NOTHING
    refusal: str | None = None
    """Reason of a rejected answer, for its author; else `None`."""
    redirect: object = None
    """Agent of the next attempt, if a validator named one."""
    of_child: bool = False
    """Whether a nested step failed and has already reported the failure."""
    context: object = None
    """Context left by failure handlers, if any ran."""


@attrs.frozen(kw_only=True)
class AttemptStopped:
    """The attempt ended in a pause or was aborted."""

    outcome: Paused | Aborted
    undoes: bool = True
    """Whether an abort compensates the completed work."""
    place: StepPath | None = None
    """Path of the waiting part inside the step, e.g. a tool call."""
    question: QuestionSpec | None = None
    """Pause options in addition to the message, if any."""
    context: object = None
    """Context at the pause: an agent's copy, or that of the composite's paused child."""


Attempt: TypeAlias = AttemptSucceeded | AttemptFailed | AttemptStopped
"""Result of one attempt of a step."""


def must_escalate(error: object) -> bool:
    """Return whether an error stops the run regardless of enclosing steps."""
    return isinstance(error, ControlError | KeyboardInterrupt | SystemExit)


def escalating(error: object) -> BaseException | None:
    """Return the error that stops the run, the first of a group."""
    if isinstance(error, BaseException) and must_escalate(error):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(must_escalate, leaves_of(error)), None)
    return None


NO_TEXTS: frozenset[str] = frozenset()


def degraded_texts(result: StepResult) -> frozenset[str]:
    """Return the texts of a result that replace values."""
    metadata, output = result.metadata, result.output
    if not metadata:
        return NO_TEXTS
    if "degraded" in metadata:
        return frozenset((output,)) if isinstance(output, str) else NO_TEXTS
    if "degraded_items" not in metadata:
        return NO_TEXTS
    items = frozenset(metadata["degraded_items"])
    return frozenset(each for key, each in _items(output) if str(key) in items and isinstance(each, str))


def marks(output: object, texts: frozenset[str]) -> Mapping[str, object]:
    """Return the metadata that marks degraded texts in an output."""
    if not texts:
        return NOTHING
    if isinstance(output, str):
        return {"degraded": True} if output in texts else NOTHING
    items = [str(key) for key, each in _items(output) if isinstance(each, str) and each in texts]
    return {"degraded_items": items} if items else NOTHING


def _items(output: object) -> Iterable[tuple[object, object]]:
    if isinstance(output, dict):
        return output.items()
    return enumerate(output) if isinstance(output, list) else ()


class ConversationMoved(FlujoError):
    """Another writer changed a conversation; nothing of the append was written."""


class CancelPending(FlujoError):
    """A cancel request came before an append, which was not written."""

    def __init__(self, request: CancelRequest) -> None:
        super().__init__(f"a cancel request came before the end of the run: {request.given_reason}")
        self.request = request
