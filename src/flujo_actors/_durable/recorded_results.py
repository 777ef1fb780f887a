"""Which results of a run have records of their own, so that the step around them need not store them again."""

from __future__ import annotations

from .._core import paths
from .._core.outcomes import StepResult, TerminalOutcome
from .._core.paths import StepPath
from .._core.record_bodies import Place


class RecordedResults:
    """Results by identity: the step around them hands on the objects that the steps inside it settled with."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[StepPath, StepResult]] = {}
        """By `id`, with the result itself, whose `id` nobody else has while it is here."""

    def note(self, path: StepPath, outcome: TerminalOutcome) -> None:
        """The record of the step at `path` holds its result."""
        result = getattr(outcome, "step_result", None)
        if result is not None and not paths.is_tried(path):  # where the next failure replaces it
            self._places[id(result)] = (path, result)

    def path_of(self, result: StepResult) -> StepPath | None:
        """The step whose record holds a result."""
        found = self._places.get(id(result))
        return None if found is None else found[0]


def places_below(path: StepPath, recorded: RecordedResults | None) -> Place:
    """How the step at `path` finds the results inside it that have records of their own."""

    def place(result: StepResult) -> str | None:
        found = None if recorded is None else recorded.path_of(result)
        return None if found is None else paths.below(path, found)

    return place
