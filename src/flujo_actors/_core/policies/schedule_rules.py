"""Schedules: declaration, progress, and decisions about due instants.

Rules:

1. An instant is a scheduled time in UTC. It is evaluated once: the watermark is the last evaluated one, and moves
   forward only, also if the instant is skipped or the clock is set back.
2. An evaluated instant counts as fired, skipped, missed or failed.
3. An instant that is older than `LATE_S` when it is evaluated is missed. `one` fires the newest of them, `all` each,
   both within `missed_within_s`; `skip` fires none.
4. Overlap looks at the runs of earlier instants that have not ended. Triggered and backfilled runs do not count.
5. Jitter delays the evaluation of an instant by a share of `jitter_s` that depends on name and instant alone.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from ...errors import RunExists
from ..records.records import Admission, Lease

Overlap: TypeAlias = Literal["skip", "queue", "cancel", "allow"]
"""Handling of an instant while an earlier run has not ended."""

Missed: TypeAlias = Literal["one", "skip", "all"]
"""Handling of instants without a worker at their time."""

Instants: TypeAlias = Callable[[float], Iterator[float]]
"""Iterate over the instants after a time."""

LATE_S = 60.0
"""Age of an instant from which on it is missed."""

MOST_PER_LOOK = 100
"""Maximum number of instants that one look fires."""

_MOST_COUNTED = 100_000
"""Maximum number of missed instants that one look counts."""


@attrs.frozen(kw_only=True)
class Schedule:
    """Declaration of a schedule, as stored."""

    name: str
    pipeline: str
    queue: str = "default"
    cron: str | None = None
    every_s: float | None = None
    zone: str = "UTC"
    input: str | None = None
    """Stored form of the input as JSON text; `None` for none."""
    calls_input: bool = False
    """Whether a function of the declaring program makes the input."""
    context: str | None = None
    """Stored form of the first context's values as JSON text."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    priority: int = 0
    key: str | None = None
    overlap: Overlap = "skip"
    missed: Missed = "one"
    missed_within_s: float = 86_400.0
    jitter_s: float = 0.0
    starts_at: float | None = None
    ends_at: float | None = None

    @property
    def timing(self) -> tuple[object, ...]:
        """Return the parts whose change moves the watermark to now."""
        return self.cron, self.every_s, self.zone

    def delay(self, instant: float) -> float:
        """Return the jitter of an instant, equal in every process."""
        if not self.jitter_s:
            return 0.0
        digest = hashlib.sha256(f"{self.name}@{instant!r}".encode("utf-8", "surrogatepass")).digest()
        return self.jitter_s * int.from_bytes(digest[:6], "big") / 2**48

    def run_id(self, instant: float) -> str:
        """Return the run id of an instant."""
        return f"{self.name}@{utc_text(instant)}"


@attrs.frozen(kw_only=True)
class RequestedRun:
    """Run that a client triggered or backfilled."""

    run_id: str
    at: float


@attrs.frozen(kw_only=True)
class Progress:
    """State of a schedule between two looks."""

    watermark: float | None = None
    """Last evaluated instant; `None` until the store's time is known."""
    paused: bool = False
    open: tuple[str, ...] = ()
    """Runs of instants that had not ended at the last look."""
    queued: str | None = None
    """Sleeping run that starts when the open runs have ended."""
    requests: tuple[RequestedRun, ...] = ()
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    last_instant: float | None = None
    last_run_id: str | None = None
    error: str | None = None


@attrs.frozen(kw_only=True)
class StoredSchedule:
    """Row of a schedule."""

    name: str
    pipeline: str
    queue: str
    declared: str
    """`Schedule` as JSON text."""
    progress: str
    """`Progress` as JSON text."""
    due_at: float | None
    """Time of the next look; `None` for none."""
    version: int = 0
    """Number of changes; a change of another version is refused."""
    now: float = 0.0
    """Time of the read by the store's clock."""


def schedule_of(row: StoredSchedule) -> Schedule:
    """Return a stored row's declaration, ignoring fields of later versions."""
    return Schedule(**_known(Schedule, json.loads(row.declared)))


def progress_of(row: StoredSchedule) -> Progress:
    """Return the progress of a stored row."""
    found = _known(Progress, json.loads(row.progress))
    requests = tuple(RequestedRun(**_known(RequestedRun, each)) for each in found.get("requests", ()))
    return Progress(**{**found, "open": tuple(found.get("open", ())), "requests": requests})


def _known(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in attrs.fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def row_of(schedule: Schedule, progress: Progress, instants: Instants, *, version: int = 0) -> StoredSchedule:
    """Return a schedule's row with the time of its next check."""
    return StoredSchedule(
        name=schedule.name,
        pipeline=schedule.pipeline,
        queue=schedule.queue,
        declared=json.dumps(attrs.asdict(schedule)),
        progress=json.dumps(attrs.asdict(progress)),
        due_at=due_at(schedule, progress, instants),
        version=version,
    )


def due_at(schedule: Schedule, progress: Progress, instants: Instants) -> float | None:
    """Return the next check's time; 0 if requests or runs wait."""
    if progress.requests or progress.queued is not None or progress.watermark is None:
        return 0.0
    if progress.paused:
        return None
    return next((instant + schedule.delay(instant) for instant in instants(progress.watermark)), None)


@attrs.frozen(kw_only=True)
class DueInstants:
    """Due instants in order, number of missed ones, new watermark."""

    fire: tuple[float, ...]
    missed: int
    watermark: float


def due_instants(schedule: Schedule, progress: Progress, instants: Instants, now: float) -> DueInstants:
    """Return the due instants after the watermark (rules 1 to 3)."""
    watermark = now if progress.watermark is None else progress.watermark
    nothing = DueInstants(fire=(), missed=0, watermark=watermark)
    if progress.paused:
        return nothing
    look = _DueCheck(schedule, watermark, instants, now)
    newest, fresh = look.newest_late(), look.fresh()
    if newest is None and not fresh:
        return nothing
    kept = [] if newest is None else look.kept(newest)
    if len(kept) == MOST_PER_LOOK and kept[-1] != newest:  # the next look continues after the last of them
        return DueInstants(fire=tuple(kept), missed=look.count_late(kept[-1]) - len(kept), watermark=kept[-1])
    late = 0 if newest is None else look.count_late(newest)
    last = [*(() if newest is None else (newest,)), *fresh][-1]
    return DueInstants(fire=(*kept, *fresh), missed=max(0, late - len(kept)), watermark=last)


@attrs.frozen
class _DueCheck:
    """Due instants of a schedule at one time.

    A schedule may have been without a worker for a year: nothing here walks over all of its instants.
    """

    schedule: Schedule
    watermark: float
    instants: Instants
    now: float

    def _is_late(self, instant: float) -> bool:
        return instant + self.schedule.delay(instant) < self.now - LATE_S

    def fresh(self) -> list[float]:
        """Return the due instants that are not late."""
        begin = max(self.watermark, self.now - LATE_S - self.schedule.jitter_s)
        due = itertools.takewhile(lambda each: each + self.schedule.delay(each) <= self.now, self.instants(begin))
        return [each for each in due if not self._is_late(each)]

    def newest_late(self) -> float | None:
        """Return the newest missed instant, searched backward in growing windows."""
        window = 2 * LATE_S + self.schedule.jitter_s
        while True:
            begin = max(self.watermark, self.now - window)
            late = deque(itertools.takewhile(self._is_late, self.instants(begin)), maxlen=1)
            if late or begin == self.watermark:
                return late[0] if late else None
            window *= 2

    def kept(self, newest: float) -> list[float]:
        """Return the missed instants to fire, oldest first."""
        oldest = self.now - self.schedule.missed_within_s
        if self.schedule.missed == "skip" or newest < oldest:
            return []
        if self.schedule.missed == "one":
            return [newest]
        late = itertools.takewhile(self._is_late, self.instants(max(self.watermark, math.nextafter(oldest, -math.inf))))
        return list(itertools.islice(late, MOST_PER_LOOK))

    def count_late(self, until: float) -> int:
        """Return the number of missed instants up to one of them."""
        late = itertools.takewhile(lambda each: each <= until, self.instants(self.watermark))
        return sum(1 for _ in itertools.islice(late, _MOST_COUNTED))


OverlapAction: TypeAlias = Literal["start", "queue", "skip"]


def overlap_action(schedule: Schedule, progress: Progress) -> OverlapAction:
    """Return the next instant's handling, given open runs (rule 4)."""
    if schedule.overlap == "allow" or not (progress.open or progress.queued is not None):
        return "start"
    return "skip" if schedule.overlap == "skip" or progress.queued is not None else "queue"


def utc_text(instant: float) -> str:
    """Return a time as text in UTC: `2026-11-17T09:00:00Z`."""
    return dt.datetime.fromtimestamp(instant, dt.UTC).isoformat().replace("+00:00", "Z")


def every_instants(every_s: float, base: float) -> Instants:
    """Return the multiples of an interval, counted from `base`."""

    def after(time: float) -> Iterator[float]:
        number = math.floor((time - base) / every_s) + 1
        for count in itertools.count(number):
            instant = base + count * every_s
            if instant > time:
                yield instant

    return after


def bounded(instants: Instants, starts_at: float | None, ends_at: float | None) -> Instants:
    """Return the instants in `[starts_at, ends_at)`."""

    def after(time: float) -> Iterator[float]:
        found = instants(time if starts_at is None else max(time, math.nextafter(starts_at, -math.inf)))
        return found if ends_at is None else itertools.takewhile(lambda each: each < ends_at, found)

    return after


def shortest_interval(found: Iterable[float]) -> float:
    """Return the shortest interval of successive instants."""
    return min((later - earlier for earlier, later in itertools.pairwise(found)), default=math.inf)


class Schedules(Protocol):
    """Optional: schedules, whose declaration and progress are opaque texts.

    A change names the version that it read, and is refused if the schedule has another one.
    """

    def declare(self, schedule: StoredSchedule) -> bool:
        """Create a schedule; `False` if the name is used."""

    def get_all(
        self, *, pipeline: str | None = None, name: str | None = None, due: bool = False
    ) -> list[StoredSchedule]:
        """Return the matching schedules by name, with the store's time as `now`.

        `due` are those whose `due_at` has come.
        """

    def change(self, schedule: StoredSchedule) -> bool:
        """Replace a schedule; `False` if it has another version."""

    def fire(self, schedule: StoredSchedule, admissions: Sequence[Admission]) -> list[Lease | RunExists] | None:
        """Create runs and replace the schedule in one transaction.

        Used ids are returned as `RunExists` by position. `None`, and nothing is written, if the version is another or a
        concurrent call has locked the schedule.
        """

    def remove(self, name: str) -> bool:
        """Delete a schedule; its runs stay."""
