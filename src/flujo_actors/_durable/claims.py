"""Claims and failover: wait for a lease, or replace dead owners.

Rules:

1. A run that is free, or held by a provably dead owner, is claimed at once.
2. Otherwise the claim waits as long as the lease lasted when it was first seen, if the caller waits at all. A lease
   still held then was renewed: its owner lives, and the caller gets an error instead of waiting forever.
3. A run of this very process is not waited for, except for the time of its cleanup.
   A caller that answered one of its pauses waits without a limit: the run is about to pause.
4. A waiting claim polls: a run may end, be released, or lose its owner before its lease expires.

Sections:

- Recovery of runs left by other processes: concurrent and independent.
- Background recovery of abandoned runs and timed-out pauses.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

import attrs
import trio

from .._bridge.host_loop import Host, current_host
from .._core import seams
from .._core.error_info import message_of
from .._core.outcomes import PipelineResult, RunId
from .._core.records.records import (
    RETRYABLE,
    AbandonedRun,
    Append,
    ClaimedRun,
    Lease,
    RecoveryReport,
    StoredRun,
    has_ended,
)
from ..errors import ControlError, FlujoError, NotPaused, RunEnded, RunLeased
from ..stores import _record_rows as record_rows
from ..stores._store_port import Store
from . import long_runs
from .connection_lock import refuse_inside_borrower
from .leases import Fate, liveness_from_here, new_owner, process_of
from .run_registry import NotDue, OpenRun, RunRegistry
from .store_executor import call_store

LOOK_AGAIN_S = 0.5
"""Poll interval of a waiting claim."""

_CLEANUP_S = 1.0
"""Time for a run of this process to be released."""

owned_here: set[Lease] = set()
"""Runs of this process, in all its threads."""

logger = logging.getLogger("flujo_actors")


def refuse_run_inside_borrower(store: Store, run_id: RunId) -> None:
    """Raise `StoreError` for a run inside a step's exclusive transaction."""
    refuse_inside_borrower(store, f"run {run_id!r} begins")


def refuse_if_asleep(store: Store, run: StoredRun) -> None:
    """`NotDue` if the run sleeps and its time has not come. Blocks."""
    if run.is_asleep and (run.wake_at is None or run.wake_at > store.now()):
        raise NotDue(run.run_id, run.wake_at)


async def claimed(
    store: Store, run_id: RunId, *, lease_s: float, wait: bool, answered: bool = False, early: bool = False
) -> tuple[Lease, float]:
    """Return an unfinished run's lease and request time (module rules)."""
    patience = _ClaimWait(run_id, lease_s if wait else 0.0, until_rest=wait and answered)
    while True:
        try:
            run = await call_store(lambda: store.get(run_id))
            if run.is_asleep and not early:
                await call_store(functools.partial(refuse_if_asleep, store, run))
            claim, since = functools.partial(granted, store, run, lease_s), trio.current_time()
            return await call_store(claim, if_left=functools.partial(release_run, store)), since
        except RunLeased as refused:
            await patience.outlast(refused)


def claim_now(store: Store, run_id: RunId, *, lease_s: float) -> Lease:
    """Return the lease of a free or dead-owned run; blocks."""
    return granted(store, store.get(run_id), lease_s)


def granted(store: Store, run: StoredRun, lease_s: float, per_key: int | None = None) -> Lease:
    """Claim a run in this state; raise `RunLeased` or `NotPaused`. Blocks."""
    refuse_if_ended(run)
    if not can_be_had(store, run):
        raise record_rows.leased(run.run_id, run.owner, run.left_s)
    limit: dict[str, Any] = {} if per_key is None else {"per_key": per_key}
    if run.owner is not None:
        return store.take_over(run.run_id, dead=run.owner, owner=new_owner(), lease_s=lease_s, **limit)
    return store.claim(run.run_id, owner=new_owner(), lease_s=lease_s, **limit)


async def refuse_if_held(store: Store, run_id: RunId) -> None:
    """`RunLeased` if the run cannot be had now."""
    run = await call_store(lambda: store.get(run_id))
    if not can_be_had(store, run):
        raise explained(run_id, record_rows.leased(run_id, run.owner, run.left_s))


def release_run(store: Store, lease: Lease) -> None:
    """Release a run; blocks."""
    store.append([Append(lease=lease, records=(), release=True)])


def release_runs(store: Store, taken: Sequence[ClaimedRun]) -> None:
    """Release the runs of a claim; blocks."""
    store.append([Append(lease=each.lease, records=(), release=True) for each in taken])


def claim_abandoned(store: Store, run_ids: Sequence[RunId], lease_s: float) -> list[ClaimedRun]:
    """Claim the available ones of these runs at once. Blocks."""
    found = store.look(run_ids)
    runs = [found[run_id] for run_id in run_ids if run_id in found]
    short = (run for run in runs if run.records <= long_runs.LONG_RUN)  # a long one is opened alone, and read in parts
    free = [run for run in short if not has_ended(run.status) and can_be_had(store, run)]
    return store.claim_all(free, owner=new_owner(), lease_s=lease_s) if free else []


def can_be_had(store: Store, run: StoredRun) -> bool:
    """Return whether the run is unowned or its owner is dead."""
    return not run.leased or (hasattr(store, "take_over") and liveness_from_here(run.owner) == "dead")


def refuse_if_ended(run: StoredRun) -> None:
    """`NotPaused` if the run is over."""
    if has_ended(run.status):
        again = f"; retry it with RunClient.retry({run.run_id!r})" if run.status in RETRYABLE else ""
        raise RunEnded(
            f"run {run.run_id!r} has ended as {run.status}; there is nothing left to resume or to cancel{again}"
        )


class _ClaimWait:
    """Wait time for one run."""

    def __init__(self, run_id: RunId, most_s: float, *, until_rest: bool = False) -> None:
        self._run_id, self._most_s, self._until_rest = run_id, most_s, until_rest
        self._until: float | None = None

    async def outlast(self, refused: RunLeased) -> None:
        """Wait for one interval; raise the caller's error after the limit."""
        now = trio.current_time()
        if self._until is None:
            self._until = now + self._wait_s(refused)
            if self._until > now:
                logger.warning("%s; waiting for it", held_by(self._run_id, refused))
        if self._until_rest:
            self._until = math.inf
        elif self._is_owned_here(refused):
            self._until = min(self._until, now + _CLEANUP_S)
        if now >= self._until:
            raise explained(self._run_id, refused, waited=self._most_s > 0) from None
        await trio.sleep(min(LOOK_AGAIN_S, self._until - now))

    def _wait_s(self, refused: RunLeased) -> float:
        """Return the lease time left plus a margin for renewals."""
        if not self._most_s:
            return 0.0
        return (self._most_s if refused.left_s is None else max(refused.left_s, 0.0)) + LOOK_AGAIN_S

    def _is_owned_here(self, refused: RunLeased) -> bool:
        return any((lease.run_id, lease.owner) == (self._run_id, refused.owner) for lease in owned_here)


def explained(run_id: RunId, refused: RunLeased, *, waited: bool = False) -> RunLeased:
    """Return the refusal with facts about the owner, and the remedy."""
    renewed = " (it was renewed while this call waited)" if waited else ""
    error = RunLeased(f"{held_by(run_id, refused)}{renewed}. {_ADVICE[liveness_from_here(refused.owner)]}")
    error.owner, error.left_s = refused.owner, refused.left_s
    return error


def held_by(run_id: RunId, refused: RunLeased) -> str:
    """Return the owner of a run, and the expiry of its lease."""
    return f"run {run_id!r} is held by {_owner_name(refused.owner)}, and its lease lasts {_until(refused.left_s)}"


_ADVICE: dict[Fate, str] = {
    "here": "Await what works on it here, or end it with RunClient.cancel(run_id)",
    "alive": "Let it finish, end the run with RunClient.cancel(run_id), or stop that process and resume again",
    "dead": "This store cannot take it over before that: resume again then, or let recover() do it",
    "unknown": "Resume again then (resume waits by default), let recover() do it, or end the run with "
    "RunClient.cancel(run_id); the setting durability.lease_s is the duration of leases",
}

_STATE: dict[Fate, str] = {
    "here": ", which is this very process",
    "alive": ", which is alive",
    "dead": ", which is dead",
    "unknown": ", which cannot be seen from here",
}


def _owner_name(owner: str | None) -> str:
    process = process_of(owner)
    if process is None:
        return "another process" if owner is None else f"{owner[:100]!r}, which cannot be seen from here"
    return f"process {process.pid} on {process.host!r}{_STATE[liveness_from_here(owner)]}"


def _until(left_s: float | None) -> str:
    if left_s is None:
        return "for some time yet"
    ends = datetime.datetime.fromtimestamp(seams.clock.time(), datetime.UTC) + datetime.timedelta(
        seconds=min(left_s, 1e9)
    )
    return f"until {ends:%Y-%m-%d %H:%M:%S} UTC, {left_s:.1f} s from now, unless it is renewed"


# --- Recovery of runs left by other processes ---------------------------------------------------------------------


Finish = Callable[[OpenRun], Awaitable[PipelineResult]]
"""Works on an open run until it ends or pauses."""

Opener = Callable[[], Awaitable[OpenRun]]
"""Opens a claimed run, or releases it."""


@attrs.define(kw_only=True, eq=False)
class Recovery:
    """One call of `recover()`."""

    runs: RunRegistry
    finish: Finish
    redact: Callable[[str], str]
    wait: bool
    at_once: int
    _results: dict[RunId, PipelineResult] = attrs.field(factory=dict, init=False)
    _skipped: dict[RunId, AbandonedRun] = attrs.field(factory=dict, init=False)

    async def report(self) -> RecoveryReport:
        """Recover the available runs, and report the others."""
        await self.runs.expire()
        found = await self.runs.abandoned()
        places = trio.Semaphore(self.at_once)
        rest = deque(found)
        async with trio.open_nursery() as nursery:
            while rest:
                batch = [rest.popleft() for _ in range(await _acquired(places, len(rest)))]
                claimed = await self.runs.claim_abandoned(batch)
                for run_id in batch:
                    nursery.start_soon(self._claim_and_finish, run_id, claimed.get(run_id), places)
        results = [self._results[run_id] for run_id in found if run_id in self._results]
        return RecoveryReport(results, left=[self._skipped[run_id] for run_id in found if run_id in self._skipped])

    async def _claim_and_finish(self, run_id: RunId, opener: Opener | None, places: trio.Semaphore) -> None:
        try:
            self._results[run_id] = await self._finished(run_id, opener)
        except NotPaused:
            pass  # another process has ended it meanwhile
        except Exception as error:  # an error of one run does not affect the others
            self._skip(run_id, error)
        finally:
            places.release()

    async def _finished(self, run_id: RunId, opener: Opener | None) -> PipelineResult:
        try:
            opened = self.runs.reopen(run_id, wait=self.wait) if opener is None else opener()
            return await self.finish(await opened)
        except ControlError as error:
            if error.result is None:
                raise
            partial: PipelineResult = error.result
            return partial

    def _skip(self, run_id: RunId, error: Exception) -> None:
        raised = "" if isinstance(error, FlujoError) else f"it raised {type(error).__name__}: "
        left = AbandonedRun(run_id=run_id, reason=self.redact(raised + message_of(error)), error=error)
        self._skipped[run_id] = left
        level = logging.INFO if _is_owner_alive(error) else logging.WARNING
        logger.log(level, "recover() left run %r: %s", run_id, left.reason)


async def _acquired(places: trio.Semaphore, most: int) -> int:
    """Take a free place, or several; return their number."""
    await places.acquire()
    count = 1
    with contextlib.suppress(trio.WouldBlock):
        while count < most:
            places.acquire_nowait()
            count += 1
    return count


def _is_owner_alive(error: Exception) -> bool:
    return isinstance(error, RunLeased) and liveness_from_here(error.owner) in ("alive", "here")


# --- Background recovery of abandoned runs and timed-out pauses ---------------------------------------------------


Pass = Callable[[Host], Awaitable[float | None]]
"""Recover once; return the seconds until the next known work, or None."""


class BackgroundRecovery:
    """A block during which runs are recovered."""

    def __init__(self, recover: Pass, *, every_s: float) -> None:
        self._recover, self._every_s = recover, every_s
        self._host: Host | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def __aenter__(self) -> BackgroundRecovery:
        if self._host is not None:
            raise RuntimeError("this block has been entered already: make another one with flujo.recovering()")
        self._host = await current_host()
        self._host.spawn(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._host is not None
        if not self._ended.is_set():
            await self._host.enter(self._stop)

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    wait_s = await self._once()
                    await trio.sleep(wait_s)
        finally:
            self._ended.set()

    async def _once(self) -> float:
        """One pass; how long to wait for the next one."""
        assert self._host is not None
        due_s: float | None = None
        try:
            due_s = await self._recover(self._host)
        except FlujoError as error:
            logger.warning("recovering failed, and is tried again: %s", message_of(error))
        return self._every_s if due_s is None else min(self._every_s, max(0.0, due_s))

    async def _stop(self) -> None:
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
