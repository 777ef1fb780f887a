"""What is known of a run at a point of its log: the records are the truth, everything else is made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from . import bodies
from .outcomes import StepResult, TerminalOutcome
from .paths import ROOT, StepPath
from .records import Record
from .usage import NO_USAGE, Usage


@attrs.frozen(kw_only=True)
class RunState:
    """A run as its records describe it."""

    run_id: str
    seq: int
    """The last record that was taken into account."""
    status: str
    input: Any = None
    context: Any = None
    """The context after the last top-level step that settled."""
    outcomes: dict[StepPath, TerminalOutcome] = attrs.field(factory=dict)
    """The settled steps, in the order in which they settled."""
    open_steps: tuple[StepPath, ...] = ()
    """What had started and not settled."""
    pauses: dict[StepPath, str] = attrs.field(factory=dict)
    """Unanswered questions by path."""
    answers: dict[StepPath, Any] = attrs.field(factory=dict)
    units: tuple[StepPath, ...] = ()
    """The model turns and tool calls that are done."""
    uncertain: tuple[StepPath, ...] = ()
    """Those that were begun and not recorded as done."""
    feedback: str | None = None

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results of the top-level steps."""
        found = (outcome for path, outcome in self.outcomes.items() if "/" not in path)
        return tuple(result for each in found if (result := getattr(each, "step_result", None)) is not None)

    @property
    def output(self) -> Any:
        """What the last top-level step that settled came to."""
        return self.results[-1].output if self.results else None

    @property
    def usage(self) -> Usage:
        """What the top-level steps have used."""
        return sum((result.usage for result in self.results), NO_USAGE)


def project(run_id: str, records: Iterable[Record]) -> RunState:
    """The state after these records."""
    projector = _Projector(run_id)
    for record in records:
        projector.take(record)
    return projector.state()


class _Projector:
    """Folds records into a state, one at a time."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts: dict[str, Any] = {"seq": 0, "status": "running"}
        self._outcomes: dict[StepPath, TerminalOutcome] = {}
        self._open: dict[StepPath, None] = {}
        self._pauses: dict[StepPath, str] = {}
        self._answers: dict[StepPath, Any] = {}
        self._intents: dict[StepPath, None] = {}
        self._units: dict[StepPath, None] = {}

    def take(self, record: Record) -> None:
        where = f"record {record.seq} of run {self._run_id!r}"
        body = bodies.read_body(record.body, where=where)
        self._facts["seq"] = record.seq
        path = record.path
        match record.kind:
            case "admitted":
                self._facts["input"] = bodies.read_value(body.get("input"), where=where)
                self._facts["context"] = bodies.read_value(body.get("context"), where=where)
            case "started":
                self._open[path] = None
            case "settled":
                self._settle(path, body, where)
            case "intent":
                self._intents[path] = None
            case "unit":
                self._intents.pop(path, None)
                self._units[path] = None
            case "paused":
                self._pauses[path] = str(body.get("message", ""))
            case "answered":
                self._pauses.pop(path, None)
                self._answers[path] = bodies.read_value(body.get("answer"), where=where)
                self._facts["status"] = "running"
            case "resumed":
                self._facts["status"] = "running"
            case "ended" if path == ROOT:
                self._facts["status"], self._facts["feedback"] = body.get("status"), body.get("feedback")

    def _settle(self, path: StepPath, body: dict[str, Any], where: str) -> None:
        self._open.pop(path, None)
        self._outcomes[path] = bodies.read_outcome(body.get("outcome"), where=where)
        if "/" not in path and not body.get("same_context"):
            self._facts["context"] = bodies.read_value(body.get("context"), where=where)

    def state(self) -> RunState:
        return RunState(
            run_id=self._run_id,
            outcomes=dict(self._outcomes),
            open_steps=tuple(self._open),
            pauses=dict(self._pauses),
            answers=dict(self._answers),
            units=tuple(self._units),
            uncertain=tuple(self._intents),
            **self._facts,
        )
