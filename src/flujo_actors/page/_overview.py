"""Overview of a store: totals, queues, workers, schedules and limits.

Rules:

1. Numbers come from `RunClient.totals`; a store without totals has no charts.
2. Every number is limited to the labels of the user's scope.
3. Queues, workers, schedules and limits name no run; they are shown to users without a scope only.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import math
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import attrs
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from .._api.client import RunClient
from .._api.flujo import Flujo
from .._api.run_info import QueueInfo, Wait, WorkerInfo, found_runs
from .._core.labels import LabelFilter
from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateInfo
from .._core.policies.shared_budgets import BudgetInfo
from .._core.quota import LIMITED
from .._core.records.records import RunQuery, StoredRun
from .._core.records.sent_events import EventInfo
from .._core.step_paths import ROOT, is_tried
from .._core.views.record_summaries import RecordSummary
from .._durable.operations.bulk_actions import RunFilter
from .._durable.operations.run_totals import TotalsRow
from .._durable.run_states import RunStateName, StateInfo
from .._fleet.schedules import ScheduleInfo
from ..errors import DeclarationError, FlujoError, InvalidAnswer, RunNotFound
from ..stores._store_port import Store
from ._browser_json import count_text, dollars_text, seconds_text, share_text
from ._record_view import EVALUATED, Hide, evaluation_text

Bins: TypeAlias = Sequence[TotalsRow | None]
"""Totals by day or hour; None without a run."""

_WIDTH, _FLOOR, _HEIGHT = 264.0, 76.0, 60.0
"""Width, base line and height of a chart."""
_BINS = {1: 24, 14: 14, 90: 90}
_MOST_GROUPS = 12
_LABELS_OFFERED = 3
_RECENT = 100
_MOST_PAGES = 50
_MOST_BUDGETS = 200


def overview_of(store: Store, days: int, by: str, labels: LabelFilter) -> dict[str, object]:
    """Return the charts and tables of the last days. Blocks."""
    client = RunClient(store, allow_blocking=True)
    days = days if days in _BINS else 14
    since, unit = dt.datetime.now(dt.UTC) - dt.timedelta(days=days), "hour" if days == 1 else "day"
    bins = _bins(_rows(client, (unit,), since, labels), unit, since, days)
    whole = next(iter(_rows(client, (), since, labels)), None)
    tables = [_groups(client, by, since, labels, days), *([] if labels else _machines(client))]
    return {
        "charts": _charts(bins, whole),
        "tables": tables,
        "from": f"{since:%-d %b}" if unit == "day" else f"{since:%H:%M}",
        "to": "today" if unit == "day" else "now",
        "names": _label_names(store, labels),
    }


def _label_names(store: Store, labels: LabelFilter) -> list[str]:
    """Return the most frequent label names of recent runs."""
    known = {name for name, _ in labels} | {"title", "name"}
    recent = store.find(RunQuery(order="created", limit=_RECENT, labels=labels))
    names = Counter(name for run in recent for name in run.labels if name not in known)
    return [name for name, _ in names.most_common(_LABELS_OFFERED)]


# --- charts -------------------------------------------------------------------------------------------------


def _charts(bins: Bins, whole: TotalsRow | None) -> list[dict[str, object]]:
    ended = sum(_of(whole, name) for name in ("completed", "failed", "aborted"))
    share = share_text(_of(whole, "failed") / ended) if ended else "–"
    failed = {
        "title": "Failed",
        "big": share,
        "more": f"{_of(whole, 'failed'):,.0f} {'run' if _of(whole, 'failed') == 1 else 'runs'}",
        "link": {"status": "failed"},
    }
    cost = {"title": "Cost", "big": dollars_text(_of(whole, "cost_usd")), "link": {}}
    return [
        {
            "title": "Runs",
            "big": f"{_of(whole, 'runs'):,.0f}",
            "more": "",
            "link": {},
            **_bars(
                bins, {"completed": lambda row: row.runs - row.failed, "failed": lambda row: row.failed}, count_text
            ),
        },
        {**failed, "link": {"status": "failed"}, **_bars(bins, {"failed": lambda row: row.failed}, count_text)},
        _worked(bins, whole),
        {**cost, "more": f"{count_text(_of(whole, 'tokens'))} tokens", **_bars(bins, {"model": _cost}, dollars_text)},
    ]


def _cost(row: TotalsRow) -> float:
    return float(row.cost_usd)


def _of(row: TotalsRow | None, name: str) -> float:
    return 0 if row is None else float(getattr(row, name))


def _bars(
    bins: Bins, parts: Mapping[str, Callable[[TotalsRow], float]], text: Callable[[float], str]
) -> dict[str, object]:
    """Return stacked bars as shares of a round number."""
    sums = [sum(part(row) for part in parts.values()) if row is not None else 0 for row in bins]
    top = _rounded_up(max(sums, default=0))
    shares = {kind: [0.0 if row is None else part(row) / top for row in bins] for kind, part in parts.items()}
    keys = [(kind, {"model": "dollars"}.get(kind, kind)) for kind in parts]
    return {"bars": _stacked(shares), "lines": [], "keys": keys, "top": text(top)}


def _stacked(shares: Mapping[str, Sequence[float]]) -> list[tuple[str, float, float, float, float]]:
    """Return kind, left, top, width and height of each bar."""
    floor = [_FLOOR for _ in next(iter(shares.values()))]
    step, bars = _WIDTH / max(1, len(floor)), []
    for kind, values in shares.items():
        for number, share in enumerate(values):
            if share:
                floor[number] -= share * _HEIGHT
                bars.append((kind, *_rounded(number * step + 2, floor[number], max(1, step - 4), share * _HEIGHT)))
    return bars


def _rounded(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    return round(x, 2), round(y, 2), round(width, 2), round(height, 2)


def _points(shares: Sequence[float | None]) -> str:
    """Return the points of a line; a single one is a dot."""
    step = _WIDTH / max(1, len(shares) - 1)
    found = [
        f"{number * step:.2f},{_FLOOR - share * _HEIGHT:.2f}"
        for number, share in enumerate(shares)
        if share is not None
    ]
    return " ".join(point for each in found for point in (each, each))


def _worked(bins: Bins, whole: TotalsRow | None) -> dict[str, object]:
    """Return the chart of the worked time: median and 95th percentile."""
    top = _rounded_up(max((row.worked_p95_s or 0 for row in bins if row is not None), default=0))
    p50, p95 = (None, None) if whole is None else (whole.worked_p50_s, whole.worked_p95_s)
    lines = [
        (kind, _points([None if row is None else _share(getattr(row, name), top) for row in bins]))
        for kind, name in (("model", "worked_p95_s"), ("running", "worked_p50_s"))
    ]
    more = "" if p95 is None else f"p95 {seconds_text(p95)}"
    facts = {"title": "Worked time", "big": seconds_text(p50), "more": more, "link": {}}
    return {
        **facts,
        "bars": [],
        "lines": lines,
        "keys": [("running", "p50"), ("model", "p95")],
        "top": seconds_text(top),
    }


def _share(value: float | None, top: float) -> float | None:
    return None if value is None else round(value / top, 4)


def _rounded_up(most: float) -> float:
    """Return a round number that is not below the largest value."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 2, 4, 5, 8, 10) if factor * power >= most * 0.999)


# --- tables -------------------------------------------------------------------------------------------------


def _groups(client: RunClient, by: str, since: dt.datetime, labels: LabelFilter, days: int) -> dict[str, object]:
    """Return the totals by pipeline, or by the value of a label."""
    key = f"label:{by}" if by else "pipeline"
    rows = sorted(_rows(client, (key,), since, labels), key=lambda row: -row.runs)[:_MOST_GROUPS]
    columns = [(by or "Pipeline",), ("Runs", "num"), ("Failed", "num"), ("p50", "num desk"), ("p95", "num desk")]
    return {
        "title": by.capitalize() if by else "Pipelines",
        "note": "last 24 hours" if days == 1 else f"last {days} days",
        "columns": [*columns, ("Tokens", "num desk"), ("Cost", "num")],
        "rows": [_group(row, row.key.get(key), by) for row in rows],
    }


def _group(row: TotalsRow, name: str | None, by: str) -> list[object]:
    link = {"labels": [f"{by}:{name}"]} if by else {"pipeline": name}
    return [
        None if name is None else {"text": name, "link": link},
        f"{row.runs:,}",
        share_text(row.failed / row.runs) if row.runs else "–",
        seconds_text(row.worked_p50_s),
        seconds_text(row.worked_p95_s),
        count_text(row.tokens),
        dollars_text(row.cost_usd),
    ]


def _rows(client: RunClient, by: tuple[str, ...], since: dt.datetime, labels: LabelFilter) -> Sequence[TotalsRow]:
    return client.totals(by, since=since, where=RunFilter(labels=dict(labels)) if labels else None)


def _bins(rows: Sequence[TotalsRow], unit: str, since: dt.datetime, days: int) -> Bins:
    """Return one bin per day or hour, also without a run."""
    step = dt.timedelta(hours=1) if unit == "hour" else dt.timedelta(days=1)
    by_key = {str(row.key[unit])[: 13 if unit == "hour" else 10].replace(" ", "T"): row for row in rows}
    starts = [since + step * (number + 1) for number in range(_BINS[days])]
    form = "%Y-%m-%dT%H" if unit == "hour" else "%Y-%m-%d"
    return [by_key.get(each.strftime(form)) for each in starts]


def _machines(client: RunClient) -> list[dict[str, object]]:
    workers, schedules = client.workers(), _schedules(client)
    return [_queues(client), *([_workers(workers)] if workers else []), *([schedules] if schedules["rows"] else [])]


def _queues(client: RunClient) -> dict[str, object]:
    queues = client.queues()
    blocked = [
        f"{each.blocked} blocked: no live worker can claim from queue {each.name!r}." for each in queues if each.blocked
    ]
    rows = [
        [each.name, each.depth, seconds_text(each.oldest_s) if each.depth else "–", _slots(each.running, each.slots)]
        for each in queues
    ]
    columns = [("Queue",), ("Waiting", "num"), ("Oldest", "num"), ("Slots in use", "num")]
    return {"title": "Queues", "alerts": blocked, "columns": columns, "rows": rows}


def _slots(busy: int, slots: int) -> dict[str, object]:
    return {"text": f"{busy} of {slots}", "share": min(1.0, busy / slots) if slots else 0}


def _workers(workers: Sequence[WorkerInfo]) -> dict[str, object]:
    columns = [("Worker",), ("Queues", "desk dim"), ("Version", "mono dim"), ("Slots in use", "num")]
    rows = [
        [each.name, ", ".join(each.queues), each.fingerprint[:6], _slots(each.busy, each.slots)] for each in workers
    ]
    return {"title": "Workers", "note": f"{len(workers)}", "columns": columns, "rows": rows}


def _schedules(client: RunClient) -> dict[str, object]:
    """Return the schedules of a store that has them."""
    columns = [("Schedule",), ("When", "desk dim"), ("Last", ""), ("Next", "num")]
    return {"title": "Schedules", "columns": columns, "rows": [_schedule(each) for each in _found_schedules(client)]}


def _found_schedules(client: RunClient) -> Sequence[ScheduleInfo]:
    try:
        return client.schedules()
    except FlujoError:  # a store without schedules
        return ()


def _schedule(schedule: ScheduleInfo) -> list[object]:
    due = schedule.next[0] if schedule.next and not schedule.paused else None
    ahead = "paused" if schedule.paused else "–"
    if due is not None:
        ahead = f"in {seconds_text(max(0.0, (due - dt.datetime.now(dt.UTC)).total_seconds()))}"
    last = {"state": schedule.last_status} if schedule.last_status else None
    return [schedule.name, _when(schedule), last, ahead]


def _when(schedule: ScheduleInfo) -> str:
    return schedule.cron or (f"every {seconds_text(schedule.every_s)}" if schedule.every_s else "")


# --- schedules and events: tables with actions ----------------------------------------------------------------
# A cell with `post` is a button: it sends `body` to that endpoint of the page.


def schedules_of(store: Store, *, read_only: bool) -> dict[str, object]:
    """Return the schedules with their next times, and their table. Blocks."""
    found = _found_schedules(RunClient(store, allow_blocking=True))
    columns = [("Schedule",), ("Pipeline", "desk dim"), ("When", "desk dim"), ("Last", ""), ("Next five times", "")]
    rows = [_schedule_row(each, read_only=read_only) for each in found]
    alerts = [f"{each.name}: {each.error}" for each in found if each.error]
    table = {
        "title": "Schedules",
        "stack": True,
        "alerts": alerts,
        "columns": [*columns, ("Fired", "num desk"), ("Actions", "num")],
    }
    return {"schedules": [_schedule_facts(each) for each in found], "tables": [{**table, "rows": rows}]}


def _schedule_facts(schedule: ScheduleInfo) -> dict[str, object]:
    facts = attrs.asdict(schedule, filter=attrs.filters.exclude("next", "last_instant"))
    last = schedule.last_instant
    return {
        **facts,
        "next": [each.isoformat() for each in schedule.next],
        "last_instant": None if last is None else last.isoformat(),
    }


def _schedule_row(schedule: ScheduleInfo, *, read_only: bool) -> list[object]:
    times = [(round(each.timestamp() * 1000), f"{each:%a %d %b %H:%M} {schedule.zone}") for each in schedule.next]
    last: object = None
    if schedule.last_run_id is not None:
        last = {"text": schedule.last_status or "deleted", "link": {"run": schedule.last_run_id}}
    return [
        schedule.name,
        schedule.pipeline,
        _when(schedule),
        last,
        "paused" if schedule.paused else {"times": times},
        f"{schedule.fired:,}",
        None if read_only else {"acts": _schedule_acts(schedule)},
    ]


def _schedule_acts(schedule: ScheduleInfo) -> list[dict[str, object]]:
    change = "resume" if schedule.paused else "pause"
    return [
        {"text": action.capitalize(), "post": "schedule", "body": {"name": schedule.name, "action": action}}
        for action in (change, "trigger")
    ]


def changed_schedule(store: Store, name: str, action: str) -> dict[str, object]:
    """Pause, resume or trigger a schedule; return a triggered run. Blocks."""
    client = RunClient(store, allow_blocking=True)
    match action:
        case "pause":
            client.pause_schedule(name)
        case "resume":
            client.resume_schedule(name)
        case "trigger":
            return {"run_id": client.trigger(name)}
        case _:
            raise DeclarationError(f"a schedule is paused, resumed or triggered, not {action!r:.100}")
    return {}


def events_of(store: Store, *, read_only: bool, content: bool) -> dict[str, object]:
    """Return open waits for events and stored events, with tables. Blocks."""
    client, now = RunClient(store, allow_blocking=True), store.now()
    waits = client.waits()[:_MOST_BUDGETS] if hasattr(store, "waits") else ()
    events = client.events(limit=_RECENT) if hasattr(store, "events") else ()
    send = {"post": "send", "title": "Send an event", "form": _SEND_FORM}
    return {
        "waits": [attrs.asdict(each) for each in waits],
        "events": [_event_facts(each, content=content) for each in events],
        "tables": [_waits_table(waits, now), _events_table(events, now)],
        **({} if read_only else {"send": send}),
    }


_SEND_FORM = {
    "whole": False,
    "schema": None,
    "fields": [
        {"name": "event", "kind": "text", "label": "Event", "type": "string", "required": True},
        {"name": "key", "kind": "text", "label": "Key", "type": "string", "required": True},
        {"name": "data", "kind": "json", "label": "Data", "type": "JSON", "required": False},
    ],
}


def _event_facts(event: EventInfo, *, content: bool) -> dict[str, object]:
    return attrs.asdict(event, filter=None if content else attrs.filters.exclude("data"))


def _waits_table(waits: Sequence[Wait], now: float) -> dict[str, object]:
    columns = [("Awaited event",), ("Key", ""), ("Step", "desk dim"), ("Run", ""), ("Until", "num")]
    rows = [
        [each.event, each.key or "–", each.path, _run_cell(each.run_id), _until(each.due_at, now)] for each in waits
    ]
    return {"title": "Open waits", "stack": True, "columns": columns, "rows": rows}


def _until(due_at: float | None, now: float) -> str:
    return "no end" if due_at is None else f"in {seconds_text(max(0.0, due_at - now))}"


def _run_cell(run_id: str) -> dict[str, object]:
    return {"text": run_id, "link": {"run": run_id}}


def _events_table(events: Sequence[EventInfo], now: float) -> dict[str, object]:
    columns = [("Event",), ("Key", ""), ("Status", ""), ("Run", ""), ("Reason", "desk dim"), ("Sent", "num")]
    rows = [
        [
            each.event,
            each.key or "–",
            {"state": _EVENT_STATES.get(each.status, "queued"), "text": each.status},
            _run_cell(each.delivered_to[0]) if each.delivered_to else None,
            each.reason or "",
            f"{seconds_text(max(0.0, now - each.sent_at))} ago",
        ]
        for each in events
    ]
    return {"title": "Events", "stack": True, "columns": columns, "rows": rows}


_EVENT_STATES = {"delivered": "completed", "refused": "failed"}


# --- limits -------------------------------------------------------------------------------------------------


def limits_of(store: Store) -> dict[str, object]:
    """Return rate limits, budgets and keyed queues as tables. Blocks."""
    client, now = RunClient(store, allow_blocking=True), store.now()
    rates = client.rates() if hasattr(store, "rates") else ()
    budgets = client.budgets() if hasattr(store, "window_budgets") else ()
    current = sorted((each for each in budgets if each.ends_at > now), key=_left_share)[:_MOST_BUDGETS]
    queues = client.queues()
    hidden = attrs.filters.exclude("refunded")
    return {
        "rates": [attrs.asdict(each, filter=hidden) for each in rates],
        "budgets": [attrs.asdict(each) for each in current],
        "queues": [attrs.asdict(each) for each in queues],
        "tables": [_rates_table(rates, now), _budgets_table(current, now), _keys_table(queues)],
    }


def _left_share(budget: BudgetInfo) -> tuple[float, str, str]:
    return -max((share for *_, share in _uses(budget)), default=0.0), budget.name, budget.scope


def _uses(budget: BudgetInfo) -> list[tuple[str, float, float, float]]:
    """Return resource, spent amount, limit and used share of each limit."""
    pairs = [(resource, getattr(budget.limits, limit)) for limit, resource in LIMITED.items()]
    used = [(resource, getattr(budget.spent, resource) or 0.0, limit) for resource, limit in pairs if limit is not None]
    return [(resource, spent, limit, spent / limit if limit else 1.0) for resource, spent, limit in used]


def _budgets_table(budgets: Sequence[BudgetInfo], now: float) -> dict[str, object]:
    columns = [("Budget",), ("Scope", "dim"), ("Window", "desk dim"), ("Resource", "desk dim"), ("Used", "num")]
    rows = [
        [each.name, each.scope or "–", each.window, resource, _used(*use), f"in {seconds_text(each.ends_at - now)}"]
        for each in budgets
        for resource, *use in _uses(each)
    ]
    return {"title": "Budgets", "columns": [*columns, ("Resets", "num")], "rows": rows}


def _used(spent: float, limit: float, share: float) -> dict[str, object]:
    return {"text": f"{spent:,.6g} of {limit:,.6g}", "share": min(1.0, share)}


def _rates_table(rates: Sequence[RateInfo], now: float) -> dict[str, object]:
    columns = [("Rate limit",), ("Resource", "dim"), ("Reserved", "num"), ("Blocked", "num"), ("In use", "num")]
    rows = [[each.name, each.resource, *_waits(each, now), each.in_use or "–"] for each in rates]
    return {"title": "Rate limits", "columns": columns, "rows": rows}


def _waits(rate: RateInfo, now: float) -> list[str]:
    ends = (rate.free_at, rate.blocked_until)
    return ["–" if end is None or end <= now else f"for {seconds_text(end - now)}" for end in ends]


def _keys_table(queues: Sequence[QueueInfo]) -> dict[str, object]:
    columns = [("Queue",), ("Key", ""), ("Ready runs", "num")]
    rows = [[each.name, key or "–", count] for each in queues for key, count in each.keys.items()]
    return {"title": "Queues by key", "columns": columns, "rows": rows[:_MOST_BUDGETS]}


# --- list of runs -------------------------------------------------------------------------------------------


def listed_runs(
    store: Store, query: RunQuery, states: Sequence[RunStateName] | None
) -> tuple[list[tuple[StoredRun, StateInfo]], str | None]:
    """Return a page of runs and its cursor. Blocks.

    Cases of an evaluation are left out, unless the query searches: the evaluation is one line.
    """
    evaluations: dict[str, bool] = {}
    for _ in range(_MOST_PAGES):
        found = found_runs(store, query, states)
        more = (found[-1][0].cursor or None) if found and len(found) == query.limit else None
        shown = [each for each in found if query.search or not _is_case(store, each[0].run_id, evaluations)]
        if shown or more is None:
            break
        query = attrs.evolve(query, cursor=more)
    return shown, more


def _is_case(store: Store, run_id: RunId, evaluations: dict[str, bool]) -> bool:
    """Return whether a run is an evaluation's case, with a cache."""
    parent = run_id.rpartition("/")[0]
    if parent and parent not in evaluations:
        try:
            evaluations[parent] = store.get(RunId(parent)).pipeline.startswith(EVALUATED)
        except RunNotFound:
            evaluations[parent] = False
    return evaluations.get(parent, False)


# --- the present of a run -----------------------------------------------------------------------------------


def now_of(store: Store, run_ids: Sequence[RunId], hide: Hide) -> dict[str, str]:
    """Return the open step or the failure of each run. Blocks."""
    return {run_id: hide(_now(store, run_id)) for run_id in run_ids}


def _now(store: Store, run_id: RunId) -> str:
    run = store.get(run_id)
    if run.pipeline.startswith(EVALUATED):
        with suppress(RunNotFound):  # a pipeline may be named so
            return evaluation_text(RunClient(store, allow_blocking=True).evaluation(run_id))
    last = store.scan(run_id, after=max(0, run.records - 6))
    if run.status in ("failed", "aborted"):
        return _why(last)
    open_steps = [each.name or each.path for each in last if each.kind in ("started", "intent") and each.name]
    return open_steps[-1] if open_steps else ""


def _why(last: Sequence[RecordSummary]) -> str:
    failed = [each for each in last if each.kind == "settled" and each.status != "success" and not is_tried(each.path)]
    note = next((each.note for each in reversed(last) if each.kind == "ended" and each.path == ROOT), "")
    text = (failed[0].note if failed else note).removeprefix("Agent execution failed with ")
    return f"{failed[0].name}: {text}" if failed and failed[0].name else text


# --- input of a pipeline ------------------------------------------------------------------------------------


def input_schema(flujo: Flujo) -> dict[str, Any] | None:
    """Return the JSON Schema of a pipeline's input, if it is declared."""
    adapter = _adapter(flujo)
    try:
        return None if adapter is None else adapter.json_schema()
    except (PydanticSchemaGenerationError, ValueError):
        return None


def read_input(flujo: Flujo, data: object) -> object:
    """Return the input of a run; `InvalidAnswer` names a wrong field."""
    adapter = _adapter(flujo)
    if adapter is None:
        return data
    try:
        return adapter.validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidAnswer(f"{place + ': ' if place else ''}{first['msg']}") from error


def _adapter(flujo: Flujo) -> TypeAdapter[object] | None:
    kind = _input_type(flujo)
    if kind is None or kind is Any:
        return None
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return None


def _input_type(flujo: Flujo) -> Any:
    """Return the annotation of the first step's data."""
    step = flujo.pipeline.steps[0]
    called = getattr(step, "input", None) if callable(getattr(step, "input", None)) else getattr(step, "agent", None)
    target = called if inspect.isroutine(called) else getattr(called, "run", None)
    if target is None or not inspect.isroutine(target):
        return None
    try:
        hints: Mapping[str, object] = typing.get_type_hints(target)
        first = next(iter(inspect.signature(target).parameters))
    except (NameError, TypeError, ValueError, StopIteration):
        return None
    return hints.get(first)
