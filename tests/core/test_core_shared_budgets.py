"""Budgets that several processes draw on, whatever they do and in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.outcomes import RunId
from flujo_actors._core.policies.shared_budgets import BudgetClaim, BudgetShare, BudgetSnapshot
from flujo_actors._core.quota import NOTHING, Amount, Quota
from flujo_actors._core.records.records import Lease
from flujo_actors._core.step_paths import ROOT, StepPath
from flujo_actors._core.usage import Usage, UsageLimits
from flujo_actors.stores._memory_store import MemoryBudgets

CALL = Usage(input_tokens=10, requests=1)
LIMITS = UsageLimits(total_tokens_limit=70, request_limit=7)


class Holder:
    """One process that makes calls of ten tokens."""

    def __init__(self, name: str, budgets: MemoryBudgets) -> None:
        self.budgets, self.epoch, self.version, self.name = budgets, 1, 0, name
        self.quota = Quota(LIMITS, owner="run", guess=Amount(tokens=1000))
        self.open: list[Amount] = []

    def share(self) -> BudgetShare:
        self.version += 1
        held = self.quota.held()
        facts: dict[str, Any] = {name: getattr(held, name) for name in ("spent", "reserved", "under_way", "largest")}
        return BudgetShare(run=RunId("r"), budget=ROOT, holder=StepPath(self.name), version=self.version, **facts)

    @property
    def lease(self) -> Lease:
        return Lease(run_id=RunId(self.name), owner="o", epoch=self.epoch)

    def draw(self, *, wants: bool) -> BudgetSnapshot:
        wanted = self.quota.reservation_request("caller", NOTHING) if wants else None
        [told] = self.budgets.draw(self.lease, [BudgetClaim(share=self.share(), wants=wanted, limits=LIMITS)])
        self.quota.update_others(told.others)
        if told.granted and wanted is not None:
            self.open.append(self.quota.reserve_amount(wanted.reserves))
        return told

    def settle(self) -> None:
        if self.open:
            self.quota.settle("caller", self.open.pop(), CALL)
            self.budgets.write(self.lease, self.share())

    def die(self) -> None:
        """Somebody takes over, and knows what was recorded: all that was settled."""
        recorded = self.quota.own
        self.quota, self.open, self.epoch = Quota(LIMITS, owner="run", guess=Amount(tokens=1000)), [], self.epoch + 1
        self.quota.spend(Usage(input_tokens=int(recorded.tokens), requests=recorded.requests))


def make_holders() -> list[Holder]:
    holders: list[Holder] = []
    budgets = MemoryBudgets(lambda lease: holders[int(lease.run_id)].lease == lease)
    holders.extend(Holder(str(number), budgets) for number in range(3))
    return holders


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["draw", "draw", "settle", "die"])), max_size=60))
def test_calls_of_equal_size_use_a_limit_up_and_never_pass_it(moves: list[tuple[int, str]]) -> None:
    """Whoever draws, settles or dies, and however often; in the end all of it can be used."""
    holders = make_holders()
    for number, move in moves:
        holder = holders[number]
        match move:
            case "draw":
                holder.draw(wants=True)
            case "settle":
                holder.settle()
            case _:
                holder.die()
        assert sum(each.quota.own.tokens + 10 * len(each.open) for each in holders) <= 70
    for holder in holders:
        while holder.open:
            holder.settle()
    last = holders[0]
    while last.draw(wants=True).granted or last.quota.ask("caller") == "granted":
        last.settle()
    assert sum(each.quota.own.tokens for each in holders) == 70
    assert last.quota.ask("caller") == "refused"
