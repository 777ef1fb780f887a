"""Which steps the earlier parts of a run have undone: every compensation that settled says so by its path."""

from __future__ import annotations

from .._core.outcomes import Success, TerminalOutcome, Undone
from .._core.paths import StepPath, step_of, undone_by, unescaped
from .._dsl.pipeline import Pipeline
from .._dsl.tree import find_step
from .journal import StepRecords


def undone_in(journal: StepRecords, pipeline: Pipeline) -> dict[StepPath, Undone]:
    """What is undone by now, in the order of undoing; the last word counts where a person wanted another try."""
    found: dict[StepPath, Undone] = {}
    for path, outcome in journal.compensations():
        step = undone_by(path)
        assert step is not None
        found.pop(step, None)
        found[step] = _undone(step, outcome, pipeline)
    return found


def _undone(step: StepPath, outcome: TerminalOutcome, pipeline: Pipeline) -> Undone:
    whole = step_of(step)  # of a tool call, the step that made it
    declared = find_step(pipeline, whole)
    name = (None if declared is None else declared.name) or unescaped(whole.rpartition("/")[2])
    feedback = None if isinstance(outcome, Success) else getattr(outcome, "feedback", None)
    return Undone(step_name=name, path=step, success=isinstance(outcome, Success), feedback=feedback)
