"""Failover: getting hold of a run that somebody may hold, by waiting for its lease or taking it over from the dead.

Rules:

1. What is free, or held by an owner that is provably dead, is had at once.
2. Otherwise the lease is waited for as long as it lasted when it was first seen, if the caller waits at all. One that
   is still held then was renewed: its owner lives, and the caller is told so instead of waiting for ever.
3. A run that this very process works on is not waited for, but for the moment that its cleanup may take.
   Whoever has answered one of its questions does wait, and for as long as it takes: it is about to come to rest.
4. Whoever waits looks again and again: a run may end, be given up, or lose its owner before its lease is over.
"""

from __future__ import annotations

import datetime
import functools
import logging
import math

import trio

from .._core.outcomes import RunId
from .._core.owners import Fate, process_of
from .._core.records import Append, Lease, StoredRun, TakenRun, has_ended
from ..errors import NotPaused, RunLeased
from ..stores import _refusals as refusals
from ..stores._port import Store
from .borrowing import refuse_inside_borrower
from .processes import fate_from_here, new_owner
from .store_wait import call_store

LOOK_AGAIN_S = 0.5
"""How often whoever waits for a lease looks whether the run can be had earlier."""

_CLEANUP_S = 1.0
"""How long a run of this process may take to be given up."""

at_work: set[Lease] = set()
"""What this process works on now, in all its threads."""

logger = logging.getLogger("flujo_actors")


def refuse_run_inside_borrower(store: Store, run_id: RunId) -> None:
    """`StoreError` for a run inside a step whose transaction keeps everybody else from writing."""
    refuse_inside_borrower(store, f"run {run_id!r} begins")


async def claimed(store: Store, run_id: RunId, *, lease_s: float, wait: bool, answered: bool = False) -> Lease:
    """The lease of a run that has not ended; see the module's rules."""
    patience = _Patience(run_id, lease_s if wait else 0.0, until_rest=wait and answered)
    while True:
        try:
            run = await call_store(lambda: store.get(run_id))
            claim = functools.partial(granted, store, run, lease_s)
            return await call_store(claim, if_left=functools.partial(give_up, store))
        except RunLeased as refused:
            await patience.outlast(refused)


def claim_now(store: Store, run_id: RunId, *, lease_s: float) -> Lease:
    """The lease of a run that is free or whose owner is dead; blocks."""
    return granted(store, store.get(run_id), lease_s)


def granted(store: Store, run: StoredRun, lease_s: float) -> Lease:
    """The lease of a run that looked like this; `RunLeased` if it is held, `NotPaused` if it has ended. Blocks."""
    refuse_if_ended(run)
    if not can_be_had(store, run):
        raise refusals.leased(run.run_id, run.owner, run.left_s)
    if run.owner is not None:
        return store.take_over(run.run_id, dead=run.owner, owner=new_owner(), lease_s=lease_s)
    return store.claim(run.run_id, owner=new_owner(), lease_s=lease_s)


def granted_new(store: Store, run_id: RunId, lease_s: float) -> TakenRun | None:
    """The lease of a run that nobody has worked on, and what it holds; `None` if it is none. Blocks."""
    if not hasattr(store, "take_new"):  # few stores have it
        return None
    taken: TakenRun | None = store.take_new(run_id, owner=new_owner(), lease_s=lease_s)
    return taken


async def refuse_if_held(store: Store, run_id: RunId) -> None:
    """`RunLeased` if the run cannot be had now."""
    run = await call_store(lambda: store.get(run_id))
    if not can_be_had(store, run):
        raise explained(run_id, refusals.leased(run_id, run.owner, run.left_s))


def give_up(store: Store, lease: Lease) -> None:
    """Let others have a run; blocks."""
    store.append([Append(lease=lease, records=(), release=True)])


def give_up_new(store: Store, taken: TakenRun | None) -> None:
    """The same for one that was taken, if it was."""
    if taken is not None:
        give_up(store, taken.lease)


def can_be_had(store: Store, run: StoredRun) -> bool:
    """Whether nobody holds the run, or a dead process does that the store knows to take it over from."""
    return not run.leased or (hasattr(store, "take_over") and fate_from_here(run.owner) == "dead")


def refuse_if_ended(run: StoredRun) -> None:
    """`NotPaused` if the run is over."""
    if has_ended(run.status):
        raise NotPaused(f"run {run.run_id!r} has ended as {run.status}; there is nothing left to resume or to cancel")


def is_at_work_here(run_id: RunId) -> bool:
    """Whether this process works on a run."""
    return any(lease.run_id == run_id for lease in list(at_work))


class _Patience:
    """How long somebody waits for one run."""

    def __init__(self, run_id: RunId, most_s: float, *, until_rest: bool = False) -> None:
        self._run_id, self._most_s, self._until_rest = run_id, most_s, until_rest
        self._until: float | None = None

    async def outlast(self, refused: RunLeased) -> None:
        """Wait for a moment; when it has been long enough, raise what to tell the caller."""
        now = trio.current_time()
        if self._until is None:
            self._until = now + self._patience_s(refused)
            if self._until > now:
                logger.warning("%s; waiting for it", held_by(self._run_id, refused))
        if self._until_rest:
            self._until = math.inf
        elif self._is_at_work(refused):
            self._until = min(self._until, now + _CLEANUP_S)
        if now >= self._until:
            raise explained(self._run_id, refused, waited=self._most_s > 0) from None
        await trio.sleep(min(LOOK_AGAIN_S, self._until - now))

    def _patience_s(self, refused: RunLeased) -> float:
        """The time left, and a moment more: a lease that lasts longer was renewed."""
        if not self._most_s:
            return 0.0
        return (self._most_s if refused.left_s is None else max(refused.left_s, 0.0)) + LOOK_AGAIN_S

    def _is_at_work(self, refused: RunLeased) -> bool:
        return any((lease.run_id, lease.owner) == (self._run_id, refused.owner) for lease in at_work)


def explained(run_id: RunId, refused: RunLeased, *, waited: bool = False) -> RunLeased:
    """The refusal with what is known of the owner, and what to do."""
    renewed = " (it was renewed while this call waited)" if waited else ""
    error = RunLeased(f"{held_by(run_id, refused)}{renewed}. {_ADVICE[fate_from_here(refused.owner)]}")
    error.owner, error.left_s = refused.owner, refused.left_s
    return error


def held_by(run_id: RunId, refused: RunLeased) -> str:
    """Who holds a run, and until when."""
    return f"run {run_id!r} is held by {_who(refused.owner)}, and its lease lasts {_until(refused.left_s)}"


_ADVICE: dict[Fate, str] = {
    "here": "Await what works on it here, or end it with RunClient.cancel(run_id)",
    "alive": "Let it finish, end the run with RunClient.cancel(run_id), or stop that process and resume again",
    "dead": "This store cannot take it over before that: resume again then, or let recover() do it",
    "unknown": "Resume again then (resume waits by default), let recover() do it, or end the run with "
    "RunClient.cancel(run_id); the setting durability.lease_s says how long leases last",
}

_STATE: dict[Fate, str] = {
    "here": ", which is this very process",
    "alive": ", which is alive",
    "dead": ", which is dead",
    "unknown": ", which cannot be seen from here",
}


def _who(owner: str | None) -> str:
    process = process_of(owner)
    if process is None:
        return "somebody" if owner is None else f"{owner[:100]!r}, who cannot be seen from here"
    return f"process {process.pid} on {process.host!r}{_STATE[fate_from_here(owner)]}"


def _until(left_s: float | None) -> str:
    if left_s is None:
        return "for some time yet"
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=min(left_s, 1e9))
    return f"until {ends:%Y-%m-%d %H:%M:%S} UTC, {left_s:.1f} s from now, unless it is renewed"
