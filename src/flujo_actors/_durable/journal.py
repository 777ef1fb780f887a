"""Journal (event log) of a run: its memory by path, for resuming.

Sections:

- Elapsed time of a run and of steps with a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from .._core import policies, step_paths
from .._core.outcomes import Paused, StepResult, TerminalOutcome
from .._core.step_paths import StepPath
from .._core.usage import Usage
from ..errors import InvalidAnswer, TransactionLost

if TYPE_CHECKING:
    from .._core.failure_info import Cause
    from .._core.policies.approval_policy import QuestionSpec
    from .._core.policies.selection import Evidence
    from .._core.records.records import CacheEntry, ConversationWrite
    from .._core.records.run_state import LoopTurns
    from ..stores._store_port import Store
    from .leases import HeldLease
    from .long_runs import SettledItems
    from .recorded_results import SteeringInbox

NO_OUTPUT: object = object()
"""Place of an item without an output."""


@attrs.frozen(kw_only=True, eq=False)
class Recorded:
    """Settled step: outcome and context."""

    outcome: TerminalOutcome
    context: object
    given: object = None
    """Context at the start of the step, for comparing; `None` if unknown."""
    same_context: bool = False
    """Whether the context is unchanged, so that `context` is undefined."""
    undo: Sequence[Any] = ()
    """Compensation entries in start order."""
    cause: Cause | None = None
    """Failure of recorded attempts or of a pipeline."""
    evidence: tuple[Evidence, ...] = ()
    """Outcomes of selected agents, written with it."""
    cached: tuple[CacheEntry, ...] = ()
    """Its output for later runs, written with it."""
    conversation: ConversationWrite | None = None
    """New messages of its conversation, written with it."""


@attrs.frozen(kw_only=True, eq=False)
class Pause:
    """Step that waits for an answer, with its usage so far."""

    path: StepPath
    step_name: str
    paused: Paused
    input_schema: object = None
    attempts: int = 1
    usage: Usage
    question: QuestionSpec | None = None
    """Pause specification in addition to the message, if any."""
    context: Any = None
    """Context copy of a seeing step, merged with the accepted answer."""
    due_at: float | None = None
    """Deadline of an in-memory answer; stores have their own clock."""

    @property
    def is_about_limits(self) -> bool:
        """Return whether the pause requests new limits, or waits for a window."""
        return self.question is not None and self.question.kind in ("limits", "budget")


@attrs.frozen(kw_only=True, eq=False)
class KeptUnit:
    """A model turn or tool call that is done."""

    result: str
    usage: Usage
    counted: bool = False
    """Whether its usage is counted, here or in failed attempts."""
    borrowed: str | None = None
    """Intent of a rehearsed run's unit, to be recorded again."""


class CountedUnits:
    """Units counted in the record of their step's failed attempts."""

    __slots__ = ("_counted", "_new")

    def __init__(self) -> None:
        self._counted: frozenset[StepPath] = frozenset()
        self._new: dict[StepPath, list[StepPath]] = {}

    def __contains__(self, unit: StepPath) -> bool:
        return unit in self._counted

    def done(self, unit: StepPath) -> None:
        """A unit was done: the next failure of its step counts it."""
        self._new.setdefault(step_paths.step_of(unit), []).append(unit)

    def settled(self, path: StepPath) -> None:
        """Mark the units of a settled or recorded step."""
        if step_paths.is_tried(path):
            self._counted |= frozenset(self._new.pop(step_paths.whose(path), ()))


@attrs.frozen(kw_only=True, eq=False)
class PauseAnswer:
    """A pause with its answer."""

    pause: Pause
    answer: object
    expired: bool = False
    """Whether the pause timed out without an answer."""
    late_s: float = 0.0
    """Seconds from the deadline to its record, if time ended the pause."""
    refused: InvalidAnswer | None = None
    """Reason of a refused answer: its checker lacked the full schema."""


class OpenTransaction(Protocol):
    """Store transaction of a step; its outcome commits with it."""

    @property
    def connection(self) -> object:
        """Return the driver's own connection."""

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Make the step's outcome and its writes durable together."""

    async def rollback(self, reason: object = None) -> TransactionLost | None:
        """Roll back the step's writes; return the store's own loss, if any."""

    async def abandon(self) -> None:
        """Roll back a cancelled step's writes; its thread may still write."""


class StepRecords(Protocol):
    """Records of steps."""

    def recall(self, path: StepPath) -> Recorded | None:
        """Return the outcome of a step that settled in an earlier session."""

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        """Return the outcomes of compensations of earlier sessions, in order."""

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        """Record the start of a step, one `of` several.

        It is written with the next record, unless that is the step's own end, or by itself after a delay.
        """

    def keep(self, path: StepPath, outcome: TerminalOutcome, undo: Sequence[object] = ()) -> None:
        """Keep a success in memory, without awaiting, if not `durable`."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        """Record the end of a step; return the outcome to continue with."""

    def hold(self, path: StepPath, record: Recorded) -> Recorded:
        """Record a step whose commit is coalesced with its parent's.

        It is written with the next record, and nothing is done or reported before that. Only if the journal `holds`.
        """

    def nested(self, path: StepPath) -> Callable[[], Sequence[StepResult]] | None:
        """Return a reader of nested results, or None without a store."""

    def settled_items(self, path: StepPath) -> SettledItems | None:
        """Return the left out items of a map, or None."""

    def forget(self, result: StepResult) -> None:
        """Forget a nested result that its parent does not hold any more."""

    async def begin(self, step_name: str) -> OpenTransaction:
        """Return a transaction for a step that requests one."""


class TurnRecords(Protocol):
    """Records of loops with `keep_history`."""

    def turns(self, loop: StepPath) -> LoopTurns | None:
        """Return a loop's state after its last compacted turn, or None."""

    def compact(self, turns: LoopTurns, next_guard: object) -> None:
        """Compact the loop when its next turn succeeds; called before that turn.

        `next_guard` is the history of the guard before that turn, as JSON data.
        """


class QuestionRecords(Protocol):
    """Records of pauses and their answers."""

    @property
    def asks(self) -> bool:
        """Return whether the run has an open or answered pause."""

    def answered(self, path: StepPath) -> PauseAnswer | None:
        """Return the answer given to the pause at `path`."""

    def times_answered(self, path: StepPath) -> int:
        """Return the number of answered pauses at `path`."""

    def waiting(self, path: StepPath) -> Pause | None:
        """Return the unanswered pause at `path`, or None."""

    async def paused(self, pause: Pause) -> None:
        """Remember that a step waits; from then on it can be answered."""

    def is_wait(self, paused: Paused) -> bool:
        """Return whether a pause needs no person."""

    def question(self, paused: Paused) -> Paused | None:
        """Return the pause or another open one that asks a person."""

    async def wakes_at(self) -> float | None:
        """Return the earliest end of the open waits, or None."""


class UnitRecords(Protocol):
    """Records of granular units."""

    def unit(self, path: StepPath) -> KeptUnit | None:
        """Return a model turn or tool call that is done."""

    async def intend(self, path: StepPath, intent: str) -> bool:
        """Record a unit before its start; return whether it was intended before.

        This consumes an answer about the unit, if there is one: its new end is another matter.
        """

    def intents(self, step: StepPath) -> list[tuple[StepPath, str]]:
        """Return a granular step's started units with their intents."""

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        """Record the result of a unit."""

    @property
    def store(self) -> Store | None:
        """Return the store of the run, if any."""

    @property
    def steering(self) -> SteeringInbox | None:
        """Return the messages to granular steps; `None` without a store for them."""


class ChoiceRecords(Protocol):
    """Records of selections."""

    def chosen(self, path: StepPath) -> str | None:
        """Return a selection's choice as JSON text, or None."""

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        """Record a selection's choice before use; `choice` encodes on demand."""


class RunRecords(Protocol):
    """Records of the run as a whole."""

    durable: bool
    """Whether a store backs it."""

    holds: bool
    """Whether it can keep a record until the next one is written."""

    cancelled: str | None
    """Reason of a cancellation, after which the run is compensated."""

    @property
    def lapsed(self) -> bool:
        """Return whether the lease has expired; then `confirm` before effects."""

    async def confirm(self) -> None:
        """Return once the store confirmed ownership; else raise `LeaseLost`."""

    async def cancel(self, reason: str) -> None:
        """Remember that the run goes no further."""

    def raised(self, owner: str) -> Mapping[str, Any]:
        """Return the raised limits of the run, a step or a window."""

    @property
    def times(self) -> ElapsedTime:
        """Return the work times, where time is limited."""


class Journal(StepRecords, TurnRecords, QuestionRecords, UnitRecords, ChoiceRecords, RunRecords, Protocol):
    """Memory of one run; returned writes are as durable as its store."""


class LeaseHolder:
    """Right of a run to start effects while its lease lasts."""

    held: HeldLease | None = None
    """The lease while the run is worked on."""

    @property
    def lapsed(self) -> bool:
        """Return whether the lease has expired; then `confirm` before effects."""
        return self.held is not None and self.held.lapsed

    async def confirm(self) -> None:
        """Return once the store renewed the lease; else raise `LeaseLost`."""
        if self.held is not None:
            await self.held.confirm()


class RaisedLimits:
    """Raised limits by owner."""

    __slots__ = ("_raised",)

    def __init__(self) -> None:
        self._raised: dict[str, dict[str, Any]] = {}

    def of(self, owner: str) -> Mapping[str, Any]:
        """Return the raised limits of a run, a step or a window."""
        return self._raised.get(owner, {})

    def merge(self, answered: PauseAnswer) -> None:
        """Keep the limits of an answer, if it sets any."""
        question = answered.pause.question
        if question is not None and answered.pause.is_about_limits:
            owner = question.facts["owner"]
            self._raised[owner] = {**self._raised.get(owner, {}), **policies.raised_by(answered.answer)}


# --- Elapsed time of a run and of steps with a timeout ------------------------------------------------------------


class ElapsedTime:
    """Running clocks, and their readings when they stopped."""

    __slots__ = ("_earlier", "_running")

    def __init__(self) -> None:
        self._earlier: dict[StepPath, float] = {}
        self._running: dict[StepPath, Callable[[], float]] = {}

    def of(self, path: StepPath) -> float:
        """Return the seconds worked at a path in earlier sessions."""
        return self._earlier.get(path, 0.0)

    def begin(self, path: StepPath, seconds: Callable[[], float]) -> None:
        """Start a clock read by `seconds`."""
        self._running[path] = seconds

    def end(self, path: StepPath) -> None:
        """Stop the clock of this session."""
        self._earlier[path] = self._running.pop(path)()

    def now(self) -> dict[str, float]:
        """Return the readings of all running clocks, for recording."""
        return {path: round(seconds(), 6) for path, seconds in self._running.items()}

    def restore(self, written: Mapping[str, float]) -> None:
        """Add recorded readings of an earlier session; values only grow."""
        for path, seconds in written.items():
            self._earlier[StepPath(path)] = max(seconds, self.of(StepPath(path)))
