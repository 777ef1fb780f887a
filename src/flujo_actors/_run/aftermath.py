"""What failed attempts leave behind: what is to be undone, what failed, and who is told of it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .._core.failures import Cause, StepFailure, Undo
from .._core.undoing import ToUndo, Undoable
from .messages import Completed, Request


class Aftermath:
    """What a step's attempts have left behind."""

    __slots__ = ("cause", "input", "own", "undo")

    def __init__(self) -> None:
        self.input: tuple[object] | None = None
        """What the step's own `input` made of its data, if it did."""
        self.cause: Cause | None = None
        """The first failure inside the current attempt."""
        self.own: Cause | None = None
        """The step's own failure, as its handlers were told of it."""
        self.undo: dict[int, Sequence[ToUndo | Completed]] = {}
        """What steps inside have left to undo, by when they started."""


def spelled_out(entry: ToUndo | Completed) -> ToUndo:
    """What is to be undone, with all that its compensation is told."""
    return completed(entry) if isinstance(entry, Completed) else entry


def completed(entry: Completed) -> Undoable:
    """A step that completed, with all that its compensation is told."""
    return Undoable(
        step=entry.step,
        name=entry.name,
        path=entry.path,
        input=entry.input,
        output=entry.output,
        attempts=entry.attempts,
        context=entry.context,
    )


def input_of(request: Request) -> object:
    """What a step works on: its data, or what its own `input` made of it."""
    aftermath = request.tally.aftermath
    return request.data if aftermath is None or aftermath.input is None else aftermath.input[0]


@attrs.frozen(kw_only=True, eq=False)
class Aside:
    """What a step beside the forward work can ask for: a handler's failure, a compensation's undo."""

    failure: StepFailure | None = None
    undo: Undo | None = None
