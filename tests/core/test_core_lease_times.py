"""When leases are renewed and given up, decided from times alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._durable.leases import LeaseTimes


def times(**known: float) -> LeaseTimes:
    return LeaseTimes(lease_s=30.0, **{"asked_at": 100.0, **known})


def test_leases_are_renewed_three_times_per_lease() -> None:
    """A third of a lease after the last time, and not while an answer is outstanding."""
    assert not times().is_due(109.9)
    assert times().is_due(110.0)
    assert not times(asking=True).is_due(200.0)


def test_a_failed_renewal_is_repeated_soon() -> None:
    """A thirtieth of a lease after it was sent; the reply to a pending one is checked as often."""
    assert not times(failed=True).is_due(100.9)
    assert times(failed=True).is_due(101.0)
    assert times(asking=True).next_check([], 100.0) == 101.0


def test_a_lease_that_may_still_last_is_never_given_up() -> None:
    """Whatever the store does."""
    assert not times(failed=True).is_over(130.0, 129.9, silent_s=1000)
    assert not times(asking=True).is_over(130.0, 129.9, silent_s=1000)


def test_a_lease_is_given_up_when_it_is_over_and_the_store_refuses_or_is_silent() -> None:
    """The store need not have answered."""
    assert times(failed=True).is_over(130.0, 130.0, silent_s=0)
    assert times(asking=True).is_over(130.0, 130.0, silent_s=10)


def test_who_comes_late_asks_before_giving_up() -> None:
    """A process that was stopped for long may still have its run: nobody need have wanted it."""
    late = times()
    assert late.is_due(1000.0)
    assert not late.is_over(130.0, 1000.0, silent_s=900)
    asking = times(asked_at=1000.0, asking=True)
    assert not asking.is_over(130.0, 1009.0, silent_s=9)
    assert asking.is_over(130.0, 1010.0, silent_s=10)


@given(
    now=st.floats(100, 1000),
    untils=st.lists(st.floats(0, 1000)),
    asked_at=st.floats(0, 1000),
    asking=st.booleans(),
)
def test_somebody_always_looks_again_within_a_third_of_a_lease_or_when_one_ends(
    now: float, untils: list[float], asked_at: float, asking: bool
) -> None:
    """The next look lies ahead, and no end of a lease lies before it."""
    known = times(asked_at=min(asked_at, now), asking=asking)
    look = known.next_check(untils, now)
    assert look > now
    assert not any(now < until < look for until in untils)
    assert look <= now + known.every_s
