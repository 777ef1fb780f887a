"""Schedules of a store: declaration, due times, and the operations of clients.

`_core.policies.schedule_rules` has the rules, `_core.cron` the times.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import functools
import itertools
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import attrs
import trio
from outcome import Error, Value

from .. import _fleet
from .._bridge.user_code_guard import guarded
from .._core.cron import FIELDS, cron_error, cron_instants, local_time, zone_named
from .._core.error_info import message_of
from .._core.labels import NO_LABELS, checked_labels
from .._core.outcomes import RunId
from .._core.policies.claim_order import is_priority
from .._core.policies.schedule_rules import (
    Instants,
    Missed,
    Overlap,
    Progress,
    RequestedRun,
    Schedule,
    StoredSchedule,
    bounded,
    due_instants,
    every_instants,
    overlap_action,
    progress_of,
    row_of,
    schedule_of,
    shortest_interval,
)
from .._core.records import record_bodies
from .._core.records.records import WOKEN, Admission, Lease, StoredRun, StoredStatus, has_ended
from .._core.validators import brief_repr, is_number
from .._durable.cancel_requests import cancel
from .._durable.durable_run_registry import DurableRunRegistry
from .._durable.store_executor import call_store
from .._runtime.context.copies import FirstContext, isolated
from .._runtime.run.step_results import SCHEDULED_AT
from ..errors import DeclarationError, FlujoError, ScheduleExists, StoreError
from ..stores._store_port import Store
from ..telemetry._null_telemetry import NullTelemetry
from ..telemetry._sinks import Telemetry
from .engine_port import Ticket
from .run_queue import Counter

SHOWN = 5
"""Number of next times that `ScheduleInfo` has."""

_COMPARED = 11
"""Number of instants whose intervals limit the jitter."""

_LONGEST_NAME = 200


@attrs.frozen(kw_only=True)
class ScheduleInfo:
    """A schedule, its next times and the counts of its instants."""

    name: str
    """Name of the schedule."""
    pipeline: str
    """Name of the pipeline."""
    cron: str | None
    """Cron expression, if it has one."""
    every_s: float | None
    """Seconds between two instants, if it has no cron expression."""
    zone: str
    """Time zone of the instants."""
    paused: bool
    """Whether it creates no runs."""
    next: tuple[dt.datetime, ...]
    """The next five times, in the zone."""
    last_instant: dt.datetime | None
    """Last instant that a worker evaluated."""
    last_run_id: str | None
    """Id of the last run."""
    last_status: StoredStatus | None
    """Status of the last run; `None` without one, or if it was deleted."""
    fired: int
    """Number of instants with a run."""
    skipped: int
    """Number of instants without a run, because an earlier run was open."""
    missed: int
    """Number of instants without a run, because no worker was there."""
    late_s: float
    """Age of the oldest due instant that no worker has evaluated; 0 for none."""
    error: str | None
    """Error of the last instant whose input could not be made."""


# --- due times ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _instants(
    cron: str | None, every_s: float | None, zone: str, starts_at: float | None, ends_at: float | None
) -> Instants:
    if cron is not None:
        found = cron_instants(cron, zone_named(zone, where="a stored schedule"))
    else:
        found = every_instants(every_s or math.inf, starts_at or 0.0)
    return bounded(found, starts_at, ends_at)


def instants_of(schedule: Schedule) -> Instants:
    """Return the instants of a schedule after a time, in order."""
    return _instants(schedule.cron, schedule.every_s, schedule.zone, schedule.starts_at, schedule.ends_at)


def in_zone(schedule: Schedule, instant: float) -> dt.datetime:
    """Return an instant as an aware time in the schedule's zone."""
    return local_time(instant, schedule.zone)


# --- declaration --------------------------------------------------------------------------------------------------


def checked_schedule(
    name: str,
    pipeline: str,
    *,
    input: object,
    context: Mapping[str, object] | None,
    starts_at: dt.datetime | float | None,
    ends_at: dt.datetime | float | None,
    labels: Mapping[str, str] | None,
    **options: Any,
) -> Schedule:
    """Return a declaration; `DeclarationError` for invalid options."""
    where = f"schedule {name!r}"
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise DeclarationError(
            f"a schedule's name must be a text of 1 to {_LONGEST_NAME} characters, not {name!r:.250}"
        )
    calls = callable(input) and not isinstance(input, type)
    schedule = Schedule(
        name=name,
        pipeline=pipeline,
        input=None if calls or input is None else _stored(input, f"{where}: its input"),
        calls_input=calls,
        context=None if context is None else _stored(dict(context), f"{where}: its context"),
        labels=dict(labels or {}),
        starts_at=_epoch(starts_at, f"{where}: starts_at"),
        ends_at=_epoch(ends_at, f"{where}: ends_at"),
        **options,
    )
    _check_times(schedule, where)
    _check_words(schedule, where)
    return schedule


def _stored(value: object, subject: str) -> str:
    try:
        return record_bodies.as_text(record_bodies.stored_value(value))
    except TypeError as error:
        raise DeclarationError(f"{subject} cannot be stored: {error}") from error


def _epoch(time: dt.datetime | float | None, where: str) -> float | None:
    if time is None:
        return None
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise DeclarationError(f'{where} has no time zone; use datetime(..., tzinfo=ZoneInfo("..."))')
        return time.timestamp()
    if not is_number(time):
        raise DeclarationError(f"{where} must be an aware datetime or epoch seconds, not {brief_repr(time)}")
    return float(time)


def _check_times(schedule: Schedule, where: str) -> None:
    if (schedule.cron is None) == (schedule.every_s is None):
        raise DeclarationError(f"{where}: give either cron or every_s")
    if schedule.cron is not None:
        wrong = cron_error(schedule.cron) if isinstance(schedule.cron, str) else "not a text"
        if wrong is not None:
            raise DeclarationError(f"{where}: cron {schedule.cron!r} is not valid ({wrong}); {FIELDS}")
    zone_named(schedule.zone, where=where)
    if schedule.every_s is not None and not (is_number(schedule.every_s) and schedule.every_s >= 1):
        raise DeclarationError(f"{where}: every_s must be a finite number >= 1, not {schedule.every_s!r}")
    for option in ("jitter_s", "missed_within_s"):
        value = getattr(schedule, option)
        if not (is_number(value) and value >= 0):
            raise DeclarationError(f"{where}: {option} must be a finite number >= 0, not {brief_repr(value)}")
    _check_jitter(schedule, where)


def _check_jitter(schedule: Schedule, where: str) -> None:
    if not schedule.jitter_s:
        return
    unbounded = _instants(schedule.cron, schedule.every_s, schedule.zone, None, None)
    shortest = shortest_interval(itertools.islice(unbounded(dt.datetime.now(dt.UTC).timestamp()), _COMPARED))
    if schedule.jitter_s >= shortest:
        raise DeclarationError(
            f"{where}: jitter_s must be less than the shortest interval, {shortest:g} s, not {schedule.jitter_s:g}"
        )


def _check_words(schedule: Schedule, where: str) -> None:
    for option, words in (("overlap", get_args(Overlap)), ("missed", get_args(Missed))):
        if getattr(schedule, option) not in words:
            listed = ", ".join(map(repr, words))
            raise DeclarationError(f"{where}: {option} must be one of {listed}, not {getattr(schedule, option)!r}")
    if not is_priority(schedule.priority):
        raise DeclarationError(
            f"{where}: priority must be a whole number from -100 to 100, not {brief_repr(schedule.priority)}"
        )


def declare_schedule(store: Store | None, schedule: Schedule, *, paused: bool) -> ScheduleInfo:
    """Create or update a schedule; blocks.

    An update keeps the progress. A changed rhythm moves the watermark to now.
    """
    require_schedules(store, f"schedule {schedule.name!r}: schedules need a store")
    assert store is not None
    while True:
        before = _row(store, schedule.name)
        if before is None:  # its watermark is the store's time, which the next read returns
            store.declare(row_of(schedule, Progress(paused=paused), instants_of(schedule)))
        elif store.change(_updated(before, schedule)):
            return schedule_info(store, schedule.name)


def _updated(before: StoredSchedule, schedule: Schedule) -> StoredSchedule:
    if before.pipeline != schedule.pipeline:
        raise ScheduleExists(
            f"schedule {schedule.name!r} belongs to pipeline {before.pipeline!r}, not {schedule.pipeline!r}; choose "
            "another name, or delete it with RunClient.delete_schedule"
        )
    progress = progress_of(before)
    if progress.watermark is None or schedule_of(before).timing != schedule.timing:
        progress = attrs.evolve(progress, watermark=max(progress.watermark or before.now, before.now))
    return row_of(schedule, progress, instants_of(schedule), version=before.version)


def require_schedules(store: Store | None, without: str) -> None:
    """Raise `DeclarationError` for a store that cannot keep schedules."""
    if store is None:
        raise DeclarationError(without)
    missing = [name for name in ("declare", "get_all", "fire", "change", "remove") if not hasattr(store, name)]
    if missing:
        raise DeclarationError(f"store {type(store).__name__} has no {missing[0]!r}: schedules need it")


# --- clients ------------------------------------------------------------------------------------------------------


def _row(store: Store, name: str) -> StoredSchedule | None:
    return next(iter(store.get_all(name=name)), None)


def _existing(store: Store, name: str) -> StoredSchedule:
    require_schedules(store, "schedules need a store")
    row = _row(store, name)
    if row is None:
        known = [each.name for each in store.get_all()]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise StoreError(f"the store has no schedule {name!r}{hint}")
    return row


def schedule_info(store: Store, name: str) -> ScheduleInfo:
    """Return one schedule; `StoreError` if there is none. Blocks."""
    return _infos(store, [_existing(store, name)])[0]


def schedule_infos(store: Store, pipeline: str | None = None) -> list[ScheduleInfo]:
    """Return the schedules of a pipeline, or all, by name. Blocks."""
    require_schedules(store, "schedules need a store")
    return _infos(store, store.get_all(pipeline=pipeline))


def _infos(store: Store, rows: Sequence[StoredSchedule]) -> list[ScheduleInfo]:
    last = [RunId(run_id) for row in rows if (run_id := progress_of(row).last_run_id) is not None]
    known = {run.run_id: run.status for run in store.standing(last)} if last else {}
    return [_info(row, known) for row in rows]


def _info(row: StoredSchedule, statuses: Mapping[RunId, StoredStatus]) -> ScheduleInfo:
    schedule, progress = schedule_of(row), progress_of(row)
    begin = max(row.now, progress.watermark or row.now)
    late = 0.0 if progress.paused or row.due_at is None or not row.due_at else max(0.0, row.now - row.due_at)
    return ScheduleInfo(
        name=row.name,
        pipeline=row.pipeline,
        cron=schedule.cron,
        every_s=schedule.every_s,
        zone=schedule.zone,
        paused=progress.paused,
        next=tuple(in_zone(schedule, each) for each in itertools.islice(instants_of(schedule)(begin), SHOWN)),
        last_instant=None if progress.last_instant is None else in_zone(schedule, progress.last_instant),
        last_run_id=progress.last_run_id,
        last_status=None if progress.last_run_id is None else statuses.get(RunId(progress.last_run_id)),
        fired=progress.fired,
        skipped=progress.skipped,
        missed=progress.missed,
        late_s=late,
        error=progress.error,
    )


Changed = Callable[[StoredSchedule, Progress], Progress]


def _change(store: Store, name: str, changed: Changed) -> None:
    """Change a schedule's progress; repeat after concurrent changes."""
    while True:
        row = _existing(store, name)
        schedule, progress = schedule_of(row), changed(row, progress_of(row))
        if store.change(row_of(schedule, progress, instants_of(schedule), version=row.version)):
            return


def pause_schedule(store: Store, name: str) -> None:
    """Pause a schedule; blocks."""
    _change(store, name, lambda _, progress: attrs.evolve(progress, paused=True))


def resume_schedule(store: Store, name: str) -> None:
    """Resume a paused schedule from now: paused time is never missed. Blocks."""
    _change(store, name, _resumed)


def _resumed(row: StoredSchedule, progress: Progress) -> Progress:
    if not progress.paused:
        return progress
    return attrs.evolve(progress, paused=False, watermark=max(progress.watermark or row.now, row.now))


def delete_schedule(store: Store, name: str) -> None:
    """Delete a schedule; its runs stay. Blocks."""
    _existing(store, name)
    store.remove(name)


def trigger_schedule(store: Store, name: str) -> str:
    """Request a run now; return its id. Blocks."""
    run_id = f"{name}!{secrets.token_hex(4)}"
    _change(store, name, lambda row, progress: _with_requests(progress, [RequestedRun(run_id=run_id, at=row.now)]))
    return run_id


def _with_requests(progress: Progress, requests: Iterable[RequestedRun]) -> Progress:
    return attrs.evolve(progress, requests=(*progress.requests, *requests))


def backfill_schedule(
    store: Store, name: str, start: dt.datetime | float, end: dt.datetime | float, *, limit: int = 1000
) -> list[str]:
    """Request the missing runs of `[start, end)`; return ids. Blocks."""
    begin, until = _epoch(start, "backfill: start"), _epoch(end, "backfill: end")
    assert begin is not None
    assert until is not None
    schedule = schedule_of(_existing(store, name))
    found = instants_of(schedule)(math.nextafter(begin, -math.inf))
    instants = list(itertools.islice(itertools.takewhile(lambda each: each < until, found), limit + 1))
    if len(instants) > limit:
        raise ValueError(
            f"backfill of schedule {name!r}: more than {limit:,} instants; choose a shorter time or limit="
        )
    ids = {schedule.run_id(each): each for each in instants}
    there = {run.run_id for run in store.standing([RunId(each) for each in ids])} if ids else set()
    wanted = [RequestedRun(run_id=run_id, at=at) for run_id, at in ids.items() if run_id not in there]
    added: list[str] = []

    def request(row: StoredSchedule, progress: Progress) -> Progress:
        pending = {each.run_id for each in progress.requests}
        new = [each for each in wanted if each.run_id not in pending]
        added[:] = [each.run_id for each in new]
        return _with_requests(progress, new)

    if wanted:
        _change(store, name, request)
    return added


def given_input(schedule: Schedule) -> object:
    """Return the stored input of a schedule's runs."""
    if schedule.input is None:
        return None
    return record_bodies.read_value(json.loads(schedule.input), where=f"the input of schedule {schedule.name!r}")


def given_context(schedule: Schedule) -> Mapping[str, object] | None:
    """Return the stored context values of a schedule's runs."""
    if schedule.context is None:
        return None
    where = f"the context of schedule {schedule.name!r}"
    found = record_bodies.read_value(json.loads(schedule.context), where=where)
    assert isinstance(found, Mapping)
    return found


logger = logging.getLogger("flujo_actors")

LOOK_EVERY_S = 1.0
"""Polling interval of due schedules: a run can be requested at any time."""

IDLE_EVERY_S = 10.0
"""Interval of looks for a pipeline without schedules: another program may declare one."""

_OPEN_AT_MOST = 100
"""Number of unended runs that a schedule remembers."""

NEVER = 253_402_300_799.0
"""Start of a queued run, until a worker wakes it."""

InputOf = Callable[[dt.datetime], object]


@attrs.define(kw_only=True, eq=False)
class ScheduleRunner:
    """Fires the due schedules of one pipeline; see the module's rules."""

    runs: DurableRunRegistry
    counter: Counter
    fingerprint: str
    first_context: FirstContext
    declared: Mapping[str, InputOf | None]
    """Schedules of this program, with the functions of their inputs."""
    telemetry: Telemetry | NullTelemetry
    queues: tuple[str, ...]
    _next_look: float = attrs.field(default=float("-inf"), init=False)
    _idle: bool = attrs.field(default=True, init=False)
    """Whether the pipeline had no schedule at the last look."""
    _has_reported: bool = attrs.field(default=False, init=False)

    async def fire_due(self) -> None:
        """Fire what is due, unless the last look was a moment ago."""
        now = trio.current_time()
        if now < self._next_look or not hasattr(self.runs.store, "fire"):
            return
        self._next_look = now + LOOK_EVERY_S  # also if the store fails
        if self._idle:
            await self._log_undeclared()
        if self._idle:
            self._next_look = now + IDLE_EVERY_S
            return
        title = self.runs.pipeline.title
        for row in await call_store(lambda: self.runs.store.get_all(pipeline=title, due=True)):
            if row.queue in self.queues:
                await self._fire(row)

    async def _log_undeclared(self) -> None:
        """Look for schedules; log those that this program does not declare."""
        rows = await call_store(lambda: self.runs.store.get_all(pipeline=self.runs.pipeline.title))
        self._idle = not rows and not self.declared
        unknown = [row.name for row in rows if row.name not in self.declared]
        if unknown and not self._has_reported:
            self._has_reported = True
            names = ", ".join(map(repr, unknown))
            logger.info("the store has schedules that this program does not declare: %s", names)

    async def _fire(self, row: StoredSchedule) -> None:
        schedule, before = schedule_of(row), progress_of(row)
        if schedule.calls_input and self.declared.get(schedule.name) is None:
            return  # only a program with the function can make the input
        firing = _Firing(schedule, attrs.evolve(before, watermark=before.watermark or row.now))
        await self._settle(firing, before)
        await self._collect(firing, row.now)
        if firing.progress == before:
            await call_store(lambda: self._cancel_earlier(firing))
            return
        instants = _fleet.instants_of(schedule)
        after = row_of(schedule, firing.progress, instants, version=row.version)
        answers = await call_store(lambda: self.runs.store.fire(after, firing.admissions))
        if answers is not None:
            self._emit(firing, row.now)
            await call_store(lambda: self._follow(firing, answers))

    async def _settle(self, firing: _Firing, before: Progress) -> None:
        """Forget ended runs; wake the queued one when the earlier have ended.

        It is awake before the schedule says so: after a crash in between, the next look finds it awake.
        """
        asked = [RunId(each) for each in (*before.open, *((before.queued,) if before.queued else ()))]
        if not asked:
            return
        found = {run.run_id: run for run in await call_store(lambda: self.runs.store.standing(asked))}
        open_runs = tuple(each for each in before.open if _is_open(found.get(RunId(each))))
        queued = before.queued if before.queued and _is_open(found.get(RunId(before.queued))) else None
        if queued is not None and (not open_runs or not found[RunId(queued)].is_asleep):
            await call_store(functools.partial(self.runs.store.wake, RunId(queued), body=WOKEN))
            open_runs, queued = (*open_runs, queued), None
        firing.progress = attrs.evolve(firing.progress, open=open_runs, queued=queued)

    async def _collect(self, firing: _Firing, now: float) -> None:
        """Add the requested runs, and those of due instants."""
        schedule, progress = firing.schedule, firing.progress
        for request in progress.requests:
            await self._add(firing, RunId(request.run_id), request.at)
        firing.progress = attrs.evolve(firing.progress, requests=())
        due = due_instants(schedule, progress, _fleet.instants_of(schedule), now)
        for instant in due.fire:
            await self._evaluate(firing, instant)
        firing.progress = attrs.evolve(
            firing.progress, watermark=due.watermark, missed=firing.progress.missed + due.missed
        )

    async def _evaluate(self, firing: _Firing, instant: float) -> None:
        schedule, progress = firing.schedule, firing.progress
        action = overlap_action(schedule, progress)
        if action == "skip":
            firing.skipped.append(instant)
            firing.progress = attrs.evolve(progress, skipped=progress.skipped + 1, last_instant=instant)
            return
        run_id = schedule.run_id(instant)
        if not await self._add(firing, RunId(run_id), instant, waits=action == "queue"):
            return
        if action == "queue":
            firing.progress = attrs.evolve(firing.progress, queued=run_id)
        else:
            firing.progress = attrs.evolve(firing.progress, open=(*firing.progress.open, run_id)[-_OPEN_AT_MOST:])

    async def _add(self, firing: _Firing, run_id: RunId, instant: float, *, waits: bool = False) -> bool:
        """Add one run; an error of its input is the schedule's error."""
        got = await guarded(self._admission, firing.schedule, run_id, instant)
        counted: dict[str, Any] = {"last_instant": instant}
        if isinstance(got, Error):
            text = self.runs.redact(f"{type(got.error).__name__}: {message_of(got.error)}")
            firing.failed.append((instant, text))
            counted["error"] = text
        else:
            firing.admissions.append(attrs.evolve(got.value, start_at=NEVER) if waits else got.value)
            firing.fired.append(instant)
            counted |= {"fired": firing.progress.fired + 1, "last_run_id": run_id, "error": None}
        firing.progress = attrs.evolve(firing.progress, **counted)
        return isinstance(got, Value)

    async def _admission(self, schedule: Schedule, run_id: RunId, instant: float) -> Admission:
        made = self.declared.get(schedule.name) if schedule.calls_input else None
        data = _fleet.given_input(schedule) if made is None else made(_fleet.in_zone(schedule, instant))
        context = isolated(self.first_context.of_run(_fleet.given_context(schedule)))
        admission = self.runs.admission(
            run_id,
            data,
            context,
            queue=schedule.queue,
            carried={SCHEDULED_AT.name: [instant, schedule.zone]},
            labels=checked_labels(schedule.labels) if schedule.labels else NO_LABELS,
        )
        return attrs.evolve(admission, key=schedule.key or "", priority=schedule.priority)

    def _follow(self, firing: _Firing, answers: Sequence[object]) -> None:
        """Cancel and notify after the commit; blocks."""
        schedule = firing.schedule
        self._cancel_earlier(firing)
        new = [each for each, answer in zip(firing.admissions, answers, strict=True) if isinstance(answer, Lease)]
        self.counter.notify([self._ticket(schedule, each) for each in new if each.start_at is None])

    def _cancel_earlier(self, firing: _Firing) -> None:
        schedule = firing.schedule
        if schedule.overlap == "cancel" and firing.progress.queued is not None:
            for run_id in firing.progress.open:
                with contextlib.suppress(FlujoError):
                    cancel(self.runs.store, RunId(run_id), f"replaced by a later run of schedule {schedule.name!r}")

    def _ticket(self, schedule: Schedule, admission: Admission) -> Ticket:
        return Ticket(
            run_id=admission.run_id,
            queue=schedule.queue,
            pipeline=admission.pipeline[:100],
            fingerprint=self.fingerprint,
            priority=schedule.priority,
        )

    def _emit(self, firing: _Firing, now: float) -> None:
        if not self.telemetry.enabled:
            return
        name, at = firing.schedule.name, trio.current_time()
        for instant in firing.fired:
            self.telemetry.report(
                "schedule.fired", run_id=firing.schedule.run_id(instant), at=at, schedule=name, late_s=now - instant
            )
        for instant in firing.skipped:
            self.telemetry.report("schedule.skipped", run_id=firing.schedule.run_id(instant), at=at, schedule=name)
        for instant, text in firing.failed:
            run_id = firing.schedule.run_id(instant)
            self.telemetry.report("schedule.failed", run_id=run_id, at=at, schedule=name, feedback=text)


@attrs.define(eq=False)
class _Firing:
    """One poll of a schedule, until it is committed."""

    schedule: Schedule
    progress: Progress
    admissions: list[Admission] = attrs.field(factory=list)
    fired: list[float] = attrs.field(factory=list)
    skipped: list[float] = attrs.field(factory=list)
    failed: list[tuple[float, str]] = attrs.field(factory=list)


def _is_open(run: StoredRun | None) -> bool:
    return run is not None and not has_ended(run.status)
