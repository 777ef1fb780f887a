"""Run registry of one `Flujo`: started, paused and ended runs.

Sections:

- Stop requests for a running run.
- Journal of an in-memory run.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs
import trio

from .. import _durable
from .._core import seams, step_paths
from .._core.attempt_results import AttemptStopped
from .._core.labels import NO_LABELS, Labels
from .._core.outcomes import Aborted, Paused, PipelineResult, RunId, StepResult, TerminalOutcome
from .._core.records.pause_tokens import parse_token
from .._core.step_paths import StepPath
from .._core.usage import NO_USAGE, Usage
from ..errors import (
    DeclarationError,
    Expired,
    InvalidAnswer,
    LeaseLost,
    NotPaused,
    RunExists,
    RunLeased,
    RunNotFound,
    StoreError,
)
from .journal import (
    CountedUnits,
    ElapsedTime,
    Journal,
    KeptUnit,
    OpenTransaction,
    Pause,
    PauseAnswer,
    RaisedLimits,
    Recorded,
)

if TYPE_CHECKING:
    from .._core.failure_info import Cause
    from .._core.records.run_state import LoopTurns, RetryRecord


# --- Stop requests for a running run ------------------------------------------------------------------------------


T = TypeVar("T")


class StopRequest:
    """Cancel the steps of one run on request."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        """Around the steps."""
        self._reason: str | None = None
        self._undoes = True

    @property
    def end_reason(self) -> str | None:
        """Return the reason to end and compensate the run, or None."""
        return self._reason if self._undoes else None

    def now(self, reason: str, *, undoes: bool = True) -> None:
        """Cancel the steps; the first reason counts."""
        if self._reason is None:
            self._reason, self._undoes = reason, undoes
            self.scope.cancel()

    @property
    def stopped(self) -> AttemptStopped | None:
        """Return the result of stopped steps, or None without a request."""
        if self._reason is None:
            return None
        return AttemptStopped(outcome=Aborted(reason=self._reason), undoes=self._undoes)

    async def unless_requested(self, work: Callable[[], Awaitable[T]]) -> T | AttemptStopped:
        """Return the work's or stop's result; skip it after a request."""
        if self.stopped is None:
            with self.scope:
                return await work()
        assert self.stopped is not None
        return self.stopped


# --- Journal of an in-memory run ----------------------------------------------------------------------------------


class Questions:
    """Pauses and answers of an in-memory run."""

    __slots__ = ("answered", "answers", "pauses", "raised")

    def __init__(self) -> None:
        self.raised = RaisedLimits()
        self.pauses: dict[StepPath, Pause] = {}
        self.answers: dict[StepPath, PauseAnswer] = {}
        self.answered: Counter[StepPath] = Counter()

    def drop(self, path: StepPath) -> None:
        """Close the pauses inside a step that settled or failed an attempt."""
        for each in step_paths.withdrawn_by(path, self.pauses):
            del self.pauses[each]


class UnitsInMemory:
    """The model turns and tool calls of a run in memory."""

    __slots__ = ("counted", "done", "intended")

    def __init__(self) -> None:
        self.intended: dict[StepPath, str] = {}
        self.done: dict[StepPath, KeptUnit] = {}
        self.counted = CountedUnits()


class MemoryJournal:
    """Journal for the life of the process, by reference.

    A program has thousands of runs at a time, few of which pause or have units: their tables are made on demand.
    """

    __slots__ = (
        "_causes", "_chosen", "_contexts", "_left", "_questions", "_settled", "_times", "_turns", "_units", "cancelled",
    )  # fmt: skip
    durable = holds = lapsed = False
    steering = store = None

    def __init__(self) -> None:
        self._times: ElapsedTime | None = None
        self._chosen: dict[StepPath, Callable[[], str]] | None = None
        self._settled: dict[StepPath, TerminalOutcome] = {}
        self._contexts: dict[StepPath, object] = {}
        """Contexts of settled steps that changed theirs."""
        self.cancelled: str | None = None
        self._left: dict[StepPath, Sequence[object]] | None = None
        """Compensation entries of settled steps; few runs have any."""
        self._causes: dict[StepPath, Cause] | None = None
        """Failures of attempts and pipelines, in runs with handlers."""
        self._questions: Questions | None = None
        self._units: UnitsInMemory | None = None
        self._turns: dict[StepPath, LoopTurns] | None = None

    async def confirm(self) -> None:
        """A run in memory has no other owner."""

    @property
    def questions(self) -> Questions:
        """Return the table of pauses."""
        if self._questions is None:
            self._questions = Questions()
        return self._questions

    @property
    def units(self) -> UnitsInMemory:
        """Return the table of units."""
        if self._units is None:
            self._units = UnitsInMemory()
        return self._units

    @property
    def times(self) -> ElapsedTime:
        """Return the clocks."""
        if self._times is None:
            self._times = ElapsedTime()
        return self._times

    def chosen(self, path: StepPath) -> str | None:
        written = None if self._chosen is None else self._chosen.get(path)
        return None if written is None else written()

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        self._chosen = self._chosen or {}
        self._chosen[path] = choice

    def raised(self, owner: str) -> Mapping[str, Any]:
        return {} if self._questions is None else self._questions.raised.of(owner)

    def unit(self, path: StepPath) -> KeptUnit | None:
        return self.units.done.get(path)

    async def intend(self, path: StepPath, intent: str) -> bool:
        before = path in self.units.intended
        self.units.intended.setdefault(path, intent)
        self.questions.answers.pop(path, None)
        return before

    def intents(self, step: StepPath) -> list[tuple[StepPath, str]]:
        begun = {} if self._units is None else self._units.intended
        return [(path, begun[path]) for path in step_paths.at_or_below(step, begun)]

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

    def turns(self, loop: StepPath) -> LoopTurns | None:
        return None if self._turns is None else self._turns.get(loop)

    def compact(self, turns: LoopTurns, next_guard: object) -> None:
        self._turns = self._turns or {}
        if turns.turn:
            self._turns[turns.loop] = turns
            _durable.forget_turns((self._settled, self._contexts), turns.loop, up_to=turns.turn)

    def compensations(self) -> Iterable[tuple[StepPath, TerminalOutcome]]:
        return [
            (path, outcome) for path, outcome in self._settled.items() if step_paths.compensated_by(path) is not None
        ]

    def answered(self, path: StepPath) -> PauseAnswer | None:
        return self.questions.answers.get(path)

    def times_answered(self, path: StepPath) -> int:
        return self.questions.answered[path]

    def waiting(self, path: StepPath) -> Pause | None:
        return self.questions.pauses.get(path)

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        pass

    def keep(self, path: StepPath, outcome: TerminalOutcome, undo: Sequence[object] = ()) -> None:
        """Record the end of a step with an unchanged context, without waiting."""
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
        """Record the failure of a step that its outcome does not show."""
        if cause is not None:
            self._causes = self._causes or {}
            self._causes[path] = cause

    def nested(self, path: StepPath) -> None:
        return None

    settled_items = nested

    def forget(self, result: StepResult) -> None:
        """Do nothing: no result is kept."""

    async def begin(self, step_name: str) -> OpenTransaction:
        raise StoreError(f"step {step_name!r} asks for a transaction, but the run has no store")

    async def paused(self, pause: Pause) -> None:
        if pause.question is not None and pause.question.timeout_s is not None:
            pause = attrs.evolve(pause, due_at=seams.clock.time() + pause.question.timeout_s)
        self.questions.pauses[pause.path] = pause
        self.questions.answers.pop(pause.path, None)  # an earlier answer belongs to another pause

    def is_wait(self, paused: Paused) -> bool:
        return False  # waits pass in process

    def question(self, paused: Paused) -> Paused | None:
        return paused

    async def wakes_at(self) -> float | None:
        return None

    async def cancel(self, reason: str) -> None:
        self.cancelled = self.cancelled or reason
        questions = self.questions
        questions.pauses = {path: each for path, each in questions.pauses.items() if step_paths.is_undoing(path)}

    @property
    def asks(self) -> bool:
        """Return whether the run has paused: it may continue with an answer."""
        return self._questions is not None and bool(self._questions.pauses or self._questions.answers)

    def answer(self, path: StepPath, answer: object) -> None:
        """Keep the answer to a pause for the next session."""
        questions = self.questions
        questions.answers[path] = PauseAnswer(pause=questions.pauses.pop(path), answer=answer)
        questions.raised.merge(questions.answers[path])
        questions.answered[path] += 1

    def expire(self, now: float) -> bool:
        """End the timed-out pauses; return whether there were any."""
        questions = self.questions
        over = [path for path, pause in questions.pauses.items() if pause.due_at is not None and pause.due_at <= now]
        for path in over:
            questions.answers[path] = PauseAnswer(pause=questions.pauses.pop(path), answer=None, expired=True)
        return bool(over)

    def begin_session(self) -> None:
        """Begin a session: earlier work belongs to an earlier one."""
        units = self.units
        units.done = {each: attrs.evolve(unit, counted=each in units.counted) for each, unit in units.done.items()}


# --- Run registry of one `Flujo`: started -------------------------------------------------------------------------


NOTHING_CARRIED: Mapping[str, object] = MappingProxyType({})

REMEMBERED = 10_000
"""Number of ended runs whose id is kept in memory."""


@attrs.frozen(kw_only=True, eq=False)
class OpenRun:
    """Run of this process: its start and its journal.

    Compared by identity: the opened object itself is put back, never a copy.
    """

    run_id: RunId
    data: object
    context: object
    journal: Journal
    resumed: bool = False
    deaths: int = 0
    """Number of consecutive worker deaths without a commit."""
    carried: Mapping[str, object] = NOTHING_CARRIED
    """Values of context variables from the process that submitted the run."""
    retry: RetryRecord | None = None
    """Retry that begins with this session."""
    dropped_usage: Usage = NO_USAGE
    """Usage of attempts that retries have dropped."""
    key_id: RunId | None = None
    """Run id in idempotency keys, changed by retries from the start."""
    since: float | None = None
    """Claim time by the trio clock, if the lease counts from then."""
    labels: Labels = NO_LABELS
    key: str = ""
    """Key of the run in its queue."""


class NotDue(NotPaused):
    """The run sleeps, and its time has not come."""

    def __init__(self, run_id: RunId, wake_at: float | None) -> None:
        super().__init__(f"run {run_id!r} sleeps, and is not due")
        self.run_id, self.wake_at = run_id, wake_at

    @property
    def result(self) -> PipelineResult:
        """Return the run as its caller sees it."""
        return PipelineResult(run_id=self.run_id, status="sleeping", wakes_at=self.wake_at)


class NoAnswer(enum.Enum):
    """The type of `NO_ANSWER`."""

    NO_ANSWER = "no answer"


NO_ANSWER = NoAnswer.NO_ANSWER
"""Marker of a resume without an answer, distinct from the answer `None`."""


class LeaseHold:
    """Hold of an open run; its loss cancels the run."""

    def __init__(self, halt: StopRequest | None = None) -> None:
        self.scope = trio.CancelScope()
        self.halt = halt
        """Stop request of the run; `None` if it cannot be stopped."""
        self._lost: LeaseLost | None = None

    def revoke(self, error: LeaseLost) -> None:
        """Stop the run: another owner has claimed it."""
        self._lost = error
        self.scope.cancel()

    def check(self) -> None:
        """Raise `LeaseLost` if the run was lost."""
        if self._lost is not None:
            raise self._lost


_FOR_GOOD = contextlib.nullcontext(LeaseHold())
"""Shared hold of in-memory runs, which cannot be lost."""


class RunRegistry(Protocol):
    """Registry of runs, each open in one place at a time."""

    async def admit(self, run_id: RunId, data: object, context: object, labels: Labels = NO_LABELS) -> OpenRun:
        """Begin a run; `RunExists` if its id is taken."""

    async def pause_at(self, token: str) -> Pause:
        """Return the open pause of a token, or raise `NotPaused`."""

    async def answer(self, token: str, answer: object, *, wait: bool) -> OpenRun:
        """Accept an answer once, and open the run when it has paused.

        Raise `NotPaused` if it came too late. Without `wait`, an answer to a running run raises `RunLeased`.
        """

    async def defer(self, token: str, decision: object, *, wait: bool) -> OpenRun:
        """Accept a deferral: the pause reopens with its full timeout."""

    async def expire(self) -> None:
        """End the timed-out pauses; their runs become recoverable."""

    async def next_due_s(self) -> float | None:
        """Return the seconds until the next pause timeout, or None."""

    async def reopen(self, run_id: RunId, *, wait: bool, cancel: str | None = None) -> OpenRun:
        """Open an unfinished run; raise `RunLeased` if held after `wait`.

        With a reason to `cancel`, it does not continue: its work is compensated.
        """

    async def put_away(self, run: OpenRun, result: PipelineResult) -> None:
        """Put away an ended or paused run, before its result is reported.

        A second call with another result ends a paused run, unless it was resumed meanwhile.
        """

    async def put_back(self, run: OpenRun) -> None:
        """Stop working on the run; an unfinished one was interrupted."""

    async def claim_abandoned(self, run_ids: Sequence[RunId]) -> dict[RunId, Callable[[], Awaitable[OpenRun]]]:
        """Claim the available ones of these runs at once; return their openers."""

    async def abandoned(self) -> list[RunId]:
        """Return unfinished runs: those of dead processes first, held ones last."""

    def lease_hold(self, run: OpenRun) -> AbstractContextManager[LeaseHold]:
        """Keep the grip on a run while it is worked on."""


class RunRelease:
    """Put one run away with its result: one small object per run."""

    __slots__ = ("_run", "_runs")

    def __init__(self, runs: RunRegistry, run: OpenRun) -> None:
        self._runs, self._run = runs, run

    def __call__(self, result: PipelineResult) -> Awaitable[None]:
        return self._runs.put_away(self._run, result)


def checked_id(run_id: str | None) -> RunId:
    """Return the caller's run id, or a new one."""
    if run_id is None:
        return RunId(seams.random_bytes(16).hex())
    if not isinstance(run_id, str) or not run_id:
        raise DeclarationError(f"run_id must be a non-empty text or None, not {run_id!r}")
    return RunId(run_id)


async def reopened(runs: RunRegistry, token: str, *, wait: bool) -> OpenRun | PipelineResult:
    """Return this run; raise `InvalidAnswer` for an unanswered pause token.

    A run that sleeps and is not due is returned as a result.
    """
    try:
        return await runs.reopen(RunId(token), wait=wait)
    except NotDue as asleep:
        return asleep.result
    except (RunNotFound, NotPaused):
        with contextlib.suppress(NotPaused):
            pause = await runs.pause_at(token)
            raise InvalidAnswer(
                f"{token!r} is the state_token of step {pause.step_name!r}, which asks {pause.paused.message!r}: the "
                "answer is missing, call resume(state_token, answer)"
            ) from None
        raise


class MemoryRunRegistry:
    """Registry of in-memory runs.

    1. An id names one run while it is remembered: all running or paused runs, and the last `REMEMBERED`
       that ended.
    2. An answer is accepted once, from the start of the pause; a second one gets `NotPaused`.
    3. An answer to a run that is still running waits for its pause.
    4. An ended run is forgotten except for its id; a paused one keeps its work, and so does one that was
       interrupted after a pause: `reopen` resumes it.
    """

    def __init__(self) -> None:
        self._resting: dict[RunId, OpenRun] = {}
        self._open: dict[RunId, OpenRun] = {}
        self._ended: OrderedDict[RunId, None] = OrderedDict()
        self._waiting: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []
        self._expired: dict[RunId, None] = {}
        """Runs with a timed-out pause that were not resumed."""

    async def admit(self, run_id: RunId, data: object, context: object, labels: Labels = NO_LABELS) -> OpenRun:
        if run_id in self._open or run_id in self._resting or run_id in self._ended:
            raise RunExists(f"a run with the id {run_id!r} exists already; choose another id, or resume it")
        journal = MemoryJournal()
        run = self._open[run_id] = OpenRun(run_id=run_id, data=data, context=context, journal=journal, labels=labels)
        return run

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        run = self._resting.get(run_id) or self._open.get(run_id)
        pause = None if run is None else run.journal.waiting(path)
        if pause is None or pause.paused.state_token != token:
            raise NotPaused(f"no run is paused at {token!r}: it was answered, it ended, or it never paused here")
        if pause.due_at is not None and pause.due_at <= seams.clock.time():
            raise Expired(f"the answer to step {pause.step_name!r} comes too late: its time is over")
        return pause

    async def answer(self, token: str, answer: object, *, wait: bool) -> OpenRun:
        await self.pause_at(token)
        run_id, path = parse_token(token)
        if not wait and run_id in self._open:
            raise RunLeased(f"run {run_id!r} is still running here: answer after its pause, or let this call wait")
        _journal_of(self._resting.get(run_id) or self._open[run_id]).answer(path, answer)
        await self._wait_until_settled(run_id)
        return await self.reopen(run_id, wait=wait)

    async def defer(self, token: str, decision: object, *, wait: bool) -> OpenRun:
        pause = await self.pause_at(token)
        run_id, _ = parse_token(token)
        if not wait and run_id in self._open:
            raise RunLeased(f"run {run_id!r} is still running here: answer after its pause, or let this call wait")
        await _journal_of(self._resting.get(run_id) or self._open[run_id]).paused(_requested_again(run_id, pause))
        await self._wait_until_settled(run_id)
        return await self.reopen(run_id, wait=wait)

    async def expire(self) -> None:
        now = seams.clock.time()
        for run in (*self._resting.values(), *self._open.values()):
            if _journal_of(run).asks and _journal_of(run).expire(now):
                self._expired[run.run_id] = None

    async def next_due_s(self) -> float | None:
        runs = (*self._resting.values(), *self._open.values())
        pauses = [each for run in runs if _journal_of(run).asks for each in _journal_of(run).questions.pauses.values()]
        due = [pause.due_at for pause in pauses if pause.due_at is not None]
        return min(due) - seams.clock.time() if due else None

    async def _wait_until_settled(self, run_id: RunId) -> None:
        """Wait until the run has paused or ended, in any thread."""
        while run_id in self._open:
            rested = trio.Event()
            self._waiting.append((trio.lowlevel.current_trio_token(), rested))
            if run_id in self._open:  # not if it just paused and woke all waiters
                await rested.wait()

    async def reopen(self, run_id: RunId, *, wait: bool, cancel: str | None = None) -> OpenRun:
        if run_id not in self._resting:
            raise NotPaused(f"no run {run_id!r} is waiting here: without a store, only a paused run can be resumed")
        self._expired.pop(run_id, None)
        run = attrs.evolve(self._resting.pop(run_id), resumed=True)
        _journal_of(run).begin_session()
        if cancel is not None:
            await run.journal.cancel(cancel)
        self._open[run_id] = run
        return run

    def forget(self, run_id: RunId) -> bool:
        """Drop a run that rests; whether there was one."""
        if self._resting.pop(run_id, None) is None:
            return False
        self._remember(run_id)
        return True

    async def claim_abandoned(self, run_ids: Sequence[RunId]) -> dict[RunId, Callable[[], Awaitable[OpenRun]]]:
        return {}  # nothing to claim: no other process has them

    async def abandoned(self) -> list[RunId]:
        return [run_id for run_id in self._expired if run_id in self._resting]

    def lease_hold(self, run: OpenRun) -> AbstractContextManager[LeaseHold]:
        return _FOR_GOOD

    async def put_away(self, run: OpenRun, result: PipelineResult) -> None:
        if self._resting.get(run.run_id) is run:
            del self._resting[run.run_id]
            self._remember(run.run_id)
        else:
            self._put_away(run, keep=result.status == "paused")

    async def put_back(self, run: OpenRun) -> None:
        if self._open.get(run.run_id) is run:
            self._put_away(run, keep=_journal_of(run).asks)

    def _put_away(self, run: OpenRun, *, keep: bool) -> None:
        if self._open.get(run.run_id) is not run:
            return  # it was resumed since then
        if keep:
            self._resting[run.run_id] = run
        else:
            self._remember(run.run_id)
        del self._open[run.run_id]
        if self._waiting:
            self._wake()

    def _remember(self, run_id: RunId) -> None:
        self._ended[run_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for token, rested in waiting:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(rested.set)


def _requested_again(run_id: RunId, pause: Pause) -> Pause:
    """Return the deferred pause with another token."""
    assert pause.question is not None
    question = _durable.requested_again(pause.question)
    token = _durable.next_token(run_id, pause.path, question, pause.paused.state_token or "")
    return attrs.evolve(pause, question=question, paused=attrs.evolve(pause.paused, state_token=token))


def _journal_of(run: OpenRun) -> MemoryJournal:
    assert isinstance(run.journal, MemoryJournal)
    return run.journal
