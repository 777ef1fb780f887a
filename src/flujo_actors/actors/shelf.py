"""The runs of one `Flujo` that live in memory: those under way, and those that wait for an answer.

Rules:

1. An id names one run for as long as the shelf remembers it: all runs under way or paused, and the last
   `REMEMBERED` that ended.
2. An answer is taken once; whoever comes second is told that the run is not paused.
3. A run that ends is forgotten but for its id; one that pauses keeps what it has done.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import attrs

from ..core.outcomes import PipelineResult, RunId
from ..core.tokens import parse_token
from ..errors import NotPaused, RunExists
from .journal import MemoryJournal, Pause

REMEMBERED = 10_000
"""How many ended runs keep their id."""


@attrs.frozen(kw_only=True, eq=False)
class ShelvedRun:
    """A run with what it started from and what it has done."""

    run_id: RunId
    data: Any
    context: Any
    journal: MemoryJournal = attrs.field(factory=MemoryJournal)


class Shelf:
    """Where the runs of one `Flujo` are kept; see the module's rules."""

    def __init__(self) -> None:
        self._runs: dict[RunId, ShelvedRun] = {}
        self._busy: set[RunId] = set()
        self._ended: OrderedDict[RunId, None] = OrderedDict()

    def admit(self, run: ShelvedRun) -> None:
        """Take a new run; `RunExists` if its id is taken."""
        if run.run_id in self._runs or run.run_id in self._ended:
            raise RunExists(f"a run with the id {run.run_id!r} exists already; choose another id, or resume it")
        self._runs[run.run_id] = run
        self._busy.add(run.run_id)

    def find_pause(self, token: str) -> Pause:
        """The pause behind a token, if it still waits for an answer."""
        run_id, path = parse_token(token)
        run = self._runs.get(run_id)
        pause = None if run is None or run_id in self._busy else run.journal.waiting(path)
        if pause is None:
            raise NotPaused(f"no run is paused at {token!r}: it was answered, it ended, or it never paused here")
        return pause

    def answer(self, token: str, answer: Any) -> ShelvedRun:
        """Take the answer to a pause and hand out the run to be continued."""
        self.find_pause(token)
        run_id, path = parse_token(token)
        run = self._runs[run_id]
        run.journal.answer(path, answer)
        self._busy.add(run_id)
        return run

    def put_back(self, run: ShelvedRun, result: PipelineResult | None) -> None:
        """The run stopped running: keep it if it is paused, else keep its id."""
        self._busy.discard(run.run_id)
        if result is not None and result.status == "paused":
            return
        del self._runs[run.run_id]
        self._ended[run.run_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
