"""Projection: what is known of a run at a point of its log. The records are the truth, all else is made from them.

Rules:

1. A step is open from its start until it settles.
2. A step whose attempts failed and that goes on is not settled; what it has used is counted.
3. What a settled step used includes the steps inside it: these are not counted again. A compensation is part of
   whatever undoes, which may be a step around the one that it undoes: it is counted by what is written after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from . import record_bodies
from .outcomes import ErrorInfo, Failure, StepResult, TerminalOutcome
from .paths import ROOT, StepPath, above_of, attempt_of, below, is_top_level, is_tried, is_undoing, step_of, whose
from .records import Record
from .usage import NO_USAGE, Usage


@attrs.frozen(kw_only=True)
class Origin:
    """The run that another one was forked from, and up to which of its records."""

    run_id: str
    seq: int


@attrs.frozen(kw_only=True)
class RunState:
    """A run as its records describe it."""

    run_id: str
    seq: int
    """The last record that was taken into account."""
    status: str
    input: object = None
    context: Any = None
    """The context after the last top-level step that settled."""
    outcomes: dict[StepPath, TerminalOutcome] = attrs.field(factory=dict)
    """The settled steps, in the order in which they settled."""
    failed_attempts: dict[StepPath, TerminalOutcome] = attrs.field(factory=dict)
    """The last failure of each step that is being tried again, or whose fallback is at work."""
    open_steps: tuple[StepPath, ...] = ()
    """What had started and not settled."""
    pauses: dict[StepPath, str] = attrs.field(factory=dict)
    """Unanswered questions by path."""
    answers: dict[StepPath, object] = attrs.field(factory=dict)
    units: tuple[StepPath, ...] = ()
    """The model turns and tool calls that are done."""
    uncertain: tuple[StepPath, ...] = ()
    """Those that were begun and not recorded as done."""
    usage: Usage = NO_USAGE
    """What all the steps have used, at any depth."""
    feedback: str | None = None
    origin: Origin | None = None
    """Where the run comes from, if it is a fork."""

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results of the top-level steps."""
        found = (outcome for path, outcome in self.outcomes.items() if is_top_level(path))
        return tuple(result for each in found if (result := getattr(each, "step_result", None)) is not None)

    @property
    def error(self) -> BaseException | ErrorInfo | None:
        """What made the last top-level step that settled fail; `None` if it did not, or nothing was raised."""
        last = next((each for path, each in reversed(self.outcomes.items()) if is_top_level(path)), None)
        return last.error if isinstance(last, Failure) else None

    @property
    def output(self) -> object:
        """What the last top-level step that settled came to."""
        return self.results[-1].output if self.results else None


def project(run_id: str, records: Iterable[Record]) -> RunState:
    """The state after these records."""
    projector = Projector(run_id)
    for record in records:
        projector.take(record)
    return projector.state()


class Projector:
    """Folds the records of a run into its state, one at a time: `take` the next one, and ask for the `state()`."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts: dict[str, Any] = {"seq": 0, "status": "running"}
        self._outcomes: dict[StepPath, TerminalOutcome] = {}
        self._tried: dict[StepPath, TerminalOutcome] = {}
        self._written: dict[StepPath, int] = {}
        self._given_up: dict[StepPath, int] = {}
        """Where in the log steps settled, and where it was written down that their attempts failed."""
        self._waited: dict[StepPath, Usage] = {}
        self._open: dict[StepPath, None] = {}
        self._pauses: dict[StepPath, str] = {}
        self._answers: dict[StepPath, Any] = {}
        self._intents: dict[StepPath, None] = {}
        self._units: dict[StepPath, None] = {}
        self._since: dict[StepPath, Usage] = {}
        """What the units of each granular step have used since its usage was last written down as a whole."""

    def take(self, record: Record) -> None:
        """Take the next record into account; `CorruptRecord` if it cannot be read."""
        where = f"record {record.seq} of run {self._run_id!r}"
        with record_bodies.reading(where):
            self._take(record, where)

    def _take(self, record: Record, where: str) -> None:
        body = record_bodies.read_body(record.body, where=where)
        self._facts["seq"] = record.seq
        path = record.path
        match record.kind:
            case "admitted":
                self._facts["input"] = record_bodies.read_value(body.get("input"), where=where)
                self._facts["context"] = record_bodies.read_value(body.get("context"), where=where)
                self._facts["origin"] = _origin(body.get("origin"))
            case "started":
                self._open[path] = None
            case "settled":
                self._settle(path, body, where)
            case "intent":
                self._intents[path] = None
            case "unit":
                self._intents.pop(path, None)
                self._units[path] = None
                self._use(step_of(path), record_bodies.read_usage(body.get("usage"), where=where))
            case "paused":
                self._pauses[path] = str(body.get("message", ""))
                self._waited[step_of(path)] = record_bodies.read_usage(body.get("usage"), where=where)
                self._since.pop(step_of(path), None)
            case "answered":
                self._pauses.pop(path, None)
                self._answers[path] = record_bodies.read_value(body.get("answer"), where=where)
            case "resumed":
                self._facts["status"] = "running"
            case "ended" if path == ROOT:
                self._facts["status"], self._facts["feedback"] = body.get("status"), body.get("feedback")
                self._pauses = self._pauses if body.get("status") == "paused" else {}

    def _use(self, path: StepPath, used: Usage) -> None:
        self._since[path] = self._since.get(path, NO_USAGE) + used

    def _settle(self, path: StepPath, body: dict[str, object], where: str) -> None:
        outcome = record_bodies.read_settled(path, body, self._outcomes.get, where=where)
        if is_tried(path):
            self._try(whose(path), outcome)
            return
        self._open.pop(path, None)
        self._outcomes[path] = outcome
        self._written[path] = self._facts["seq"]
        if is_top_level(path) and "context" in body:
            self._facts["context"] = record_bodies.read_value(body.get("context"), where=where)

    def _try(self, path: StepPath, failed: TerminalOutcome) -> None:
        self._tried[path] = failed
        self._given_up[path] = self._facts["seq"]
        self._waited.pop(path, None)  # what it had used by then is part of this
        self._since.pop(path, None)

    def state(self) -> RunState:
        """What is known of the run after the records so far."""
        return RunState(
            run_id=self._run_id,
            outcomes=dict(self._outcomes),
            failed_attempts={path: each for path, each in self._steps_tried() if path not in self._outcomes},
            open_steps=tuple(self._open),
            pauses=dict(self._pauses),
            answers=dict(self._answers),
            units=tuple(self._units),
            uncertain=tuple(self._intents),
            usage=sum(self._spent(), NO_USAGE),
            **self._facts,
        )

    def _spent(self) -> Iterator[Usage]:
        for path, outcome in self._outcomes.items():
            if not self._is_counted_above(path):
                yield _usage(outcome)
        for path, outcome in self._steps_tried():
            if path not in self._outcomes and path not in self._waited and not self._is_counted_above(path):
                yield _usage(outcome)
        for path, usage in (*self._waited.items(), *self._since.items()):
            if path not in self._outcomes and not self._is_counted_above(path):
                yield usage

    def _steps_tried(self) -> Iterator[tuple[StepPath, TerminalOutcome]]:
        """The run itself is no step of it."""
        return ((path, each) for path, each in self._tried.items() if path != ROOT)

    def _is_counted_above(self, path: StepPath) -> bool:
        """Whether a step around this one has counted it: by having settled, or by having given that attempt up."""
        since = self._written.get(path, 0) if is_undoing(path) else 0
        return any(self._written.get(above, 0) > since or self._gave_up(above, path, since) for above in above_of(path))

    def _gave_up(self, above: StepPath, path: StepPath, since: int) -> bool:
        """Whether the path is part of an attempt that a step around it has given up; its fallback is part of none."""
        if self._given_up.get(above, 0) <= since:
            return False
        number = attempt_of(below(above, path) or "")
        return number is not None and number <= _attempts(self._tried[above])


def _origin(data: Any) -> Origin | None:
    return None if data is None else Origin(run_id=str(data["run_id"]), seq=int(data["seq"]))


def _attempts(outcome: TerminalOutcome) -> int:
    result = getattr(outcome, "step_result", None)
    return 0 if result is None else result.attempts


def _usage(outcome: TerminalOutcome) -> Usage:
    result = getattr(outcome, "step_result", None)
    return NO_USAGE if result is None else result.usage
