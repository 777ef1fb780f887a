"""Clauses: budgets that several processes share. For stores that have `draw`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ..._core.outcomes import RunId
from ..._core.paths import ROOT, StepPath
from ..._core.quota import ONE_TOOL_CALL, Amount, Wanted
from ..._core.records import Append, Lease
from ..._core.shared_budgets import BudgetClaim, BudgetShare, BudgetTold
from ..._core.usage import UsageLimits
from ...errors import LeaseLost
from ...stores._port import Store
from .place import StorePlace
from .samples import admit, record, write

LIMITS = UsageLimits(total_tokens_limit=100, request_limit=5)
CALL = Wanted(reserves=Amount(tokens=30, requests=1), reckoned=Amount(tokens=30))


def share(holder: str, version: int = 1, **facts: Any) -> BudgetShare:
    """What a holder has of the run's budget."""
    return BudgetShare(run=RunId("root \0"), budget=ROOT, holder=StepPath(holder), version=version, **facts)


def draw(store: Store, lease: Lease, mine: BudgetShare, wants: Wanted | None = CALL) -> BudgetTold:
    """Ask for the size of a call."""
    [told] = store.draw(lease, [BudgetClaim(share=mine, wants=wants, limits=LIMITS)])
    return told


class BudgetClauses:
    """Budgets of one run."""

    @pytest.fixture
    def budgets(self, place: StorePlace) -> Store:
        """A store that keeps budgets."""
        store = place.open()
        if not hasattr(store, "draw"):
            pytest.skip(f"{type(store).__name__} keeps no budgets: it has no `draw`")
        return store

    def test_a_budget_is_drawn_on_until_nothing_is_left(self, budgets: Store) -> None:
        """By several holders, each of which is told what the others have."""
        leases = [admit(budgets, f"run {number}") for number in range(4)]
        told = [draw(budgets, lease, share(f"s{number}")) for number, lease in enumerate(leases)]
        assert [each.granted for each in told] == [True, True, True, False]
        assert (told[3].others.reserved.tokens, told[3].others.under_way) == (90, 3)
        assert told[3].limits == LIMITS

    def test_those_who_race_for_a_budget_never_pass_it(self, place: StorePlace, budgets: Store) -> None:
        """Through one store or through several."""
        stores = [budgets, place.open()]
        leases = [admit(budgets, f"run {number}") for number in range(12)]

        def race(number: int) -> bool:
            return draw(stores[number % 2], leases[number], share(f"s{number}")).granted

        with ThreadPoolExecutor(12) as threads:
            assert sum(threads.map(race, range(12))) == 3

    def test_what_was_spent_replaces_what_was_set_aside(self, budgets: Store) -> None:
        """Written with a record, in its transaction."""
        one, other = admit(budgets, "one"), admit(budgets, "other")
        assert draw(budgets, one, share("s1")).granted
        settled = share("s1", 2, spent=Amount(tokens=80, requests=1), largest=Amount(tokens=80))
        assert write(budgets, one, record(), shares=(settled,)) is None
        told = draw(budgets, other, share("s2"))
        assert (told.granted, told.others.spent, told.others.under_way) == (False, settled.spent, 0)
        assert told.others.largest == Amount(tokens=80)

    def test_what_a_dead_holder_had_set_aside_is_free_again(self, budgets: Store, place: StorePlace) -> None:
        """When its lease has run out; what it had spent stays spent."""
        dead = admit(budgets, "dead")
        assert draw(budgets, dead, share("s1", spent=Amount(tokens=20, requests=1))).granted
        place.advance(10_000)
        told = draw(budgets, admit(budgets, "other"), share("s2"))
        assert (told.others.reserved, told.others.under_way) == (Amount(), 0)
        assert told.others.spent == Amount(tokens=20, requests=1)

    def test_who_takes_over_frees_it_at_once(self, budgets: Store) -> None:
        """And writes what was really spent; nothing of the former owner is taken any more."""
        dead = admit(budgets, "dead")
        assert draw(budgets, dead, share("s1", 7)).granted
        heir = budgets.take_over(RunId("dead"), dead="owner", owner="heir", lease_s=60)
        other = admit(budgets, "other")
        assert draw(budgets, other, share("s2"), None).others.under_way == 0
        assert draw(budgets, heir, share("s1", 1, spent=Amount(tokens=5)), None).granted
        with pytest.raises(LeaseLost):
            draw(budgets, dead, share("s1", 8))
        late = share("s1", 9, spent=Amount(tokens=50))
        budgets.append([Append(lease=dead, records=(record(),), shares=(late,))])
        assert draw(budgets, other, share("s2", 2), None).others.spent == Amount(tokens=5)

    def test_of_two_writes_the_later_one_stands(self, budgets: Store) -> None:
        """In whatever order they come."""
        one, other = admit(budgets, "one"), admit(budgets, "other")
        draw(budgets, one, share("s1", 2, spent=Amount(tokens=20)), None)
        write(budgets, one, record(), shares=(share("s1", 1, spent=Amount(tokens=10)),))
        assert draw(budgets, other, share("s2"), None).others.spent == Amount(tokens=20)

    def test_a_share_is_taken_in_with_those_inside_it(self, budgets: Store) -> None:
        """In the transaction that writes whoever takes it in: nothing is counted twice, or not at all."""
        root, inner = admit(budgets, "root"), admit(budgets, "inner")
        for number, holder in enumerate(("a", "a/b", "ab")):
            draw(budgets, inner, share(holder, number + 1, spent=Amount(tokens=10)), None)
        draw(budgets, root, share("", spent=Amount(tokens=20), absorbs=(StepPath("a"),)), None)
        told = draw(budgets, inner, share("x"), None)
        assert told.others.spent == Amount(tokens=30)

    def test_of_several_budgets_all_grant_or_none(self, budgets: Store) -> None:
        """A step's budget stands in the run's."""
        lease = admit(budgets)
        own = BudgetShare(run=RunId("root \0"), budget=StepPath("step"), holder=ROOT, version=1)
        small = BudgetClaim(share=own, wants=CALL, limits=UsageLimits(total_tokens_limit=10))
        large = BudgetClaim(share=share(""), wants=CALL, limits=LIMITS)
        assert [each.granted for each in budgets.draw(lease, [large, small])] == [False, False]
        assert draw(budgets, admit(budgets, "other"), share("s2"), None).others.under_way == 0

    def test_counts_are_spent_at_once(self, budgets: Store) -> None:
        """Tool calls and steps; who only looks spends nothing."""
        one, other = admit(budgets, "one"), admit(budgets, "other")
        limits = UsageLimits(tool_calls_limit=1)
        wants = Wanted(spends=ONE_TOOL_CALL)
        looks = BudgetClaim(share=share("s3"), wants=None, reads=True)
        assert budgets.draw(one, [BudgetClaim(share=share("s1"), wants=wants, limits=limits)])[0].granted
        assert not budgets.draw(other, [BudgetClaim(share=share("s2"), wants=wants)])[0].granted
        assert budgets.draw(other, [looks])[0].others.spent == ONE_TOOL_CALL

    def test_budgets_go_with_their_run(self, budgets: Store) -> None:
        """Of which nothing is left."""
        root = admit(budgets, "root \0")
        draw(budgets, root, share("", spent=Amount(tokens=60)), None)
        write(budgets, root, status="completed", release=True)
        assert budgets.delete([RunId("root \0")]) == 1
        told = draw(budgets, admit(budgets, "another"), share("s1"), None)
        assert told.others.spent == Amount()
