"""One run of a store in memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import Append, CancelRequest, Lease, OpenPause, Record, StoredRun, StoredStatus, has_ended
from ._rows import cursor_text


@attrs.define(kw_only=True, eq=False)
class _Pause:
    """A pause, and whether it still waits."""

    asked: OpenPause
    answered: bool = False
    expired: bool = False
    """Whether time consumed it."""

    def is_over(self, wall: float) -> bool:
        return self.expired or (self.asked.due_at is not None and self.asked.due_at <= wall)


@attrs.define(kw_only=True, eq=False)
class MemoryRun:
    """All that is known of one run."""

    run_id: RunId
    pipeline: str
    owner: str | None
    epoch: int
    lease_until: float
    created_at: float
    updated_at: float
    status: StoredStatus = "running"
    records: list[Record] = attrs.Factory(list)
    pauses: list[_Pause] = attrs.Factory(list)
    cancel: CancelRequest | None = None
    queue: str | None = None
    parent: RunId | None = None
    number: int = 0
    """Which run of the store it is."""
    tokens: int = 0
    cost_usd: float = 0.0
    expired: bool = False

    def held(self, now: float) -> bool:
        return self.owner is not None and now < self.lease_until

    def belongs_to(self, lease: Lease) -> bool:
        return self.owner == lease.owner and self.epoch == lease.epoch

    def add(self, record: Record, wall: float) -> None:
        self.records.append(attrs.evolve(record, seq=len(self.records) + 1, at=wall))

    def ask(self, pause: OpenPause, wall: float) -> None:
        due_at = None if pause.timeout_s is None else wall + pause.timeout_s
        self.pauses = [old for old in self.pauses if not _replaced(old, pause)]
        self.pauses.append(_Pause(asked=attrs.evolve(pause, due_at=due_at)))

    def withdraw(self, places: Sequence[StepPath]) -> None:
        self.pauses = [pause for pause in self.pauses if pause.answered or pause.asked.path not in places]

    def stored(self, now: float) -> StoredRun:
        return StoredRun(
            run_id=self.run_id,
            pipeline=self.pipeline,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            epoch=self.epoch,
            leased=self.held(now),
            records=len(self.records),
            pauses=tuple(pause.asked for pause in self.pauses if not pause.answered),
            expired=self.expired,
            owner=self.owner if self.held(now) else None,
            left_s=self.lease_until - now if self.held(now) else None,
            queue=self.queue,
            parent=self.parent,
            last_owner=self.owner,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            cursor=cursor_text(self.updated_at, self.number),
        )

    def wants_worker(self, now: float, host: str) -> bool:
        if self.status == "paused":
            ready = self.expired or all(pause.answered for pause in self.pauses)
            return self.parent is None and not self.held(now) and ready
        return self.status == "running" and (not self.held(now) or (self.owner or "").startswith(host))


def _replaced(old: _Pause, new: OpenPause) -> bool:
    return old.asked.path == new.path and (not old.answered or old.asked.token == new.token)


def expire(run: MemoryRun, wall: float, body: str) -> bool:
    """End the questions of a run whose time is over; whether there were any."""
    due = [pause for pause in run.pauses if not pause.answered and pause.is_over(wall)]
    for pause in due:
        pause.answered = pause.expired = run.expired = True
        run.updated_at = wall
        run.add(Record(kind="answered", path=pause.asked.path, body=body), wall)
    return bool(due)


def change(run: MemoryRun, append: Append, wall: float) -> None:
    """What an append changes of a run besides its records."""
    run.updated_at = wall
    run.status = append.status or run.status
    run.tokens = run.tokens if append.tokens is None else append.tokens
    run.cost_usd = run.cost_usd if append.cost_usd is None else append.cost_usd
    run.expired = run.expired and append.status != "running"
    if has_ended(append.status):
        run.pauses = [pause for pause in run.pauses if pause.answered]
    if has_ended(append.status):
        run.cancel = None
    if append.release:
        run.owner = None
