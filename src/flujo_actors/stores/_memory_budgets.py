"""Budgets that the processes of a run share, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._core.outcomes import RunId
from .._core.paths import StepPath, at_or_below
from .._core.quota import Held
from .._core.records import Lease
from .._core.shared_budgets import BudgetClaim, BudgetShare, BudgetTold, added_up, granted_share, grants
from .._core.usage import UsageLimits

_Shares = dict[StepPath, tuple[Lease, BudgetShare]]


class MemoryBudgets:
    """The budgets of a store in memory, which holds its lock around every call."""

    def __init__(self, lasts: Callable[[Lease], bool]) -> None:
        self._lasts = lasts
        self._limits: dict[tuple[RunId, StepPath], UsageLimits] = {}
        self._shares: dict[tuple[RunId, StepPath], _Shares] = {}

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetTold]:
        """As the port says."""
        for claim in claims:
            if claim.limits is not None:
                self._limits[_key(claim.share)] = claim.limits
            if not claim.reads:
                self._absorb(claim.share)
        found = [(claim, self._limits.get(_key(claim.share)), self._others(claim.share)) for claim in claims]
        granted = all(grants(limits, claim, others) for claim, limits, others in found)
        for claim in claims:
            if not claim.reads:
                self.write(lease, granted_share(claim) if granted else claim.share)
        return [BudgetTold(granted=granted, others=others, limits=limits) for _, limits, others in found]

    def write(self, lease: Lease, share: BudgetShare) -> None:
        """Write a share, unless a later one is there."""
        self._absorb(share)
        shares = self._shares.setdefault(_key(share), {})
        if share.holder in shares:
            before, old = shares[share.holder]
            if (before.epoch, old.version) >= (lease.epoch, share.version):
                return
        shares[share.holder] = lease, share

    def forget(self, run_ids: Sequence[RunId]) -> None:
        """Drop the budgets of these runs."""
        for key in [key for key in self._shares if key[0] in run_ids]:
            del self._shares[key]
        for key in [key for key in self._limits if key[0] in run_ids]:
            del self._limits[key]

    def _others(self, share: BudgetShare) -> Held:
        shares = self._shares.get(_key(share), {})
        rest = [(each, self._lasts(lease)) for holder, (lease, each) in shares.items() if holder != share.holder]
        return added_up(rest)

    def _absorb(self, share: BudgetShare) -> None:
        shares = self._shares.get(_key(share), {})
        for path in share.absorbs:
            for holder in at_or_below(path, list(shares)):
                if holder != share.holder:
                    del shares[holder]


def _key(share: BudgetShare) -> tuple[RunId, StepPath]:
    return share.run, share.budget
