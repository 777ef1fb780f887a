"""The journal of a run that lives as long as its process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .._core import paths
from .._core.outcomes import TerminalOutcome
from .._core.paths import StepPath
from .._core.usage import Usage
from ..errors import StoreError
from .journal import Answered, CountedUnits, KeptUnit, OpenTransaction, Pause, RaisedLimits, Recorded

if TYPE_CHECKING:  # what only runs with limits or compensations need
    from .._core.failures import Cause
    from .worked_time import WorkedTime


class Questions:
    """What a run in memory has asked, and what it was told."""

    __slots__ = ("answers", "pauses", "raised", "told")

    def __init__(self) -> None:
        self.raised = RaisedLimits()
        self.pauses: dict[StepPath, Pause] = {}
        self.answers: dict[StepPath, Answered] = {}
        self.told: Counter[StepPath] = Counter()

    def drop(self, path: StepPath) -> None:
        """The step at `path` settled, or failed so far: nobody waits any more for what was asked inside it."""
        for each in paths.withdrawn_by(path, self.pauses):
            del self.pauses[each]


class UnitsInMemory:
    """The model turns and tool calls of a run in memory."""

    __slots__ = ("counted", "done", "intended")

    def __init__(self) -> None:
        self.intended: dict[StepPath, str] = {}
        self.done: dict[StepPath, KeptUnit] = {}
        self.counted = CountedUnits()


class MemoryJournal:
    """A journal that lives as long as the process, and keeps references instead of copies.

    A program has thousands of runs at a time, few of which ask anything or have units: the books for these are made
    when they are needed.
    """

    __slots__ = ("_causes", "_chosen", "_contexts", "_left", "_questions", "_settled", "_times", "_units", "cancelled")
    durable = holds = False

    def __init__(self) -> None:
        self._times: WorkedTime | None = None
        self._chosen: dict[StepPath, Callable[[], str]] | None = None
        self._settled: dict[StepPath, TerminalOutcome] = {}
        self._contexts: dict[StepPath, object] = {}
        """The contexts that settled steps left, where these are not the ones that they were given."""
        self.cancelled: str | None = None
        self._left: dict[StepPath, Sequence[object]] | None = None
        """What settled steps leave to undo; few runs have any."""
        self._causes: dict[StepPath, Cause] | None = None
        """What made attempts and pipelines fail, in runs that tell of it."""
        self._questions: Questions | None = None
        self._units: UnitsInMemory | None = None

    @property
    def questions(self) -> Questions:
        """The book of questions."""
        if self._questions is None:
            self._questions = Questions()
        return self._questions

    @property
    def units(self) -> UnitsInMemory:
        """The book of units."""
        if self._units is None:
            self._units = UnitsInMemory()
        return self._units

    @property
    def times(self) -> WorkedTime:
        """The clocks."""
        if self._times is None:
            from .worked_time import WorkedTime  # see above

            self._times = WorkedTime()
        return self._times

    def chosen(self, path: StepPath) -> str | None:
        written = None if self._chosen is None else self._chosen.get(path)
        return None if written is None else written()

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        self._chosen = self._chosen or {}
        self._chosen[path] = choice

    def raised(self, path: StepPath) -> Mapping[str, Any]:
        return {} if self._questions is None else self._questions.raised.of(path)

    def unit(self, path: StepPath) -> KeptUnit | None:
        return self.units.done.get(path)

    async def intend(self, path: StepPath, intent: str) -> bool:
        before = path in self.units.intended
        self.units.intended.setdefault(path, intent)
        self.questions.answers.pop(path, None)
        return before

    def intents(self, step: StepPath) -> list[tuple[StepPath, str]]:
        begun = {} if self._units is None else self._units.intended
        return [(path, begun[path]) for path in paths.at_or_below(step, begun)]

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        self.units.done[path] = KeptUnit(result=result, usage=usage, counted=True)
        self.units.counted.done(path)

    def recall(self, path: StepPath) -> Recorded | None:
        outcome = self._settled.get(path)
        if outcome is None:
            return None
        same, context = path not in self._contexts, self._contexts.get(path)
        undo = () if self._left is None else self._left.get(path, ())
        cause = None if self._causes is None else self._causes.get(path)
        return Recorded(outcome=outcome, context=context, same_context=same, undo=undo, cause=cause)

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        return [(path, outcome) for path, outcome in self._settled.items() if paths.undone_by(path) is not None]

    def answered(self, path: StepPath) -> Answered | None:
        return self.questions.answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self.questions.told[path]

    def waiting(self, path: StepPath) -> Pause | None:
        return self.questions.pauses.get(path)

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        pass

    def keep(self, path: StepPath, outcome: TerminalOutcome, undo: Sequence[object] = ()) -> None:
        """Remember how a step ended that left the context as it was; in memory there is nothing to wait for."""
        self._settled[path] = outcome
        if undo:
            self._left = self._left or {}
            self._left[path] = undo
        if self._units is not None:
            self._units.counted.settled(path)
        if self._questions is not None:
            self._questions.drop(path)

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        return self.hold(path, record)

    def hold(self, path: StepPath, record: Recorded) -> Recorded:
        self.keep(path, record.outcome, record.undo)
        if not record.same_context:
            self._contexts[path] = record.context
        self.fail(path, record.cause)
        return record

    def fail(self, path: StepPath, cause: Cause | None) -> None:
        """Remember what made a step fail, if that is not to be seen from its outcome."""
        if cause is not None:
            self._causes = self._causes or {}
            self._causes[path] = cause

    async def begin(self, step_name: str) -> OpenTransaction:
        raise StoreError(f"step {step_name!r} asks for a transaction, but the run has no store")

    async def paused(self, pause: Pause) -> None:
        if pause.question is not None and pause.question.timeout_s is not None:
            pause = attrs.evolve(pause, due_at=time.time() + pause.question.timeout_s)
        self.questions.pauses[pause.path] = pause
        self.questions.answers.pop(pause.path, None)  # what was answered before was another question

    async def cancel(self, reason: str) -> None:
        self.cancelled = self.cancelled or reason
        book = self.questions
        book.pauses = {path: each for path, each in book.pauses.items() if paths.is_undoing(path)}

    @property
    def asks(self) -> bool:
        """Whether the run has asked something: it may go on with the answer, now or later."""
        return self._questions is not None and bool(self._questions.pauses or self._questions.answers)

    def answer(self, path: StepPath, answer: object) -> None:
        """Take the answer to a pause; it is used when the run continues."""
        book = self.questions
        book.answers[path] = Answered(pause=book.pauses.pop(path), answer=answer)
        book.raised.take(book.answers[path])
        book.told[path] += 1

    def expire(self, now: float) -> bool:
        """End the questions whose time is over; whether there were any."""
        book = self.questions
        over = [path for path, pause in book.pauses.items() if pause.due_at is not None and pause.due_at <= now]
        for path in over:
            book.answers[path] = Answered(pause=book.pauses.pop(path), answer=None, expired=True)
        return bool(over)

    def begin_part(self) -> None:
        """The run goes on: what was done so far belongs to an earlier part of it."""
        units = self.units
        units.done = {each: attrs.evolve(unit, counted=each in units.counted) for each, unit in units.done.items()}
