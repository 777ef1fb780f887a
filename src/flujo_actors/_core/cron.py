"""Cron expressions and zones. Only this module knows the library behind them.

Rules:

1. An expression has five fields, or is one of the names below. Seconds, `@reboot` and random fields are refused.
2. A local time that a change of the clock leaves out occurs after the gap; one that it repeats occurs once.
3. Times are iterated in the zone from an aware instant, and returned in UTC.
"""

from __future__ import annotations

import datetime as dt
import difflib
import itertools
import math
import zoneinfo
from collections.abc import Iterator

from cronsim import CronSim, CronSimError

from ..errors import DeclarationError
from .policies.schedule_rules import Instants

FIELDS = "five fields: minute hour day month weekday"

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def zone_named(name: str, *, where: str) -> dt.tzinfo:
    """Return a zone; `DeclarationError` with the nearest name if unknown."""
    if name == "UTC":
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        near = difflib.get_close_matches(str(name), sorted(zoneinfo.available_timezones()), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DeclarationError(f"{where}: there is no zone {name!r}{hint}") from None


def cron_error(cron: str) -> str | None:
    """Return why a cron expression is not valid, or None."""
    expression = _MACROS.get(cron.strip().lower(), cron)
    if len(expression.split()) != 5:
        return "Wrong number of fields"
    try:
        CronSim(expression, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    except CronSimError as error:
        return str(error)
    return None


def cron_instants(cron: str, zone: dt.tzinfo) -> Instants:
    """Return the instants of a cron expression in a zone.

    A time that a change of the clock repeats occurs once, one that it leaves out occurs after the gap.
    """
    expression = _MACROS.get(cron.strip().lower(), cron)

    def after(time: float) -> Iterator[float]:
        start = dt.datetime.fromtimestamp(math.floor(time), dt.UTC).astimezone(zone)
        # In a repeated hour, local times begin with its first pass: those are before the start.
        found = (each.timestamp() for each in CronSim(expression, start))
        return itertools.dropwhile(lambda each: each <= time, found)

    return after


def local_time(instant: float, zone: str) -> dt.datetime:
    """Return an instant as an aware time in a zone."""
    found = zone_named(zone, where="a stored schedule")
    return dt.datetime.fromtimestamp(instant, dt.UTC).astimezone(found)


def is_ambiguous(cron: str, zone: str) -> bool:
    """Return whether a zone's change of clock affects an expression."""
    hours = _MACROS.get(cron.strip().lower(), cron).split()[1]
    found = zone_named(zone, where="a schedule")
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    offsets = {(start + dt.timedelta(days=days)).astimezone(found).utcoffset() for days in (0, 182)}
    return len(offsets) > 1 and not hours.startswith("*") and 2 in CronSim(f"0 {hours} * * *", start).hours
