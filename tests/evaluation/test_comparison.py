"""Comparison of measured cases: pairs, intervals and verdicts."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors._api.evaluation.comparison import Delta, compared, mean, paired

finite = st.floats(min_value=-1e6, max_value=1e6)
names = st.text(max_size=8)
values = st.dictionaries(names, finite, max_size=30)


def cases(n: int, value: float = 0.0) -> dict[str, float]:
    return {f"c{i}": value for i in range(n)}


def delta_of(metric: str, before: dict[str, float], after: dict[str, float], **options: object) -> Delta:
    found = compared("v1", {metric: before}, {metric: after}, **options).delta(metric)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_means_are_taken_over_pairs_only() -> None:
    """A case of one side changes neither mean, and is listed by name."""
    found = compared("v1", {"score.a": {"x": 1.0, "old": 9.0}}, {"score.a": {"x": 3.0, "new": 9.0}})
    assert (found.baseline, found.added, found.removed) == ("v1", ("new",), ("old",))
    delta = found.delta("score.a")
    assert delta is not None
    assert (delta.n, delta.before, delta.after, delta.difference) == (1, 1.0, 3.0, 2.0)


def test_a_case_without_a_value_takes_part_in_other_metrics() -> None:
    """A case that did not complete has a `pass` and no score; it is not unpaired."""
    before, after = {"pass": cases(3), "cost": cases(3)}, {"pass": cases(3), "cost": {"c0": 1.0}}
    found = compared("v1", before, after)
    assert [(delta.metric, delta.n) for delta in found.deltas] == [("pass", 3), ("cost", 1)]
    assert (found.added, found.removed) == ((), ())


@pytest.mark.parametrize(("before", "after", "verdict"), [(1.7e308, 1.7e308, "same"), (1.7e308, -1.7e308, "worse")])
def test_huge_values_have_finite_statistics(before: float, after: float, verdict: str) -> None:
    """Their sums are beyond the range of floats."""
    delta = delta_of("score.a", cases(12, before), cases(12, after))
    assert (delta.before, delta.after, delta.verdict) == (before, after, verdict)
    assert delta.low is not None
    assert delta.high is not None
    assert all(map(math.isfinite, (delta.difference, delta.low, delta.high)))


def test_a_metric_without_pairs_has_no_delta() -> None:
    """A new evaluator has nothing to be compared with."""
    assert compared("v1", {"pass": cases(2)}, {"pass": cases(2), "score.new": cases(2)}).delta("score.new") is None


@pytest.mark.parametrize(
    ("metric", "change", "verdict"),
    [
        ("pass", 1.0, "better"),
        ("pass", -1.0, "worse"),
        ("cost", 1.0, "worse"),
        ("tokens", -1.0, "better"),
        ("duration", 1.0, "worse"),
        ("score.tone", 1.0, "better"),
        ("turns", 1.0, "worse"),
        ("pass", 0.0, "same"),
    ],
)
def test_a_verdict_depends_on_the_direction_of_the_metric(metric: str, change: float, verdict: str) -> None:
    """More is better, except of costs, tokens, durations and turns."""
    assert delta_of(metric, cases(12), cases(12, change)).verdict == verdict


@pytest.mark.parametrize("name", ["score.errors", "errors"])
def test_lower_is_better_names_a_score_with_or_without_its_family(name: str) -> None:
    """`lower_is_better=("latency",)` and `("score.latency",)` mean the same."""
    assert delta_of("score.errors", cases(12), cases(12, -1.0), lower_is_better=(name,)).verdict == "better"
    assert delta_of("score.style", cases(12), cases(12, -1.0), lower_is_better=(name,)).verdict == "worse"
    assert delta_of("score.errors", cases(12), cases(12, -1.0)).verdict == "worse"


def test_fewer_than_ten_pairs_have_no_interval() -> None:
    """However large the difference is."""
    few, enough = delta_of("pass", cases(9), cases(9, 1.0)), delta_of("pass", cases(10), cases(10, 1.0))
    assert (few.low, few.high, few.verdict) == (None, None, "unknown")
    assert (enough.low, enough.high, enough.verdict) == (1.0, 1.0, "better")


def test_rounding_errors_of_means_are_no_difference() -> None:
    """Three repeats of 0.1 sum up to another float than 0.3."""
    assert delta_of("score.a", cases(12, 0.3), cases(12, 0.1 + 0.2)).verdict == "same"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_takes_no_part(value: float) -> None:
    """One NaN does not make every mean NaN."""
    delta = delta_of("score.a", {**cases(2, 1.0), "odd": value}, {**cases(2, 1.0), "odd": 1.0})
    assert (delta.n, delta.before, delta.after) == (2, 1.0, 1.0)


@given(values, values)
@settings(max_examples=50, deadline=None)
def test_an_interval_is_ordered_and_its_verdict_follows(before: dict[str, float], after: dict[str, float]) -> None:
    """The bounds are in order, and a verdict other than `same` excludes zero."""
    for delta in compared("v1", {"pass": before}, {"pass": after}).deltas:
        assert delta.n == len(before.keys() & after.keys())
        if delta.low is None or delta.high is None:
            assert (delta.n < 10, delta.verdict) == (True, "unknown")
        else:
            assert delta.low <= delta.high
            assert (delta.verdict == "same") == (delta.low <= 0 <= delta.high)


@given(st.dictionaries(names, st.tuples(finite, finite), min_size=10, max_size=20), st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_cases_does_not_matter(pairs: dict[str, tuple[float, float]], rng: random.Random) -> None:
    """The same data give the same interval, in whatever order a dataset lists its cases."""
    before, after = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
    shuffled = list(pairs)
    rng.shuffle(shuffled)
    other = compared("v1", {"pass": {name: before[name] for name in shuffled}}, {"pass": after})
    assert other == compared("v1", {"pass": before}, {"pass": after})


SCRIPT = """
import json
from flujo_actors._api.evaluation.comparison import compared
before = {f"c{i}": (i * 37 % 11) / 10 for i in range(40)}
after = {f"c{i}": (i * 53 % 13) / 10 for i in range(40)}
delta, = compared("v1", {"score.a": before}, {"score.a": after}).deltas
print(json.dumps([delta.low, delta.high]))
"""


def test_two_processes_compute_the_same_interval() -> None:
    """E6: the generator depends on names, never on the hash seed of a process."""
    seen = []
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True, timeout=110
        )
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1]
    assert seen[0][0] < seen[0][1]


def test_the_interval_covers_the_true_difference_about_as_often_as_documented() -> None:
    """95 % is nominal: the documented coverage is 93 % at twenty pairs; 85 % here is far from chance."""
    rng, covered, rounds = random.Random(7), 0, 60
    for turn in range(rounds):
        before = {f"{turn}-{i}": rng.gauss(0, 1) for i in range(20)}
        after = {name: value + rng.gauss(0.5, 1) for name, value in before.items()}
        delta = delta_of("score.a", before, after)
        assert delta.low is not None
        assert delta.high is not None
        covered += delta.low <= 0.5 <= delta.high
    assert covered / rounds > 0.8


def test_pairs_are_sorted_by_name() -> None:
    """Resampling draws from a list whose order is known."""
    assert list(paired({"b": 1.0, "a": 2.0}, {"a": 1.0, "b": 3.0})) == ["a", "b"]


def test_the_mean_of_nothing_is_no_number() -> None:
    """Nothing was measured."""
    assert math.isnan(mean([]))
