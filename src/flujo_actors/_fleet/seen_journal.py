"""The journal of a remote step, as whoever waits for it reads it: nothing is written to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .._core import record_bodies
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import Lease, Record
from .._core.usage import Usage
from .._durable.admissions import answer_schema_at, step_at
from .._durable.group_commit import writer_for
from .._durable.journal import KeptUnit, Pause, Recorded
from .._durable.store_journal import StoreJournal
from .._durable.stored_runs import StoredRuns


class SeenJournal(StoreJournal):
    """What a remote step wrote; what is written to it is kept in memory, as far as somebody would read it."""

    def started(self, path: StepPath, name: str, of: int = 0) -> None:
        """Nothing begins."""

    async def settled(self, path: StepPath, record: Recorded) -> Recorded:
        return record

    async def paused(self, pause: Pause) -> None:
        """Nobody waits for an answer."""

    async def choose(self, path: StepPath, choice: Callable[[], str]) -> None:
        self._chosen[path] = choice()

    async def intend(self, path: StepPath, intent: str) -> bool:
        self._intents[path] = Record(kind="intent", path=path, body=record_bodies.make_body(intent=intent))
        return False

    async def commit_unit(self, path: StepPath, result: str, usage: Usage) -> None:
        self._units[path] = KeptUnit(result=result, usage=usage)


def seen_journal(runs: StoredRuns, child: RunId) -> SeenJournal:
    """A journal to read a remote step with."""
    return SeenJournal(
        runs.store,
        writer_for(runs.store, lease_s=runs.settings.lease_s),
        Lease(run_id=child, owner="", epoch=0),
        redact=runs.redact,
        schema_of=partial(answer_schema_at, runs.pipeline),
        step_at=partial(step_at, runs.pipeline),
    )
