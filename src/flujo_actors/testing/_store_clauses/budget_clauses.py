"""Clauses of shared budgets and rate limits (`draw`, `reserve`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ..._core.outcomes import RunId
from ..._core.policies.rate_limits import RateReservation
from ..._core.policies.selection import Evidence
from ..._core.policies.shared_budgets import BudgetClaim, BudgetShare, BudgetSnapshot, window_key
from ..._core.quota import ONE_TOOL_CALL, Amount, ReservationRequest
from ..._core.records.records import Append, Lease
from ..._core.step_paths import ROOT, StepPath
from ..._core.usage import UsageLimits
from ...errors import LeaseLost, NoRewardDue, RunNotFound
from ...stores._store_port import Store
from .store_target import STEP, StorePlace, admit, claim, record, write

LIMITS = UsageLimits(total_tokens_limit=100, request_limit=5)
CALL = ReservationRequest(reserves=Amount(tokens=30, requests=1), estimate=Amount(tokens=30))


def share(holder: str, version: int = 1, **facts: Any) -> BudgetShare:
    """Return a holder's share of the run's budget."""
    return BudgetShare(run=RunId("root \0"), budget=ROOT, holder=StepPath(holder), version=version, **facts)


def draw(store: Store, lease: Lease, mine: BudgetShare, wants: ReservationRequest | None = CALL) -> BudgetSnapshot:
    """Ask for the size of a call."""
    [snapshot] = store.draw(lease, [BudgetClaim(share=mine, wants=wants, limits=LIMITS)])
    return snapshot


class BudgetClauses:
    """Budgets of one run."""

    @pytest.fixture
    def budgets(self, place: StorePlace) -> Store:
        """Store with budgets."""
        store = place.open()
        if not hasattr(store, "draw"):
            pytest.skip(f"{type(store).__name__} keeps no budgets: it has no `draw`")
        return store

    def test_a_budget_is_drawn_on_until_nothing_is_left(self, budgets: Store) -> None:
        """Several holders draw, and each receives the total of the others."""
        leases = [admit(budgets, f"run {number}") for number in range(4)]
        snapshot = [draw(budgets, lease, share(f"s{number}")) for number, lease in enumerate(leases)]
        assert [each.granted for each in snapshot] == [True, True, True, False]
        assert (snapshot[3].others.reserved.tokens, snapshot[3].others.under_way) == (90, 3)
        assert snapshot[3].limits == LIMITS

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
        snapshot = draw(budgets, other, share("s2"))
        assert (snapshot.granted, snapshot.others.spent, snapshot.others.under_way) == (False, settled.spent, 0)
        assert snapshot.others.largest == Amount(tokens=80)

    def test_what_a_dead_holder_had_set_aside_is_free_again(self, budgets: Store, place: StorePlace) -> None:
        """Reservations end with the lease; spending remains."""
        dead = admit(budgets, "dead")
        assert draw(budgets, dead, share("s1", spent=Amount(tokens=20, requests=1))).granted
        place.advance(10_000)
        snapshot = draw(budgets, admit(budgets, "other"), share("s2"))
        assert (snapshot.others.reserved, snapshot.others.under_way) == (Amount(), 0)
        assert snapshot.others.spent == Amount(tokens=20, requests=1)

    def test_who_takes_over_frees_it_at_once(self, budgets: Store) -> None:
        """The new owner writes the spending; former owners are refused."""
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
        """Absorption in the holder's transaction counts nothing twice."""
        root, inner = admit(budgets, "root"), admit(budgets, "inner")
        for number, holder in enumerate(("a", "a/b", "ab")):
            draw(budgets, inner, share(holder, number + 1, spent=Amount(tokens=10)), None)
        draw(budgets, root, share("", spent=Amount(tokens=20), absorbs=(StepPath("a"),)), None)
        snapshot = draw(budgets, inner, share("x"), None)
        assert snapshot.others.spent == Amount(tokens=30)

    def test_of_several_budgets_all_grant_or_none(self, budgets: Store) -> None:
        """A step's budget is part of the run's."""
        lease = admit(budgets)
        own = BudgetShare(run=RunId("root \0"), budget=StepPath("step"), holder=ROOT, version=1)
        small = BudgetClaim(share=own, wants=CALL, limits=UsageLimits(total_tokens_limit=10))
        large = BudgetClaim(share=share(""), wants=CALL, limits=LIMITS)
        assert [each.granted for each in budgets.draw(lease, [large, small])] == [False, False]
        assert draw(budgets, admit(budgets, "other"), share("s2"), None).others.under_way == 0

    def test_counts_are_spent_at_once(self, budgets: Store) -> None:
        """Tool calls and steps are spent; a read-only claim spends nothing."""
        one, other = admit(budgets, "one"), admit(budgets, "other")
        limits = UsageLimits(tool_calls_limit=1)
        wants = ReservationRequest(spends=ONE_TOOL_CALL)
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
        snapshot = draw(budgets, admit(budgets, "another"), share("s1"), None)
        assert snapshot.others.spent == Amount()


def rated(reward: float, arm: str = "a", *, memory: float | None = None, cost_usd: float = 0.0) -> Evidence:
    """One outcome."""
    return Evidence(name="n \0", category="c", arm=arm, reward=reward, memory=memory, cost_usd=cost_usd)


# --- Budgets of windows, for stores that have `window_budgets` ----------------------------------------------------


DAY = UsageLimits(request_limit=4, window="day", warn_at=0.5)


def window_claim(holder: str, version: int = 1, *, requests: int = 0, **facts: Any) -> BudgetClaim:
    """Return a holder's claim on the budget of a day."""
    key = window_key("mail \0", "key", "k", "day", 0.0)
    mine = BudgetShare(run=key, budget=ROOT, holder=StepPath(holder), version=version, spent=Amount(requests=requests))
    return BudgetClaim(share=mine, limits=DAY, ends_at=86_400.0, **facts)


class WindowClauses:
    """Budgets of all runs of a window."""

    @pytest.fixture
    def windows(self, place: StorePlace) -> Store:
        """Store with budgets of windows."""
        store = place.open()
        if not hasattr(store, "window_budgets"):
            pytest.skip(f"{type(store).__name__} keeps no budgets of windows: it has no `window_budgets`")
        return store

    def test_shares_of_ended_sessions_are_added_up(self, windows: Store) -> None:
        """Their spending stays, and their runs may be deleted."""
        for number in range(3):
            lease = admit(windows, f"run {number}")
            windows.draw(lease, [window_claim(f"run {number}/1", requests=1, folds=True)])
            write(windows, lease, record(kind="ended"), status="completed", release=True)
        windows.delete([RunId("run 0")])
        [snapshot] = windows.draw(admit(windows, "last"), [window_claim("last/1", folds=True)])
        assert snapshot.others.spent == Amount(requests=3)
        [found] = windows.window_budgets()
        assert (found.held.spent.requests, found.limits) == (3, DAY)

    def test_a_share_under_a_lease_is_not_added_up(self, windows: Store) -> None:
        """Its holder writes all of it again, and nothing counts twice."""
        one, other = admit(windows, "one"), admit(windows, "other")
        windows.draw(one, [window_claim("one/1", requests=1)])
        windows.draw(other, [window_claim("other/1", folds=True)])
        windows.draw(one, [window_claim("one/1", 2, requests=2)])
        [snapshot] = windows.draw(other, [window_claim("other/1", 2, folds=True)])
        assert snapshot.others.spent == Amount(requests=2)

    def test_raised_limits_hold_for_every_holder(self, windows: Store) -> None:
        """A raised field stays raised; a larger declared limit wins."""
        one, other = admit(windows, "one"), admit(windows, "other")
        windows.draw(one, [window_claim("one/1", raises={"request_limit": 9})])
        windows.draw(other, [window_claim("other/1", raises={"total_tokens_limit": 5.0})])
        [snapshot] = windows.draw(other, [window_claim("other/1", 2)])
        assert snapshot.limits is not None
        assert (snapshot.limits.request_limit, snapshot.limits.total_tokens_limit) == (9, None)
        [found] = windows.window_budgets()
        assert found.limits == snapshot.limits

    def test_the_reservation_of_a_dead_session_is_free_again(self, place: StorePlace, windows: Store) -> None:
        """It ends with the lease of its run."""
        dead = admit(windows, "dead")
        assert windows.draw(dead, [window_claim("dead/1", wants=CALL)])[0].granted
        place.advance(10_000)
        [snapshot] = windows.draw(admit(windows, "other"), [window_claim("other/1", folds=True)])
        assert (snapshot.others.reserved, snapshot.others.under_way) == (Amount(), 0)

    def test_one_draw_is_asked_to_warn(self, place: StorePlace, windows: Store) -> None:
        """The first of concurrent draws that finds the share spent."""
        stores = [windows, place.open()]
        leases = [admit(windows, f"run {number}") for number in range(8)]
        [early] = windows.draw(leases[0], [window_claim("early", requests=1)])

        def race(number: int) -> bool:
            [snapshot] = stores[number % 2].draw(leases[number], [window_claim(f"s{number}", requests=1)])
            return snapshot.warns

        with ThreadPoolExecutor(8) as threads:
            assert (early.warns, sum(threads.map(race, range(8)))) == (False, 1)


class BeliefClauses:
    """Evidence about agents."""

    @pytest.fixture
    def believing(self, place: StorePlace) -> Store:
        """Store with selection statistics."""
        store = place.open()
        if not hasattr(store, "beliefs"):
            pytest.skip(f"{type(store).__name__} keeps no beliefs: it has no `beliefs` and `reward`")
        return store

    def test_outcomes_add_up(self, believing: Store) -> None:
        """Rewards, their shortfall, their number and their cost are summed."""
        lease = admit(believing)
        for reward, cost in ((1.0, 1.0), (0.0, 2.0), (0.6, 6.0)):
            write(believing, lease, record(), evidence=(rated(reward, cost_usd=cost),))
        belief = believing.beliefs("n \0", "c")["a"]
        assert [belief.alpha, belief.beta, belief.mean_cost_usd] == pytest.approx([1.6, 1.4, 3.0])
        assert belief.observations == 3
        assert believing.beliefs("n \0", "other") == {}

    def test_what_is_old_fades(self, believing: Store) -> None:
        """With a memory of two, half of the evidence stays."""
        lease = admit(believing)
        write(believing, lease, record(), evidence=(rated(1.0, memory=2), rated(1.0, memory=2), rated(0.0, "b")))
        found = believing.beliefs("n \0", "c")
        assert [found["a"].alpha, found["b"].beta] == pytest.approx([1.5, 1.0])

    def test_who_lost_the_run_teaches_nothing(self, believing: Store, place: StorePlace) -> None:
        """Evidence is written with its append, or not at all."""
        lost = admit(believing)
        place.advance(10_000)
        claim(believing)
        believing.append([Append(lease=lost, records=(record(),), evidence=(rated(1.0),))])
        assert believing.beliefs("n \0", "c") == {}

    def test_a_reward_is_told_once(self, believing: Store) -> None:
        """It is written with its record, without a lease."""
        admit(believing)
        reward = record("rated", kind="rewarded")
        believing.reward(RunId("run"), STEP, record=reward, evidence=rated(0.8))
        with pytest.raises(NoRewardDue):
            believing.reward(RunId("run"), STEP, record=reward, evidence=rated(0.8))
        assert believing.beliefs("n \0", "c")["a"].observations == 1
        assert believing.read(RunId("run"))[-1].kind == "rewarded"
        with pytest.raises(RunNotFound):
            believing.reward(RunId("nobody"), STEP, record=reward, evidence=rated(0.8))


# --- Rate limits, for stores that have `reserve` ------------------------------------------------------------------


def reservation(seconds: float, *, max_wait_s: float = 1e9) -> RateReservation:
    """Return an amount of the bucket's tokens."""
    return RateReservation(name="r \0", resource="tokens", seconds=seconds, burst_s=5, max_wait_s=max_wait_s)


class RateClauses:
    """Rate limits of all processes."""

    @pytest.fixture
    def rates(self, place: StorePlace) -> Store:
        """Store with rate limits."""
        store = place.open()
        if not hasattr(store, "reserve"):
            pytest.skip(f"{type(store).__name__} keeps no rate limits: it has no `reserve`")
        return store

    def test_reservations_follow_one_another(self, place: StorePlace, rates: Store) -> None:
        """Through one store or several, each starts when the earlier are done."""
        stores = [rates, place.open()]
        found = [stores[number % 2].reserve(reservation(100)) for number in range(3)]
        assert all(each.granted for each in found)
        assert [round(each.free_at - found[0].free_at) for each in found] == [0, 100, 200]
        waits = [each.starts_at - each.now for each in found]
        assert waits[0] == 0
        assert [90 < wait - 100 * place <= 95 for place, wait in enumerate(waits[1:])] == [True, True]

    def test_a_wait_that_is_too_long_reserves_nothing(self, rates: Store) -> None:
        """The refusal has the waiting time."""
        first = rates.reserve(reservation(100))
        refused = rates.reserve(reservation(1, max_wait_s=10))
        assert (refused.granted, refused.free_at) == (False, first.free_at)
        assert refused.starts_at - refused.now > 10

    def test_refunds_move_the_clock_back(self, rates: Store) -> None:
        """With `only_at`, only if nothing was reserved after it."""
        first = rates.reserve(reservation(100))
        rates.settle("r \0", "tokens", 40)
        second = rates.reserve(reservation(10))
        assert round(second.free_at - first.free_at) == -30
        assert second.refunded == 40
        rates.settle("r \0", "tokens", 10, only_at=first.free_at)
        assert rates.rates("r \0")[0].free_at == second.free_at
        rates.settle("r \0", "tokens", 10, only_at=second.free_at)
        assert rates.rates("r \0")[0].free_at == second.free_at - 10

    def test_a_block_delays_every_start(self, rates: Store) -> None:
        """A shorter block does not end a longer one."""
        rates.block("r \0", for_s=50)
        rates.block("r \0", for_s=1)
        found = rates.reserve(reservation(1))
        assert 40 <= found.starts_at - found.now <= 50
        assert not rates.reserve(reservation(1, max_wait_s=10)).granted

    def test_slots_are_bounded_and_end_with_their_lease(self, place: StorePlace, rates: Store) -> None:
        """A released slot is free; so is an expired lease's."""
        leases = [admit(rates, f"run {number}") for number in range(3)]
        taken = [rates.slots(lease, "r", f"h{number}", limit=2) for number, lease in enumerate(leases)]
        assert taken == [True, True, False]
        assert [each.in_use for each in rates.rates("r")] == [2]
        rates.slots(leases[0], "r", "h0", limit=None)
        assert rates.slots(leases[2], "r", "h2", limit=2)
        place.advance(10_000)
        assert all(each.in_use == 0 for each in rates.rates("r"))
