"""The journal (event log) of a run: what it remembers, by path, so that it can be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from .._core import paths
from .._core.outcomes import Paused, TerminalOutcome
from .._core.paths import StepPath
from .._core.usage import Usage
from ..errors import InvalidAnswer, TransactionLost

if TYPE_CHECKING:  # what only runs with limits, deadlines, approvals or compensations need
    from .._core.failures import Cause
    from .._core.questions import Question
    from .._core.selection import Evidence
    from .worked_time import WorkedTime


@attrs.frozen(kw_only=True, eq=False)
class Recorded:
    """A settled step: its outcome, and the context it left."""

    outcome: TerminalOutcome
    context: object
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
    input_schema: object = None
    attempts: int = 1
    usage: Usage
    question: Question | None = None
    """What is asked besides the message, if anything."""
    context: Any = None
    """What the step had written into its copy of the context, if it sees it: it counts when the answer is taken."""
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
        self._counted: frozenset[StepPath] = frozenset()
        self._new: dict[StepPath, list[StepPath]] = {}

    def __contains__(self, unit: StepPath) -> bool:
        return unit in self._counted

    def done(self, unit: StepPath) -> None:
        """A unit was done: the next failure of its step counts it."""
        self._new.setdefault(paths.step_of(unit), []).append(unit)

    def settled(self, path: StepPath) -> None:
        """A step settled, or it was written down how its attempts failed so far."""
        if paths.is_tried(path):
            self._counted |= frozenset(self._new.pop(paths.whose(path), ()))


@attrs.frozen(kw_only=True, eq=False)
class Answered:
    """A pause with its answer."""

    pause: Pause
    answer: object
    expired: bool = False
    """Whether nobody answered in time, so that there is no answer."""
    refused: InvalidAnswer | None = None
    """Why the step cannot take it: whoever checked it did not know all that the step asks for."""


class OpenTransaction(Protocol):
    """A transaction of the store that a step writes through; its outcome commits with it."""

    @property
    def connection(self) -> object:
        """The driver's own connection."""

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Make the step's outcome and what it wrote durable, together."""

    async def rollback(self, reason: object = None) -> TransactionLost | None:
        """Undo what the step wrote, because of an error, perhaps; what the store itself lost it by, if it did."""

    async def abandon(self) -> None:
        """Undo what a step wrote that was cut short, and of which a thread may be left that writes on."""


class StepRecords(Protocol):
    """What is remembered of steps."""

    def recall(self, path: StepPath) -> Recorded | None:
        """The outcome of a step that settled in an earlier part of this run."""

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        """How the compensations that earlier parts of this run have run ended, in this order."""

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        """Take note that a step begins, one `of` so many; written with whatever is written next, unless that is how it
        ended, and by itself if nothing is for a while."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        """Remember how a step ended; what comes back is what the run goes on with."""

    def hold(self, path: StepPath, record: Recorded) -> Recorded:
        """The same for a step that closes what is around it: it is written with what is written next, and nothing
        else is done, or told, before that. Only where the journal `holds`."""

    async def begin(self, step_name: str) -> OpenTransaction:
        """A transaction for a step that asks for one."""


class QuestionRecords(Protocol):
    """What is remembered of questions and their answers."""

    @property
    def asks(self) -> bool:
        """Whether the run waits for an answer, or can go on with one."""

    def answered(self, path: StepPath) -> Answered | None:
        """The answer given to the pause at `path`."""

    def times_answered(self, path: StepPath) -> int:
        """How many questions at `path` were answered so far."""

    def waiting(self, path: StepPath) -> Pause | None:
        """The pause at `path` that nobody has answered yet."""

    async def paused(self, pause: Pause) -> None:
        """Remember that a step waits; from then on it can be answered."""


class UnitRecords(Protocol):
    """What is remembered of the units of granular steps."""

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


class ChoiceRecords(Protocol):
    """What is remembered of selections."""

    def chosen(self, path: StepPath) -> str | None:
        """What a selection has chosen there, as JSON text."""

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        """Remember what a selection has chosen, before it is acted on; `choice` writes it, when that is needed."""


class RunRecords(Protocol):
    """What is remembered of the run as a whole."""

    durable: bool
    """Whether there is a store behind it."""

    holds: bool
    """Whether it can keep a record until the next one is written."""

    cancelled: str | None
    """Why the run goes no further, if somebody has cancelled it: what it did is undone."""

    async def cancel(self, reason: str) -> None:
        """Remember that the run goes no further."""

    def raised(self, path: StepPath) -> Mapping[str, Any]:
        """The limits that were set anew for the run, or for the step at `path`, when they were reached."""

    @property
    def times(self) -> WorkedTime:
        """How long was worked, where that is limited."""


class Journal(StepRecords, QuestionRecords, UnitRecords, ChoiceRecords, RunRecords, Protocol):
    """The memory of one run. What is written is durable, as far as the store is, when the call returns."""


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
