"""Samples and what they say. Pure."""

import statistics

import attrs

from benchmarks.works import Work


@attrs.frozen(kw_only=True)
class Figure:
    """What one contender needed for one work, per unit of work, over all repetitions."""

    work: Work
    contender: str
    divided: bool = False
    """Whether the contender was asked for less than the others, because it is slow."""
    each: tuple[float, ...] = ()
    """Seconds, bytes or calls per unit; smaller is better, whatever unit is shown."""
    error: str | None = None

    @property
    def best(self) -> float:
        """The repetition that was disturbed least; of differences, the usual one."""
        return self.median if self.work.difference else min(self.each)

    @property
    def median(self) -> float:
        """The usual repetition."""
        return statistics.median(self.each)

    @property
    def spread(self) -> float:
        """How far the repetitions lie apart, as a share of the median: the noise of this figure."""
        return (max(self.each) - min(self.each)) / abs(self.median) if self.median else 0.0

    def ratio_to(self, other: "Figure | None") -> float | None:
        """How many times the other's cost this is, best against best."""
        if other is None or not other.each or not self.each or not other.best:
            return None
        return self.best / other.best
