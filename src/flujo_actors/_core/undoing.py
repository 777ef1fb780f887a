"""What is undone when an attempt does not count, and in which order (compensation, the saga pattern).

Rules:

1. A step that completed is undone by its own compensation; if it has none, by those of the steps inside it.
2. A call that failed or was cut short is undone by its own, since nobody knows what it did; not if its compensation is
   for completed steps only.
3. A composite that did not complete is undone by what is left inside it: what failed there was undone there. Its own
   compensation knows only the whole, and there is no whole.
4. A question that was not answered has done nothing.
5. What started last is undone first, one at a time. Concurrent siblings start in the order of their declaration.
6. Where undoing stopped for good, nothing that started before is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import attrs

from .outcomes import Aborted, Paused, Success, TerminalOutcome, Undone
from .paths import StepPath

T = TypeVar("T")

When: TypeAlias = Literal["started", "completed"]
"""Whose effects a compensation undoes: of every call that was begun, or only of those that have an output."""

IfItFails: TypeAlias = Literal["continue", "stop", "pause"]
"""What comes after a compensation that failed for good: the next one, nothing, or a question to a person."""

State: TypeAlias = Literal["completed", "failed", "cut short", "paused"]
"""How a step stands that may have to be undone."""


@attrs.frozen(kw_only=True, eq=False)
class Undoable:
    """A step that has something to undo, with what its compensation is told."""

    step: Any
    """Its declaration, which says how; `None` if the pipeline has no such step any more."""
    name: str
    path: StepPath
    input: object = None
    output: object = None
    completed: bool = True
    attempts: int = 1
    context: object = None
    """The context that it left; `None` if it left the one it got."""
    number: int = 1
    """Which run of its compensation comes next: one that was cut short is run again."""
    waiting: Paused | None = None
    """What its compensation waits for, if it was begun and asks a person."""


@attrs.frozen
class Halt:
    """Stands where undoing stopped for good (rule 6)."""


HALT = Halt()

ToUndo: TypeAlias = Undoable | Halt
"""What a step leaves to whoever stands around it."""


def state_of(outcome: TerminalOutcome) -> State:
    """How a step stands that settled with this outcome."""
    match outcome:
        case Success():
            return "completed"
        case Paused():
            return "paused"
        case Aborted():
            return "cut short"
        case _:
            return "failed"


def left_by(state: State, *, own: T | None, inside: Iterable[T], is_call: bool, when: When) -> tuple[T, ...]:
    """What a step leaves to undo, in the order in which it started; `own` is `None` if it has none or was not begun."""
    if state == "completed":
        return tuple(inside) if own is None else (own,)
    if own is not None and is_call and when == "started":
        return (own, *inside)
    return tuple(inside)


def in_order(started: Sequence[ToUndo]) -> list[Undoable]:
    """What to undo of a list in the order of starting, first to last."""
    found: list[Undoable] = []
    for each in reversed(started):
        if isinstance(each, Halt):
            break
        found.append(each)
    return found


def could_not(undone: Sequence[Undone]) -> str | None:
    """The sentence about what could not be undone; `None` if there is nothing to say."""
    failed = [each for each in undone if not each.success]
    if not failed:
        return None
    told = "; ".join(f"{each.step_name!r}: {each.feedback}" for each in failed)
    return f"{len(failed)} of {len(undone)} could not be undone: {told}"
