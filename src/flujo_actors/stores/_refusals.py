"""What a store says when it refuses, the same words in every store."""

from __future__ import annotations

from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import Lease
from ..errors import AlreadyAnswered, Expired, LeaseLost, NoRewardDue, NotPaused, RunExists, RunLeased, RunNotFound
from ._rows import shown


def not_found(run_id: RunId) -> RunNotFound:
    return RunNotFound(f"there is no run {shown(run_id)} in this store")


def exists(run_id: RunId) -> RunExists:
    return RunExists(f"run {shown(run_id)} exists already; resume it, or choose another id")


def no_record(run_id: RunId, seq: int) -> RunNotFound:
    return RunNotFound(f"run {shown(run_id)} has no record {seq}")


def leased(run_id: RunId, owner: str | None, left_s: float | None) -> RunLeased:
    left = "" if left_s is None else f": {left_s:.1f} s are left"
    error = RunLeased(f"run {shown(run_id)} is held by {shown(owner)}, and its lease has not expired{left}")
    error.owner, error.left_s = owner, left_s
    return error


def not_paused(run_id: RunId, path: StepPath) -> NotPaused:
    return NotPaused(f"nothing waits for this answer at {shown(path)} in run {shown(run_id)}")


def already_answered(run_id: RunId, path: StepPath) -> AlreadyAnswered:
    return AlreadyAnswered(f"the pause at {shown(path)} in run {shown(run_id)} has been answered already")


def expired(run_id: RunId, path: StepPath) -> Expired:
    return Expired(f"the answer to {shown(path)} in run {shown(run_id)} comes too late: its time is over")


def rewarded(run_id: RunId, path: StepPath) -> NoRewardDue:
    return NoRewardDue(f"the reward of {shown(path)} in run {shown(run_id)} has been told already")


def lost(lease: Lease, current: tuple[str | None, int] | None) -> LeaseLost:
    """Why a write under this lease is refused; `current` is the run's owner and epoch, `None` if the run is gone."""
    return LeaseLost(
        f"epoch {lease.epoch} of run {shown(lease.run_id)} may not be written any more: {_why(lease, current)}"
    )


def _why(lease: Lease, current: tuple[str | None, int] | None) -> str:
    if current is None:
        return "the run is gone"
    owner, epoch = current
    if epoch != lease.epoch:
        return f"it was taken over and is at epoch {epoch}"
    if owner is None:
        return "the lease was released"
    return f"it belongs to {shown(owner)}"
