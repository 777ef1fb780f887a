"""Comparison of two sets of measured cases: paired bootstrap, deltas and verdicts.

Rules:

1. A metric is a mapping from case to value. A case without a value takes no part in that metric.
2. Cases are paired by name. Unpaired names are listed, and take no part in statistics.
3. The 95 % interval is the percentile interval of the paired bootstrap. Its generator is seeded by the metric and the
   case names, so that the same data give the same interval in every process.
4. A verdict needs an interval, and an interval needs ten pairs.
5. Sums, means and differences are finite. Beyond the range of floats they are the largest float.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

import attrs

Values: TypeAlias = Mapping[str, float]
"""Values of one metric by case."""
Metrics: TypeAlias = Mapping[str, Values]
"""Values of each metric by case."""

LOWER_IS_BETTER = frozenset(
    {"cost", "tokens", "duration", "turns", "errors", "different", "diverged", "skipped"},
)
"""Metrics whose decrease is an improvement."""

PAIRS_OF_AN_INTERVAL = 10
"""Number of pairs below which there is no interval."""

_RESAMPLES = 2_000
_LEVEL = 0.95
_LARGEST = sys.float_info.max


@attrs.frozen(kw_only=True)
class Delta:
    """Change of one metric between paired cases, with its 95 % interval."""

    metric: str
    """Name of the metric."""
    n: int
    """Number of pairs."""
    before: float
    """Mean of the baseline over the pairs."""
    after: float
    """Mean of this evaluation over the pairs."""
    difference: float
    """Mean of `after` minus `before`."""
    low: float | None
    """Lower bound of the interval; `None` below ten pairs."""
    high: float | None
    """Upper bound of the interval; `None` below ten pairs."""
    verdict: str
    """`better`, `worse`, `same`, or `unknown` without an interval."""


@attrs.frozen(kw_only=True)
class Comparison:
    """Differences to a baseline: one `Delta` per metric, and unpaired names."""

    baseline: str
    """Id of the evaluation that is compared with."""
    deltas: tuple[Delta, ...]
    """Difference of each metric."""
    added: tuple[str, ...] = ()
    """Cases that the baseline does not have."""
    removed: tuple[str, ...] = ()
    """Cases that only the baseline has."""
    changed: tuple[str, ...] = ()
    """Paired cases whose status, assertion or score differs."""

    def delta(self, metric: str) -> Delta | None:
        """Return the delta of one metric, if it has pairs.

        Args:
            metric: name of the metric.
        """
        return next((each for each in self.deltas if each.metric == metric), None)


def compared(baseline: str, before: Metrics, after: Metrics, *, lower_is_better: Iterable[str] = ()) -> Comparison:
    """Return the comparison of two sets of metrics."""
    known, now = _cases(before), _cases(after)
    lower = frozenset(lower_is_better)
    pairs = ((metric, paired(before.get(metric, {}), values)) for metric, values in after.items())
    return Comparison(
        baseline=baseline,
        deltas=tuple(_delta(metric, found, lower=_is_lower(metric, lower)) for metric, found in pairs if found),
        added=tuple(sorted(now - known)),
        removed=tuple(sorted(known - now)),
        changed=tuple(sorted(_changed(before, after))),
    )


def _changed(before: Metrics, after: Metrics) -> set[str]:
    """Return the cases with another judgement; costs and durations always differ."""
    judged = [metric for metric in after if metric == "pass" or metric.startswith(("assert.", "score."))]
    pairs = ((name, pair) for metric in judged for name, pair in paired(before.get(metric, {}), after[metric]).items())
    return {name for name, pair in pairs if _change(*pair)}


def paired(before: Values, after: Values) -> dict[str, tuple[float, float]]:
    """Return the finite values of paired cases, sorted by name."""
    both = ((name, (before[name], after[name])) for name in sorted(before.keys() & after.keys()))
    return {name: pair for name, pair in both if all(map(math.isfinite, pair))}


def mean(values: Iterable[float]) -> float:
    """Return the mean, or NaN of nothing."""
    listed = list(values)
    try:
        return math.fsum(listed) / len(listed) if listed else math.nan
    except OverflowError:
        return float(sum(map(Fraction, listed)) / len(listed))


def total(values: Iterable[float]) -> float:
    """Return the sum, at most the largest float (rule 5)."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except OverflowError:
        return _in_range(mean(listed) * len(listed))


def _in_range(value: float) -> float:
    return max(-_LARGEST, min(_LARGEST, value))


def _cases(metrics: Metrics) -> set[str]:
    return {name for values in metrics.values() for name in values}


def _is_lower(metric: str, lower: frozenset[str]) -> bool:
    """Return whether a decrease is better; a name may omit its family."""
    return metric in LOWER_IS_BETTER or metric in lower or metric.partition(".")[2] in lower


def _delta(metric: str, pairs: Mapping[str, tuple[float, float]], *, lower: bool) -> Delta:
    before, after = mean(pair[0] for pair in pairs.values()), mean(pair[1] for pair in pairs.values())
    interval = _interval(metric, {name: _change(*pair) for name, pair in pairs.items()})
    return Delta(
        metric=metric,
        n=len(pairs),
        before=before,
        after=after,
        difference=_change(before, after),
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        verdict=_verdict(interval, lower=lower),
    )


def _change(before: float, after: float) -> float:
    """Return the difference; rounding errors of means are none."""
    return 0.0 if math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12) else _in_range(after - before)


def _verdict(interval: tuple[float, float] | None, *, lower: bool) -> str:
    if interval is None:
        return "unknown"
    low, high = interval
    if low <= 0 <= high:
        return "same"
    return "better" if (low > 0) != lower else "worse"


def _interval(metric: str, changes: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of the mean change (rule 3)."""
    n, drawn = len(changes), list(changes.values())
    if n < PAIRS_OF_AN_INTERVAL:
        return None
    rng = random.Random(_seed(metric, changes))
    means = sorted(mean(rng.choices(drawn, k=n)) for _ in range(_RESAMPLES))
    tail = round(_RESAMPLES * (1 - _LEVEL) / 2)
    return means[tail], means[-1 - tail]


def _seed(metric: str, names: Iterable[str]) -> int:
    digest = hashlib.sha256()
    for name in (metric, *names):
        encoded = name.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded) + encoded)
    return int.from_bytes(digest.digest()[:8], "big")
