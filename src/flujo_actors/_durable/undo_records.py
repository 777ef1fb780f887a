"""What a record says of undoing: what a step leaves to undo, and what failed.

Rules:

1. A step that has a record of its own is referred to by its path, seen from the step whose record this is: its output
   and its input are there. Its own entry holds what it worked on, which no other record does.
2. A step that has none, since it was cut short, is told in full.
3. What a step worked on and cannot be stored is left out: the step is undone all the same, by its idempotency key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from .._core import record_bodies
from .._core.failures import Cause, stack_trace
from .._core.outcomes import StepResult
from .._core.paths import StepPath, below, inside
from .._core.record_bodies import Redact
from .._core.undoing import HALT, Halt, ToUndo, Undoable
from .._dsl.pipeline import AnyStep
from ..errors import NotSerializable

StepAt = Callable[[StepPath], AnyStep | None]
"""The step that the pipeline has at a path of a run."""

OwnAt = Callable[[StepPath], Undoable | None]
"""What a step leaves to undo by its own record."""


def undo_data(path: StepPath, undo: Sequence[ToUndo], recorded: Container[StepPath]) -> list[object]:
    """What is left to undo, for the record at `path`; see the module's rules."""
    return [_entry_data(path, each, recorded) for each in undo]


def _entry_data(path: StepPath, entry: ToUndo, recorded: Container[StepPath]) -> object:
    if isinstance(entry, Halt):
        return {"halt": True}
    if entry.path == path:
        return {"own": True, **_stored("input", entry.input)}
    if entry.completed and entry.path in recorded:
        return below(path, entry.path)
    told = {"at": below(path, entry.path), "name": entry.name, "attempts": entry.attempts, "completed": entry.completed}
    return {**told, **_stored("input", entry.input), **_stored("output", entry.output)}


def _stored(name: str, value: object) -> dict[str, object]:
    try:
        return {} if value is None else {name: record_bodies.stored_value(value)}
    except NotSerializable:
        return {}


def steps_to_undo(path: StepPath, body: dict[str, Any]) -> list[StepPath]:
    """The steps whose own records are referred to."""
    return [inside(path, each) for each in body.get("undo", ()) if isinstance(each, str)]


def read_undo(
    path: StepPath,
    body: dict[str, Any],
    result: StepResult | None,
    *,
    own_at: OwnAt,
    step_at: StepAt,
    context: object,
    where: str,
) -> Iterator[ToUndo]:
    """What is left to undo by the record at `path`; the records that it refers to must have been read."""
    for each in body.get("undo", ()):
        if isinstance(each, str):
            referred = own_at(inside(path, each))
            if referred is not None:
                yield referred
        elif each.get("halt"):
            yield HALT
        elif each.get("own"):
            given = record_bodies.read_value(each.get("input"), where=where)
            yield _own(path, given, result, step_at(path), context)
        else:
            yield _told(inside(path, record_bodies.text_in(each, "at")), each, step_at, where=where)


def _own(path: StepPath, given: object, result: StepResult | None, step: AnyStep | None, context: object) -> Undoable:
    return Undoable(
        step=step,
        context=context,
        name="" if result is None else result.name,
        path=path,
        input=given,
        output=None if result is None else result.output,
        completed=result is not None and result.success,
        attempts=1 if result is None else result.attempts,
    )


def _told(path: StepPath, entry: dict[str, object], step_at: StepAt, *, where: str) -> Undoable:
    return Undoable(
        step=step_at(path),
        name=record_bodies.text_in(entry, "name"),
        path=path,
        input=record_bodies.read_value(entry.get("input"), where=where),
        output=record_bodies.read_value(entry.get("output"), where=where),
        completed=bool(entry.get("completed")),
        attempts=record_bodies.number_in(entry, "attempts"),
    )


# --- what failed --------------------------------------------------------------------------------------------


def cause_data(cause: Cause, redact: Redact) -> dict[str, object]:
    """What failed, as it is stored: the error itself is part of the outcome."""
    return {
        "name": cause.name,
        "path": cause.path,
        "attempts": cause.attempts,
        "feedback": redact(cause.feedback),
        "at": cause.at.isoformat(),
        "stack": redact(stack_trace(cause)),
        **_stored("input", cause.input),
    }


def read_cause(data: dict[str, object], *, where: str) -> Cause:
    """What failed, as it was stored; its error is read with the outcome."""
    return Cause(
        name=record_bodies.text_in(data, "name"),
        path=StepPath(record_bodies.text_in(data, "path")),
        attempts=record_bodies.number_in(data, "attempts"),
        input=record_bodies.read_value(data.get("input"), where=where),
        feedback=record_bodies.text_in(data, "feedback"),
        at=dt.datetime.fromisoformat(record_bodies.text_in(data, "at")),
        stack_trace=record_bodies.text_in(data, "stack"),
    )
