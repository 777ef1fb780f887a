"""Totals of runs: counts, percentiles, tokens and cost by group.

Rules:

1. A run that ended counts in the period of its end, an open one in that of its creation.
2. Percentiles are exact, by nearest rank: the least value that at least p % of the values do not exceed.
3. Days and hours begin by the clock of a time zone.
4. Runs are read in pages, so that memory holds three numbers of each run and no transaction is long.
"""

from __future__ import annotations

import datetime as dt
import math
import time
import zoneinfo
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..._core.labels import checked_names
from ..._core.records.records import RunFigures, RunQuery, has_ended
from ...errors import DeclarationError
from ...stores._store_port import Store, required
from .bulk_actions import Moment, RunFilter, epoch_seconds

_LABEL = "label:"
_GROUPS = ("pipeline", "day", "hour", "status", "queue")
_MOST_GROUPS = 3

PAGE = 10_000
"""Number of runs in one query."""

_QUARTER_S = 900
"""Offsets of time zones change at multiples of it."""


@attrs.frozen(kw_only=True)
class TotalsRow:
    """Totals of one group of runs."""

    key: Mapping[str, str | None]
    """Values of the group; `None` without the label or queue."""
    runs: int
    """Number of runs."""
    completed: int = 0
    """Number of completed runs."""
    failed: int = 0
    """Number of failed runs."""
    aborted: int = 0
    """Number of aborted runs."""
    open: int = 0
    """Runs that have not ended."""
    p50_s: float | None = None
    """Seconds from creation to end, median."""
    p95_s: float | None = None
    """Seconds from creation to end, 95th percentile."""
    worked_p50_s: float | None = None
    """Seconds of execution of ended runs, median."""
    worked_p95_s: float | None = None
    """Seconds of execution of ended runs, 95th percentile."""
    queued_p95_s: float | None = None
    """Seconds from creation to the first claim."""
    tokens: int = 0
    """Tokens of all runs."""
    cost_usd: float = 0.0
    """Cost of all runs."""


@attrs.define(eq=False)
class _Group:
    """Numbers of one group while runs are read."""

    statuses: dict[str, int] = attrs.Factory(dict)
    took_s: array[float] = attrs.Factory(lambda: array("d"))
    worked_s: array[float] = attrs.Factory(lambda: array("d"))
    queued_s: array[float] = attrs.Factory(lambda: array("d"))
    tokens: int = 0
    cost_usd: float = 0.0

    def add(self, run: RunFigures) -> None:
        self.statuses[run.status] = self.statuses.get(run.status, 0) + 1
        self.tokens += run.tokens
        self.cost_usd += run.cost_usd
        if run.started_at is not None:
            self.queued_s.append(max(0.0, run.started_at - run.created_at))
        if run.ended_at is not None:
            self.took_s.append(max(0.0, run.ended_at - run.created_at))
            self.worked_s.append(run.worked_s)

    def row(self, key: Mapping[str, str | None]) -> TotalsRow:
        ended = {status: count for status, count in self.statuses.items() if has_ended(status)}  # type: ignore[arg-type]
        runs = sum(self.statuses.values())
        took_s, worked_s = sorted(self.took_s), sorted(self.worked_s)
        return TotalsRow(
            key=key,
            runs=runs,
            **ended,
            open=runs - sum(ended.values()),
            p50_s=nearest_rank(took_s, 50),
            p95_s=nearest_rank(took_s, 95),
            worked_p50_s=nearest_rank(worked_s, 50),
            worked_p95_s=nearest_rank(worked_s, 95),
            queued_p95_s=nearest_rank(sorted(self.queued_s), 95),
            tokens=self.tokens,
            cost_usd=self.cost_usd,
        )


def nearest_rank(ordered: Sequence[float], percent: int) -> float | None:
    """Return a percentile of ascending values; None without values (rule 2)."""
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1] if ordered else None


def totals(
    store: Store,
    by: Sequence[str],
    *,
    since: Moment | None,
    until: Moment | None,
    where: RunFilter | None,
    zone: str,
) -> list[TotalsRow]:
    """Return the totals of runs by group, ordered. Blocks."""
    required(store, "figures", subject="totals", port="RunTotals")
    groups, labels, now = _checked_groups(by), _labels_in(by), time.time()
    key_of = _key_reader(groups, labels, _checked_zone(zone))
    found: dict[tuple[str | None, ...], _Group] = {}
    for run in _figures(store, _query(where, now), labels, _period(since, until, now)):
        key = key_of(run)
        group = found.get(key)
        if group is None:
            group = found[key] = _Group()
        group.add(run)
    ordered = sorted(found, key=lambda key: [(each is None, each or "") for each in key])
    return [found[key].row(dict(zip(groups, key, strict=True))) for key in ordered]


def _checked_groups(by: Sequence[str]) -> tuple[str, ...]:
    groups = (by,) if isinstance(by, str) else tuple(by)
    for each in groups:
        if each not in _GROUPS and not (isinstance(each, str) and each.startswith(_LABEL)):
            known = ", ".join(map(repr, _GROUPS))
            raise DeclarationError(f"totals: there is no group {each!r:.100}; it is any of {known} or 'label:<name>'")
    if len(groups) > _MOST_GROUPS:
        raise DeclarationError(f"totals: by has {len(groups)} groups, at most {_MOST_GROUPS}")
    return groups


def _labels_in(by: Sequence[str]) -> tuple[str, ...]:
    listed = (by,) if isinstance(by, str) else by
    names = [each.removeprefix(_LABEL) for each in listed if each.startswith(_LABEL)]
    return checked_names(names, subject="totals: by")


def _checked_zone(zone: str) -> dt.tzinfo:
    if zone == "UTC":
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DeclarationError(f"totals: there is no time zone {zone!r:.100}") from error


def _period(since: Moment | None, until: Moment | None, now: float) -> tuple[float, float]:
    first = -math.inf if since is None else epoch_seconds(since, subject="totals: since", now=now)
    end = math.inf if until is None else epoch_seconds(until, subject="totals: until", now=now)
    return max(first, -1e18), min(end, 1e18)


def _query(where: RunFilter | None, now: float) -> RunQuery:
    if where is None:
        return RunQuery(order="created")
    if not isinstance(where, RunFilter):
        raise DeclarationError(f"totals: where must be a RunFilter(…), not {where!r:.100}")
    if where.state is not None or where.run_ids is not None:
        raise DeclarationError("totals: a filter by state or run_ids has no totals; filter by status, labels or others")
    return where.query(now=now)


def _figures(store: Store, query: RunQuery, labels: Sequence[str], period: tuple[float, float]) -> Iterator[RunFigures]:
    """Yield the numbers of a period's runs (rule 4)."""
    for ended in (True, False):
        last: RunFigures | None = None
        while True:
            page = store.figures(query, labels=labels, period=period, ended=ended, after=last, limit=PAGE)
            yield from page
            if len(page) < PAGE:
                break
            last = page[-1]


def _key_reader(
    groups: Sequence[str], labels: Sequence[str], zone: dt.tzinfo
) -> Callable[[RunFigures], tuple[str | None, ...]]:
    """Return a function of a run's group key."""
    known: dict[tuple[str, int], str] = {}

    def period(unit: str, run: RunFigures) -> str:
        quarter = int((run.created_at if run.ended_at is None else run.ended_at) // _QUARTER_S)
        name = known.get((unit, quarter))
        if name is None:
            name = known[unit, quarter] = _period_name(unit, quarter * _QUARTER_S, zone)
        return name

    readers: list[Callable[[RunFigures], Any]] = []
    for each in groups:
        if each in ("day", "hour"):
            readers.append(lambda run, unit=each: period(unit, run))  # type: ignore[misc]
        elif each.startswith(_LABEL):
            place = labels.index(each.removeprefix(_LABEL))
            readers.append(lambda run, place=place: run.labels[place])  # type: ignore[misc]
        else:
            readers.append(lambda run, name=each: getattr(run, name))  # type: ignore[misc]
    return lambda run: tuple([read(run) for read in readers])


def _period_name(unit: str, at: float, zone: dt.tzinfo) -> str:
    """Return the day or hour of a time: `2026-11-17`, `2026-11-17T22:00+00:00`."""
    local = dt.datetime.fromtimestamp(at, zone)
    return f"{local:%Y-%m-%d}" if unit == "day" else local.replace(minute=0).isoformat(timespec="minutes")
