"""Budgets and rate limits of an in-memory store."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

import attrs

from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateGrant, RateInfo, RateReservation, RateTable
from .._core.policies.shared_budgets import (
    FOLDED,
    KEPT_S,
    BudgetClaim,
    BudgetShare,
    BudgetSnapshot,
    StoredBudget,
    added_up,
    granted_share,
    grants,
    raised_limits,
    warns,
)
from .._core.quota import Held
from .._core.records.records import Lease
from .._core.step_paths import StepPath, at_or_below
from .._core.usage import UsageLimits

# --- Budgets that the processes of a run share --------------------------------------------------------------------


_NO_LEASE = Lease(run_id=RunId(""), owner="", epoch=0)


@attrs.define(eq=False)
class _MemoryBudget:
    """One budget with its shares by holder."""

    shares: dict[StepPath, tuple[Lease, BudgetShare]] = attrs.field(factory=dict)
    declared: UsageLimits | None = None
    raised: dict[str, float] = attrs.field(factory=dict)
    ends_at: float | None = None
    warned: bool = False

    @property
    def limits(self) -> UsageLimits | None:
        return raised_limits(self.declared, self.raised)


class MemoryBudgets:
    """Budgets of an in-memory store, which holds its lock around every call."""

    def __init__(self, lasts: Callable[[Lease], bool], is_lost: Callable[[Lease], object] = lambda _: None) -> None:
        self._lasts, self._is_lost = lasts, is_lost
        self._budgets: dict[tuple[RunId, StepPath], _MemoryBudget] = {}

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        """Implement the port's `draw`."""
        found = [(claim, self._opened(claim)) for claim in claims]
        others = [self._others(budget, claim.share.holder) for claim, budget in found]
        granted = all(grants(budget.limits, claim, rest) for (claim, budget), rest in zip(found, others, strict=True))
        snapshots: list[BudgetSnapshot] = []
        for (claim, budget), rest in zip(found, others, strict=True):
            if not claim.reads:
                self.write(lease, granted_share(claim) if granted else claim.share)
            due = not budget.warned and warns(budget.limits, claim, rest)
            budget.warned = budget.warned or due
            snapshots.append(BudgetSnapshot(granted=granted, others=rest, limits=budget.limits, warns=due))
        return snapshots

    def _opened(self, claim: BudgetClaim) -> _MemoryBudget:
        budget = self._at(claim.share)
        budget.declared = claim.limits or budget.declared
        budget.ends_at = claim.ends_at or budget.ends_at
        budget.raised |= claim.raises or {}
        if claim.folds:
            self._fold(budget, claim.share)
        if not claim.reads:
            self._absorb(budget, claim.share)
        return budget

    def _at(self, share: BudgetShare) -> _MemoryBudget:
        return self._budgets.setdefault((share.run, share.budget), _MemoryBudget())

    def _fold(self, budget: _MemoryBudget, mine: BudgetShare) -> None:
        """Add up the shares of ended sessions in one."""
        ended = [holder for holder, (lease, _) in budget.shares.items() if self._is_lost(lease)]
        gone = [budget.shares.pop(holder)[1] for holder in ended if holder != mine.holder]
        if gone:
            held = added_up([(each, False) for each in gone])
            whole = BudgetShare(run=mine.run, budget=mine.budget, holder=FOLDED, spent=held.spent, largest=held.largest)
            budget.shares[FOLDED] = _NO_LEASE, whole

    def write(self, lease: Lease, share: BudgetShare) -> None:
        """Write a share, unless a later one exists."""
        budget = self._at(share)
        self._absorb(budget, share)
        if share.holder in budget.shares:
            before, old = budget.shares[share.holder]
            if (before.epoch, old.version) >= (lease.epoch, share.version):
                return
        budget.shares[share.holder] = lease, share

    def forget(self, run_ids: Sequence[RunId]) -> None:
        """Drop the budgets of these runs."""
        for key in [key for key in self._budgets if key[0] in run_ids]:
            del self._budgets[key]

    def windows(self) -> list[StoredBudget]:
        """Return the budgets of windows."""
        found = sorted((key, each) for key, each in self._budgets.items() if each.ends_at is not None)
        return [
            StoredBudget(key=key[0], limits=each.limits, held=self._sum(each.shares.values())) for key, each in found
        ]

    def purge(self, wall: float, limit: int) -> int:
        """Delete windows that ended long ago; return their number."""
        old = [key for key, each in self._budgets.items() if each.ends_at is not None and each.ends_at + KEPT_S <= wall]
        for key in old[:limit]:
            del self._budgets[key]
        return len(old[:limit])

    def _sum(self, shares: Iterable[tuple[Lease, BudgetShare]]) -> Held:
        return added_up([(each, self._lasts(lease)) for lease, each in shares])

    def _others(self, budget: _MemoryBudget, mine: StepPath) -> Held:
        return self._sum([each for holder, each in budget.shares.items() if holder != mine])

    def _absorb(self, budget: _MemoryBudget, share: BudgetShare) -> None:
        for path in share.absorbs:
            for holder in at_or_below(path, list(budget.shares)):
                if holder != share.holder:
                    del budget.shares[holder]


# --- Rate limits of an in-memory store ----------------------------------------------------------------------------


class MemoryRates:
    """Rate limits of an in-memory store."""

    _lock: threading.Lock
    _wall: Callable[[], float]
    _rates: RateTable

    @abstractmethod
    def _lasts(self, lease: Lease) -> bool:
        """Return whether a lease is still held."""

    def reserve(self, wanted: RateReservation) -> RateGrant:
        """Reserve an amount, or refuse it."""
        with self._lock:
            return self._rates.reserve(wanted, self._wall())

    def settle(self, name: str, resource: str, seconds: float, *, only_at: float | None = None) -> None:
        """Refund unused seconds of a reservation."""
        with self._lock:
            self._rates.settle(name, resource, seconds, only_at)

    def block(self, name: str, *, for_s: float) -> None:
        """Block a bucket."""
        with self._lock:
            self._rates.block(name, self._wall() + for_s)

    def slots(self, lease: Lease, name: str, holder: str, *, limit: int | None) -> bool:
        """Take a slot under a lease; without a limit, release it."""
        with self._lock:
            if limit is None:
                self._rates.release(name, holder)
                return True
            return self._rates.take(lease, name, holder, limit, self._lasts)

    def rates(self, name: str | None = None) -> list[RateInfo]:
        """Return the state of rate limits by name and resource."""
        with self._lock:
            return self._rates.infos(name, self._lasts)
