"""Compensation entries and failures in records.

Rules:

1. A step with a record of its own is referenced by its relative path: its output and its input are there. Its own
   entry holds its input, which no other record does.
2. A step without one, since it was cancelled, is stored completely.
3. An unstorable input is omitted: the step is compensated all the same, by its idempotency key.

Sections:

- Steps compensated by earlier sessions, by the paths of settled compensations.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from .._core.failure_info import HALT, Cause, CompensationStop, ToUndo, Undoable, stack_trace
from .._core.outcomes import StepResult, Success, TerminalOutcome, Undone
from .._core.records import record_bodies
from .._core.records.record_bodies import Redact
from .._core.step_paths import StepPath, below, compensated_by, inside, step_of, unescaped
from .._dsl.declaration_tree import find_step
from .._dsl.pipeline import AnyStep, Pipeline
from ..errors import NotSerializable
from .journal import StepRecords

StepAt = Callable[[StepPath], AnyStep | None]
"""The step that the pipeline has at a path of a run."""

OwnAt = Callable[[StepPath], Undoable | None]
"""Compensation entry of a step from its own record."""


def compensation_data(path: StepPath, undo: Sequence[ToUndo], recorded: Container[StepPath]) -> list[object]:
    """Return the compensation entries of the record at `path` (module rules)."""
    return [_entry_data(path, each, recorded) for each in undo]


def _entry_data(path: StepPath, entry: ToUndo, recorded: Container[StepPath]) -> object:
    if isinstance(entry, CompensationStop):
        return {"halt": True}
    if entry.path == path:
        return {"own": True, **_stored("input", entry.input)}
    if entry.completed and entry.path in recorded:
        return below(path, entry.path)
    facts = {
        "at": below(path, entry.path),
        "name": entry.name,
        "attempts": entry.attempts,
        "completed": entry.completed,
    }
    return {**facts, **_stored("input", entry.input), **_stored("output", entry.output)}


def _stored(name: str, value: object) -> dict[str, object]:
    try:
        return {} if value is None else {name: record_bodies.stored_value(value)}
    except NotSerializable:
        return {}


def steps_to_compensate(path: StepPath, body: dict[str, Any]) -> list[StepPath]:
    """Return the referenced steps."""
    return [inside(path, each) for each in body.get("undo", ()) if isinstance(each, str)]


def read_compensations(
    path: StepPath,
    body: dict[str, Any],
    result: StepResult | None,
    *,
    own_at: OwnAt,
    step_at: StepAt,
    context: object,
    where: str,
) -> Iterator[ToUndo]:
    """Yield the compensation entries of the record at `path`.

    The referenced records must have been read.
    """
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
            yield _undoable(inside(path, record_bodies.text_in(each, "at")), each, step_at, where=where)


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


def _undoable(path: StepPath, entry: dict[str, object], step_at: StepAt, *, where: str) -> Undoable:
    return Undoable(
        step=step_at(path),
        name=record_bodies.text_in(entry, "name"),
        path=path,
        input=record_bodies.read_value(entry.get("input"), where=where),
        output=record_bodies.read_value(entry.get("output"), where=where),
        completed=bool(entry.get("completed")),
        attempts=record_bodies.number_in(entry, "attempts"),
    )


# --- failures -----------------------------------------------------------------------------------------------


def cause_data(cause: Cause, redact: Redact) -> dict[str, object]:
    """Return a failure's stored form; its error is in the outcome."""
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
    """Return a stored failure; its error is read with the outcome."""
    return Cause(
        name=record_bodies.text_in(data, "name"),
        path=StepPath(record_bodies.text_in(data, "path")),
        attempts=record_bodies.number_in(data, "attempts"),
        input=record_bodies.read_value(data.get("input"), where=where),
        feedback=record_bodies.text_in(data, "feedback"),
        at=dt.datetime.fromisoformat(record_bodies.text_in(data, "at")),
        stack_trace=record_bodies.text_in(data, "stack"),
    )


# --- Steps compensated by earlier sessions ------------------------------------------------------------------------


def compensated_in(journal: StepRecords, pipeline: Pipeline) -> dict[StepPath, Undone]:
    """Return the compensated steps in order, with their last results."""
    found: dict[StepPath, Undone] = {}
    for path, outcome in journal.compensations():
        step = compensated_by(path)
        assert step is not None
        found.pop(step, None)
        found[step] = _compensated(step, outcome, pipeline)
    return found


def _compensated(step: StepPath, outcome: TerminalOutcome, pipeline: Pipeline) -> Undone:
    whole = step_of(step)  # of a tool call, the step that made it
    declared = find_step(pipeline, whole)
    name = (None if declared is None else declared.name) or unescaped(whole.rpartition("/")[2])
    feedback = None if isinstance(outcome, Success) else getattr(outcome, "feedback", None)
    return Undone(step_name=name, path=step, success=isinstance(outcome, Success), feedback=feedback)
