"""The runs of one `Flujo`: where they are kept between being started, paused and ended."""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from .._core.outcomes import PipelineResult, RunId
from .._core.pause_tokens import parse_token
from ..errors import DeclarationError, Expired, InvalidAnswer, LeaseLost, NotPaused, RunExists, RunLeased, RunNotFound
from .journal import Journal, Pause
from .memory_journal import MemoryJournal

if TYPE_CHECKING:
    from .halt import Halt

REMEMBERED = 10_000
"""How many ended runs keep their id in memory."""


@attrs.frozen(kw_only=True, eq=False)
class OpenRun:
    """A run that this process works on: what it started from, and what it has done.

    Known by identity: whoever puts it away puts away what was opened, and no copy of it.
    """

    run_id: RunId
    data: object
    context: object
    journal: Journal
    resumed: bool = False
    deaths: int = 0
    """How many workers in a row have died over it without committing anything."""
    since: float | None = None
    """When this process asked for the run, by the trio run's clock, if it is to be counted from then."""


class NoAnswer(enum.Enum):
    """The type of `NO_ANSWER`."""

    NO_ANSWER = "no answer"


NO_ANSWER = NoAnswer.NO_ANSWER
"""Distinguishes a run that is resumed without an answer from one whose answer is `None`."""


class Hold:
    """The grip on an open run. Where it can be lost, the run is cancelled and `check` says so."""

    def __init__(self, halt: Halt | None = None) -> None:
        self.scope = trio.CancelScope()
        self.halt = halt
        """How the run can be told to end; `None` where nobody could."""
        self._lost: LeaseLost | None = None

    def lose(self, error: LeaseLost) -> None:
        """The run belongs to somebody else by now: stop it."""
        self._lost = error
        self.scope.cancel()

    def check(self) -> None:
        """Raise `LeaseLost` if the run was lost."""
        if self._lost is not None:
            raise self._lost


_FOR_GOOD = contextlib.nullcontext(Hold())
"""A run in memory cannot be lost: one hold does for all of them."""


class Runs(Protocol):
    """Where runs live. A run is open in one place at a time, until it is put back."""

    async def admit(self, run_id: RunId, data: object, context: object) -> OpenRun:
        """Begin a run; `RunExists` if its id is taken."""

    async def pause_at(self, token: str) -> Pause:
        """What waits for an answer behind a token; `NotPaused` if nothing does."""

    async def answer(self, token: str, answer: object, *, wait: bool) -> OpenRun:
        """Take an answer, once, and open the run when it has come to rest; `NotPaused` if it came too late.

        Unless it may `wait`, an answer to a run that is at work is not taken: `RunLeased`.
        """

    async def defer(self, token: str, decision: object, *, wait: bool) -> OpenRun:
        """As `answer`, for a decision that puts the question off: it is asked again, and has its full time."""

    async def expire(self) -> None:
        """End the questions whose time is over; their runs are among those left behind from then on."""

    async def next_due_s(self) -> float | None:
        """In how many seconds the next question runs out of time; `None` if none does."""

    async def reopen(self, run_id: RunId, *, wait: bool, cancel: str | None = None) -> OpenRun:
        """Open a run that a process left unfinished; `RunLeased` if somebody holds it, at once or after a `wait`.

        With a reason to `cancel` it, it goes no further: what it did is undone.
        """

    async def rest(self, run: OpenRun, result: PipelineResult) -> None:
        """Put a run away that has come to rest, before anybody is told; if it is paused, others may have it then.

        Called again with another result, it ends a run that rests at a pause, unless somebody has taken it up.
        """

    async def put_back(self, run: OpenRun) -> None:
        """This process stops working on the run; one that has not come to rest was interrupted."""

    async def left_behind(self) -> list[RunId]:
        """The runs that are not at rest: first those that a dead process left, last those that somebody holds."""

    def holding(self, run: OpenRun) -> AbstractContextManager[Hold]:
        """Keep the grip on a run while it is worked on."""


class Resting:
    """Puts one run away when it is told its result: one small object for each run, however long it waits."""

    __slots__ = ("_run", "_runs")

    def __init__(self, runs: Runs, run: OpenRun) -> None:
        self._runs, self._run = runs, run

    def __call__(self, result: PipelineResult) -> Awaitable[None]:
        return self._runs.rest(self._run, result)


def checked_id(run_id: str | None) -> RunId:
    """The id that a caller chose for a run, or a new one."""
    if run_id is None:
        return RunId(os.urandom(16).hex())
    if not isinstance(run_id, str) or not run_id:
        raise DeclarationError(f"run_id must be a non-empty text or None, not {run_id!r}")
    return RunId(run_id)


async def reopened(runs: Runs, token: str, *, wait: bool) -> OpenRun:
    """The run with this id; `InvalidAnswer` if it is the token of a pause, which wants an answer."""
    try:
        return await runs.reopen(RunId(token), wait=wait)
    except (RunNotFound, NotPaused):
        with contextlib.suppress(NotPaused):
            pause = await runs.pause_at(token)
            raise InvalidAnswer(
                f"{token!r} is the state_token of step {pause.step_name!r}, which asks {pause.paused.message!r}: the "
                "answer is missing, call resume(state_token, answer)"
            ) from None
        raise


class RunsInMemory:
    """Runs that live as long as the process.

    1. An id names one run for as long as it is remembered: all runs under way or paused, and the last `REMEMBERED`
       that ended.
    2. An answer is taken once, from the moment on at which somebody was asked; whoever comes second is told that the
       run is not paused.
    3. Whoever answers a run that is still at work waits for it to come to rest.
    4. A run that ends is forgotten but for its id; one that pauses keeps what it has done, and so does one that was
       interrupted after it had asked something: `reopen` goes on with it.
    """

    def __init__(self) -> None:
        self._resting: dict[RunId, OpenRun] = {}
        self._open: dict[RunId, OpenRun] = {}
        self._ended: OrderedDict[RunId, None] = OrderedDict()
        self._waiting: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []
        self._expired: dict[RunId, None] = {}
        """Runs with a question that time has ended, and that nobody has gone on with."""

    async def admit(self, run_id: RunId, data: object, context: object) -> OpenRun:
        if run_id in self._open or run_id in self._resting or run_id in self._ended:
            raise RunExists(f"a run with the id {run_id!r} exists already; choose another id, or resume it")
        run = self._open[run_id] = OpenRun(run_id=run_id, data=data, context=context, journal=MemoryJournal())
        return run

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        run = self._resting.get(run_id) or self._open.get(run_id)
        pause = None if run is None else run.journal.waiting(path)
        if pause is None or pause.paused.state_token != token:
            raise NotPaused(f"no run is paused at {token!r}: it was answered, it ended, or it never paused here")
        if pause.due_at is not None and pause.due_at <= time.time():
            raise Expired(f"the answer to step {pause.step_name!r} comes too late: its time is over")
        return pause

    async def answer(self, token: str, answer: object, *, wait: bool) -> OpenRun:
        await self.pause_at(token)
        run_id, path = parse_token(token)
        if not wait and run_id in self._open:
            raise RunLeased(f"run {run_id!r} is still at work here: answer when it has paused, or let this call wait")
        _journal_of(self._resting.get(run_id) or self._open[run_id]).answer(path, answer)
        await self._come_to_rest(run_id)
        return await self.reopen(run_id, wait=wait)

    async def defer(self, token: str, decision: object, *, wait: bool) -> OpenRun:
        pause = await self.pause_at(token)
        run_id, _ = parse_token(token)
        if not wait and run_id in self._open:
            raise RunLeased(f"run {run_id!r} is still at work here: answer when it has paused, or let this call wait")
        await _journal_of(self._resting.get(run_id) or self._open[run_id]).paused(_asked_again(run_id, pause))
        await self._come_to_rest(run_id)
        return await self.reopen(run_id, wait=wait)

    async def expire(self) -> None:
        now = time.time()
        for run in (*self._resting.values(), *self._open.values()):
            if _journal_of(run).asks and _journal_of(run).expire(now):
                self._expired[run.run_id] = None

    async def next_due_s(self) -> float | None:
        runs = (*self._resting.values(), *self._open.values())
        pauses = [each for run in runs if _journal_of(run).asks for each in _journal_of(run).questions.pauses.values()]
        due = [pause.due_at for pause in pauses if pause.due_at is not None]
        return min(due) - time.time() if due else None

    async def _come_to_rest(self, run_id: RunId) -> None:
        """Wait until the run is at work no more; another thread's loop may be the one that it works in."""
        while run_id in self._open:
            rested = trio.Event()
            self._waiting.append((trio.lowlevel.current_trio_token(), rested))
            if run_id in self._open:  # not if it came to rest just now, and has woken everybody
                await rested.wait()

    async def reopen(self, run_id: RunId, *, wait: bool, cancel: str | None = None) -> OpenRun:
        if run_id not in self._resting:
            raise NotPaused(f"no run {run_id!r} is waiting here: without a store, only a paused run can be resumed")
        self._expired.pop(run_id, None)
        run = attrs.evolve(self._resting.pop(run_id), resumed=True)
        _journal_of(run).begin_part()
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

    async def left_behind(self) -> list[RunId]:
        return [run_id for run_id in self._expired if run_id in self._resting]

    def holding(self, run: OpenRun) -> AbstractContextManager[Hold]:
        return _FOR_GOOD

    async def rest(self, run: OpenRun, result: PipelineResult) -> None:
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
            return  # whoever took it up since then has it
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


def _asked_again(run_id: RunId, pause: Pause) -> Pause:
    """The same question, put off: with another token."""
    from .deferring import asked_again, next_token  # what only runs with approvals need

    assert pause.question is not None
    question = asked_again(pause.question)
    token = next_token(run_id, pause.path, question, pause.paused.state_token or "")
    return attrs.evolve(pause, question=question, paused=attrs.evolve(pause.paused, state_token=token))


def _journal_of(run: OpenRun) -> MemoryJournal:
    assert isinstance(run.journal, MemoryJournal)
    return run.journal
