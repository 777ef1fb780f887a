"""The waiting times between attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors.actors import Backoff
from flujo_actors.errors import DeclarationError

backoffs = st.builds(
    lambda first, factor, extra, jitter: Backoff(first=first, factor=factor, ceiling=first + extra, jitter=jitter),
    st.floats(0, 10),
    st.floats(1, 10),
    st.floats(0, 100),
    st.floats(0, 1),
)
chances = st.floats(0, 1, exclude_max=True)


def test_waits_double_until_the_ceiling() -> None:
    """The defaults double from a tenth of a second and stop growing at the ceiling."""
    backoff = Backoff(jitter=0, ceiling=0.5)
    assert [backoff.delay(n, lambda: 0.0) for n in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_jitter_only_shortens() -> None:
    """Chance takes away at most its share, so the ceiling holds with jitter too."""
    backoff = Backoff(first=10, ceiling=10, jitter=0.2)
    assert backoff.delay(1, lambda: 0.0) == 10
    assert backoff.delay(1, lambda: 0.5) == pytest.approx(9)


def test_no_backoff_waits_for_nothing() -> None:
    """`Backoff.none()` is zero for the first attempt and for the ten-thousandth."""
    assert {Backoff.none().delay(n, lambda: 0.9) for n in (1, 2, 10_000)} == {0.0}


def test_attempts_count_from_one() -> None:
    """There is no attempt zero."""
    with pytest.raises(ValueError, match="count from 1"):
        Backoff().delay(0, lambda: 0.0)


@given(backoffs, st.integers(1, 10_000), chances)
def test_a_wait_is_never_negative_nor_above_the_ceiling(backoff: Backoff, attempt: int, chance: float) -> None:
    """However many attempts there were."""
    assert 0 <= backoff.delay(attempt, lambda: chance) <= backoff.ceiling


@given(backoffs, st.integers(1, 10_000), chances)
def test_a_wait_is_never_shorter_than_the_one_before(backoff: Backoff, attempt: int, chance: float) -> None:
    """At equal chance, waits only grow."""
    assert backoff.delay(attempt, lambda: chance) <= backoff.delay(attempt + 1, lambda: chance)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": -1},
        {"first": math.nan},
        {"factor": 0.5},
        {"factor": math.inf},
        {"ceiling": 0.01},
        {"ceiling": math.inf},
        {"jitter": 1.5},
        {"jitter": -0.1},
    ],
)
def test_nonsense_is_refused_where_it_is_declared(wrong: dict[str, float]) -> None:
    """The message names the field."""
    with pytest.raises(DeclarationError, match=next(iter(wrong))):
        Backoff(**wrong)
