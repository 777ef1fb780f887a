"""What the samples say: figures with their noise, who is first, and whether the goals are met. Pure."""

import statistics
from collections.abc import Callable, Iterable, Iterator

import attrs

from benchmarks.roster import OURS
from benchmarks.service.match import Case, Sample
from benchmarks.service.roster import BARE, LANGGRAPH


@attrs.frozen(kw_only=True)
class Measure:
    """Something that is read off a sample; smaller is better, whatever is shown."""

    title: str
    at_once: int
    read: Callable[[Sample], float]
    show: Callable[[float], str]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _per_second(seconds: float) -> str:
    return f"{1 / seconds:.1f}/s"


CPU = Measure(title="CPU per ticket", at_once=25, read=lambda sample: sample.cpu_of_a_ticket, show=_milliseconds)
ALONE = Measure(
    title="latency alone", at_once=1, read=lambda sample: statistics.median(sample.latencies), show=_milliseconds
)
AT_25 = Measure(
    title="tickets, 25 at a time", at_once=25, read=lambda sample: sample.wall / sample.case.tickets, show=_per_second
)
AT_100 = attrs.evolve(AT_25, title="tickets, 100 at a time", at_once=100)
MEASURES = (CPU, ALONE, AT_25, AT_100)


@attrs.frozen(kw_only=True)
class Figure:
    """What one desk needed, over all rounds."""

    desk: str
    store: str
    way: str
    measure: Measure
    each: tuple[float, ...]

    @property
    def best(self) -> float:
        """The round that was disturbed least."""
        return min(self.each)

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of the median: the noise."""
        return (max(self.each) - min(self.each)) / statistics.median(self.each)

    @property
    def shown(self) -> str:
        """The best round with its noise."""
        noise = f" ±{self.spread / 2:.0%}" if len(self.each) > 1 else ""
        return f"{self.measure.show(self.best)}{noise}"


def figures(samples: Iterable[Sample], measures: Iterable[Measure] = MEASURES) -> list[Figure]:
    """Every figure there is a sample for, in the order of the measures and of the samples."""
    samples = tuple(samples)
    return [figure for measure in measures for figure in _of(measure, samples)]


def _of(measure: Measure, samples: tuple[Sample, ...]) -> Iterator[Figure]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for sample in samples:
        if sample.case.at_once == measure.at_once:
            found.setdefault(_key(sample.desk, sample.case), []).append(measure.read(sample))
    for (desk, store, way), each in found.items():
        yield Figure(desk=desk, store=store, way=way, measure=measure, each=tuple(each))


def _key(desk: str, case: Case) -> tuple[str, str, str]:
    return desk, case.store, case.way


# --- goals ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Goal:
    """At most so many times the processor time that another desk needs for the same ticket."""

    way: str
    store: str
    beside: str
    at_most: float

    @property
    def title(self) -> str:
        limit = self.beside if self.at_most == 1 else f"{self.beside} + {self.at_most - 1:.0%}"
        return f"{self.way}, {self.store}: at most {limit}"


GOALS = (
    Goal(way="awaited", store="memory", beside=BARE, at_most=1.1),
    Goal(way="awaited", store="sqlite", beside=LANGGRAPH, at_most=1.0),
    Goal(way="watched", store="memory", beside=BARE, at_most=1.1),
    Goal(way="watched", store="sqlite", beside=LANGGRAPH, at_most=1.0),
)


@attrs.frozen(kw_only=True)
class Verdict:
    """A goal beside what was seen; no ratio means that somebody was not there."""

    goal: Goal
    ratio: float | None

    @property
    def met(self) -> bool:
        return self.ratio is not None and self.ratio <= self.goal.at_most

    @property
    def said(self) -> str:
        """How it stands, in a word or two."""
        if self.ratio is None:
            return "not measured"
        return "met" if self.met else "not met"


def verdicts(found: Iterable[Figure]) -> list[Verdict]:
    """Every goal, by the processor time of the best rounds."""
    best = {(each.desk, each.store, each.way): each.best for each in found if each.measure == CPU}
    return [_verdict(goal, best) for goal in GOALS]


def _verdict(goal: Goal, best: dict[tuple[str, str, str], float]) -> Verdict:
    ours, other = best.get((OURS, goal.store, goal.way)), best.get((goal.beside, goal.store, goal.way))
    return Verdict(goal=goal, ratio=ours / other if ours and other else None)


# --- who is first -----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class First:
    """Who needs least, and how much more the next one needs."""

    desk: str
    next: str
    behind: float
    close: bool
    """Whether what lies between them is less than the noise."""

    @property
    def said(self) -> str:
        more = f"{self.next} +{self.behind:.0%}"
        return f"{self.desk} or {more}, within the noise" if self.close else f"**{self.desk}** ({more})"


def first_of(group: Iterable[Figure]) -> First | None:
    """Who is first among figures of one kind, if there are two."""
    ranked = sorted(group, key=lambda figure: figure.best)
    if len(ranked) < 2:
        return None
    behind = ranked[1].best / ranked[0].best - 1
    noise = max(ranked[0].spread, ranked[1].spread) / 2
    return First(desk=ranked[0].desk, next=ranked[1].desk, behind=behind, close=behind < noise)
