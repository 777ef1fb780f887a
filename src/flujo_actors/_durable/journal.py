"""The journal (event log) of a run: what it remembers, by path, so that it can be continued."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from .._core import paths
from .._core.outcomes import Paused, TerminalOutcome
from .._core.paths import StepPath
from .._core.usage import Usage
from ..errors import InvalidAnswer, StoreError, TransactionLost

if TYPE_CHECKING:  # what only runs with limits, deadlines, approvals or compensations need
    from .._core.failures import Cause
    from .._core.questions import Question
    from .._core.selection import Evidence
    from .worked_time import WorkedTime


@attrs.frozen(kw_only=True, eq=False)
class Recorded:
    """A settled step: its outcome, and the context it left."""

    outcome: TerminalOutcome
    context: Any
    same_context: bool = False
    """Whether the step left the context as it found it; `context` then means nothing once it was stored."""
    undo: Sequence[Any] = ()
    """What it leaves to undo, in the order of starting."""
    cause: Cause | None = None
    """What failed, where it is remembered how attempts or a pipeline failed."""
    evidence: tuple[Evidence, ...] = ()
    """What was learned of agents that were chosen, to be written with it."""


@attrs.frozen(kw_only=True, eq=False)
class Pause:
    """A step that waits for an answer, with what it had used by then."""

    path: StepPath
    step_name: str
    paused: Paused
    input_schema: Any = None
    attempts: int = 1
    usage: Usage
    question: Question | None = None
    """What is asked besides the message, if anything."""
    due_at: float | None = None
    """Until when an answer is waited for, in a run that lives in memory; stores have their own clock."""

    @property
    def is_about_limits(self) -> bool:
        """Whether the step waits for other limits, and not for what to do."""
        return self.question is not None and self.question.kind == "limits"


@attrs.frozen(kw_only=True, eq=False)
class KeptUnit:
    """A model turn or tool call that is done."""

    result: str
    usage: Usage
    counted: bool = False
    """Whether its usage is counted: in this part of the run, which did it, or with its step's failed attempts."""


class CountedUnits:
    """The units whose usage is counted in what is remembered of their step's failed attempts."""

    __slots__ = ("_counted", "_new")

    def __init__(self) -> None:
        self._counted: set[StepPath] = set()
        self._new: dict[StepPath, list[StepPath]] = {}

    def __contains__(self, unit: StepPath) -> bool:
        return unit in self._counted

    def done(self, unit: StepPath) -> None:
        """A unit was done: the next failure of its step counts it."""
        self._new.setdefault(paths.step_of(unit), []).append(unit)

    def settled(self, path: StepPath) -> None:
        """A step settled, or it was written down how its attempts failed so far."""
        if paths.is_tried(path):
            self._counted.update(self._new.pop(paths.whose(path), ()))


@attrs.frozen(kw_only=True, eq=False)
class Answered:
    """A pause with its answer."""

    pause: Pause
    answer: Any
    expired: bool = False
    """Whether nobody answered in time, so that there is no answer."""
    refused: InvalidAnswer | None = None
    """Why the step cannot take it: whoever checked it did not know all that the step asks for."""


class OpenTransaction(Protocol):
    """A transaction of the store that a step writes through; its outcome commits with it."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Make the step's outcome and what it wrote durable, together."""

    async def rollback(self, reason: object = None) -> TransactionLost | None:
        """Undo what the step wrote, because of an error, perhaps; what the store itself lost it by, if it did."""

    async def abandon(self) -> None:
        """Undo what a step wrote that was cut short, and of which a thread may be left that writes on."""


class Journal(Protocol):
    """The memory of one run. What is written is durable, as far as the store is, when the call returns."""

    durable: bool
    """Whether there is a store behind it."""

    cancelled: str | None
    """Why the run goes no further, if somebody has cancelled it: what it did is undone."""

    @property
    def asks(self) -> bool:
        """Whether the run waits for an answer, or can go on with one."""

    def recall(self, path: StepPath) -> Recorded | None:
        """The outcome of a step that settled in an earlier part of this run."""

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        """How the compensations that earlier parts of this run have run ended, in this order."""

    def answered(self, path: StepPath) -> Answered | None:
        """The answer given to the pause at `path`."""

    def times_answered(self, path: StepPath) -> int:
        """How many questions at `path` were answered so far."""

    def waiting(self, path: StepPath) -> Pause | None:
        """The pause at `path` that nobody has answered yet."""

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        """Take note that a step begins, one `of` so many; written with whatever is written next, unless that is how it
        ended, and by itself if nothing is for a while."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        """Remember how a step ended; what comes back is what the run goes on with."""

    async def begin(self, step_name: str) -> OpenTransaction:
        """A transaction for a step that asks for one."""

    def unit(self, path: StepPath) -> KeptUnit | None:
        """A model turn or tool call that is done."""

    async def intend(self, path: StepPath, intent: str) -> bool:
        """Remember that a unit is about to be done; whether an earlier part of the run intended it already.

        This uses up the answer to a question about the unit, if there is one: how it ends now is another question.
        """

    def intents(self, step: StepPath) -> list[tuple[StepPath, str]]:
        """The units of a granular step that were begun, in this order, each with what was intended."""

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        """Remember what a unit came to."""

    async def paused(self, pause: Pause) -> None:
        """Remember that a step waits; from then on it can be answered."""

    async def cancel(self, reason: str) -> None:
        """Remember that the run goes no further."""

    def chosen(self, path: StepPath) -> str | None:
        """What a selection has chosen there, as JSON text."""

    async def choose(self, path: StepPath, choice: str) -> None:
        """Remember what a selection has chosen, before it is acted on."""

    def raised(self, path: StepPath) -> Mapping[str, Any]:
        """The limits that were set anew for the run, or for the step at `path`, when they were reached."""

    @property
    def times(self) -> WorkedTime:
        """How long was worked, where that is limited."""


class RaisedLimits:
    """The limits that were set anew, by whose they are."""

    __slots__ = ("_raised",)

    def __init__(self) -> None:
        self._raised: dict[str, dict[str, Any]] = {}

    def of(self, path: StepPath) -> Mapping[str, Any]:
        """Those of the run, or of the step at `path`."""
        return self._raised.get(path, {})

    def take(self, answered: Answered) -> None:
        """Keep what an answer sets, if that is what it is about."""
        question = answered.pause.question
        if question is not None and answered.pause.is_about_limits:
            from .._core.questions import raised_by  # see above

            owner = question.facts["owner"]
            self._raised[owner] = {**self._raised.get(owner, {}), **raised_by(answered.answer)}


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

    __slots__ = ("_causes", "_chosen", "_left", "_questions", "_settled", "_times", "_units", "cancelled")
    durable = False

    def __init__(self) -> None:
        self._times: WorkedTime | None = None
        self._chosen: dict[StepPath, str] | None = None
        self._settled: dict[StepPath, tuple[TerminalOutcome, Any, bool]] = {}
        self.cancelled: str | None = None
        self._left: dict[StepPath, Sequence[Any]] | None = None
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
        return None if self._chosen is None else self._chosen.get(path)

    async def choose(self, path: StepPath, choice: str) -> None:
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
        kept = self._settled.get(path)
        if kept is None:
            return None
        undo = () if self._left is None else self._left.get(path, ())
        cause = None if self._causes is None else self._causes.get(path)
        return Recorded(outcome=kept[0], context=kept[1], same_context=kept[2], undo=undo, cause=cause)

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        return [(path, kept[0]) for path, kept in self._settled.items() if paths.undone_by(path) is not None]

    def answered(self, path: StepPath) -> Answered | None:
        return self.questions.answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self.questions.told[path]

    def waiting(self, path: StepPath) -> Pause | None:
        return self.questions.pauses.get(path)

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        pass

    def keep(self, path: StepPath, outcome: TerminalOutcome, context: Any, *, same_context: bool) -> None:
        """Remember how a step ended and the context it left; in memory there is nothing to wait for."""
        self._settled[path] = (outcome, context, same_context)
        if self._units is not None:
            self._units.counted.settled(path)
        if self._questions is not None:
            self._questions.drop(path)

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        self.keep(path, record.outcome, record.context, same_context=record.same_context)
        if record.undo:
            self.leave(path, record.undo)
        self.fail(path, record.cause)
        return record

    def leave(self, path: StepPath, undo: Sequence[Any]) -> None:
        """Remember what a step leaves to undo."""
        if self._left is None:
            self._left = {}
        self._left[path] = undo

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

    def answer(self, path: StepPath, answer: Any) -> None:
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
