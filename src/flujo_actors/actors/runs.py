"""The runs of one `Flujo`: where they are kept between being started, paused and ended."""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs
import trio

from ..core.outcomes import PipelineResult, RunId
from ..core.tokens import parse_token
from ..errors import LeaseLost, NotPaused, RunExists
from .journal import Journal, MemoryJournal, Pause

REMEMBERED = 10_000
"""How many ended runs keep their id in memory."""


@attrs.frozen(kw_only=True, eq=False)
class OpenRun:
    """A run that this process works on: what it started from, and what it has done."""

    run_id: RunId
    data: Any
    context: Any
    journal: Journal
    resumed: bool = False


class NoAnswer(enum.Enum):
    """The type of `NO_ANSWER`."""

    NO_ANSWER = "no answer"


NO_ANSWER = NoAnswer.NO_ANSWER
"""Distinguishes a run that is resumed without an answer from one whose answer is `None`."""


class Hold:
    """The grip on an open run. Where it can be lost, the run is cancelled and `check` says so."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
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

    async def admit(self, run_id: RunId, data: Any, context: Any) -> OpenRun:
        """Begin a run; `RunExists` if its id is taken."""

    async def pause_at(self, token: str) -> Pause:
        """What waits for an answer behind a token; `NotPaused` if nothing does."""

    async def answer(self, token: str, answer: Any) -> OpenRun:
        """Take an answer, once, and open the run; `NotPaused` if it came too late."""

    async def reopen(self, run_id: RunId) -> OpenRun:
        """Open a run that a process left unfinished."""

    async def put_back(self, run: OpenRun, result: PipelineResult | None) -> None:
        """This process stops working on the run; without a result it was interrupted."""

    async def abandoned(self) -> list[RunId]:
        """The runs that a dead process left."""

    def holding(self, run: OpenRun) -> AbstractContextManager[Hold]:
        """Keep the grip on a run while it is worked on."""


class RunsInMemory:
    """Runs that live as long as the process.

    1. An id names one run for as long as it is remembered: all runs under way or paused, and the last `REMEMBERED`
       that ended.
    2. An answer is taken once; whoever comes second is told that the run is not paused.
    3. A run that ends is forgotten but for its id; one that pauses keeps what it has done.
    """

    def __init__(self) -> None:
        self._paused: dict[RunId, tuple[OpenRun, MemoryJournal]] = {}
        self._open: dict[RunId, MemoryJournal] = {}
        self._ended: OrderedDict[RunId, None] = OrderedDict()

    async def admit(self, run_id: RunId, data: Any, context: Any) -> OpenRun:
        if run_id in self._open or run_id in self._paused or run_id in self._ended:
            raise RunExists(f"a run with the id {run_id!r} exists already; choose another id, or resume it")
        journal = self._open[run_id] = MemoryJournal()
        return OpenRun(run_id=run_id, data=data, context=context, journal=journal)

    async def pause_at(self, token: str) -> Pause:
        run_id, path = parse_token(token)
        _, journal = self._paused.get(run_id, (None, None))
        pause = None if journal is None else journal.waiting(path)
        if pause is None or pause.paused.state_token != token:
            raise NotPaused(f"no run is paused at {token!r}: it was answered, it ended, or it never paused here")
        return pause

    async def answer(self, token: str, answer: Any) -> OpenRun:
        await self.pause_at(token)
        run_id, path = parse_token(token)
        run, journal = self._paused.pop(run_id)
        journal.answer(path, answer)
        self._open[run_id] = journal
        return attrs.evolve(run, resumed=True)

    async def reopen(self, run_id: RunId) -> OpenRun:
        if run_id not in self._paused:
            raise NotPaused(f"no run {run_id!r} is waiting here: without a store, only a paused run can be resumed")
        run, self._open[run_id] = self._paused.pop(run_id)
        return attrs.evolve(run, resumed=True)

    async def abandoned(self) -> list[RunId]:
        return []

    def holding(self, run: OpenRun) -> AbstractContextManager[Hold]:
        return _FOR_GOOD

    async def put_back(self, run: OpenRun, result: PipelineResult | None) -> None:
        journal = self._open.pop(run.run_id)
        if result is not None and result.status == "paused":
            self._paused[run.run_id] = (run, journal)
            return
        self._ended[run.run_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
