"""`flujo-actors workers`, `queues` and `webhooks`: the fleet of a store.

Sections:

- `flujo-actors store`: the database behind the runs.
- `flujo-actors schedules`: schedules of a store, and requests for their runs.
- `flujo-actors events`: events of a store, and waits for them.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import attrs
import click

from ..._core.quota import LIMITED
from ...errors import DeclarationError
from ...stores._store_factory import open_store
from ..wiring import engine_of
from .command_group import Invocation, pass_call
from .output import DONE, FAILED, amount, printable
from .run_filters import content, epoch_seconds, from_json_text
from .run_views import ago, document, out, table
from .runs_command import client_of, store_url

if TYPE_CHECKING:
    from ... import BudgetInfo, EventInfo, QueueInfo, RateInfo, ScheduleInfo, Wait, WebhookInfo, WorkerInfo
    from ..._core.records.records import OutboxStatus
    from ..._core.records.sent_events import EventStatus
    from ...stores._store_status import Migration, StoreStatus


_STORE = click.option("--store", metavar="URL", help="Where the runs are; else FLUJO_STORE, or store in flujo.toml.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.command()
@_STORE
@_JSON
@pass_call
def workers(call: Invocation, /, store: str | None, as_json: bool) -> int:
    """List the live workers of a store."""
    found = client_of(call, store).workers()
    if as_json:
        out([document(workers=[attrs.asdict(worker) for worker in found])])
    elif found:
        out(_worker_lines(found, now=time.time()))
    else:
        call.print_note("there are no live workers")
    return DONE


@click.command()
@_STORE
@_JSON
@pass_call
def queues(call: Invocation, /, store: str | None, as_json: bool) -> int:
    """List the queues of a store: depth, oldest run, workers."""
    found = client_of(call, store).queues()
    if as_json:
        out([document(queues=[attrs.asdict(queue) for queue in found])])
    elif found:
        out(_queue_lines(found))
    else:
        call.print_note("there are no queues with a worker or a waiting run")
    return DONE


@click.command()
@click.argument("action", type=click.Choice(["list", "retry"]), default="list", required=False, metavar="[list|retry]")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--status", type=click.Choice(["pending", "delivered", "failed"]), help="Only messages of this status.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@_STORE
@_JSON
@pass_call
def webhooks(
    call: Invocation,
    /,
    action: str,
    ids: tuple[str, ...],
    status: OutboxStatus | None,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    """List or retry the messages to webhooks.

    `retry` sends failed messages again: all, or those with an ID.
    """
    client = client_of(call, store)
    if action == "retry":
        call.print_note(f"retried {amount(client.retry_webhooks(ids or None), 'message')}")
        return DONE
    found = client.webhooks(status=status, limit=limit)
    if as_json:
        out([document(webhooks=[attrs.asdict(each) for each in found])])
    elif found:
        out(_webhook_lines(found, now=time.time()))
    else:
        call.print_note("there are no messages to webhooks")
    return DONE


def _webhook_lines(found: Sequence[WebhookInfo], *, now: float) -> list[str]:
    head = ("ID", "STATUS", "EVENT", "RUN", "URL", "CREATED", "FAILURES", "ERROR")
    rows = [
        (
            each.id,
            each.status,
            each.event,
            printable(each.run_id),
            printable(each.url),
            ago(each.created_at, now),
            str(each.attempts),
            printable(each.error or "-"),
        )
        for each in found
    ]
    return table([head, *rows])


@click.command()
@_STORE
@_JSON
@pass_call
def limits(call: Invocation, /, store: str | None, as_json: bool) -> int:
    """List the rate limits and current budgets of a store."""
    client, now = client_of(call, store), time.time()
    rates = client.rates()
    budgets = [each for each in client.budgets() if each.ends_at > now]
    if as_json:
        shown = [attrs.asdict(each, filter=attrs.filters.exclude("refunded")) for each in rates]
        out([document(rates=shown, budgets=[attrs.asdict(each) for each in budgets])])
    elif rates or budgets:
        parts = [_rate_lines(rates, now=now) if rates else [], _budget_lines(budgets, now=now) if budgets else []]
        out(parts[0] + ([""] if rates and budgets else []) + parts[1])
    else:
        call.print_note("there are no rate limits or budgets in use")
    return DONE


def _rate_lines(found: Sequence[RateInfo], *, now: float) -> list[str]:
    head = ("LIMIT", "RESOURCE", "RESERVED", "BLOCKED", "IN USE")
    rows = [
        (
            printable(each.name),
            each.resource,
            _left(each.free_at, now),
            _left(each.blocked_until, now),
            str(each.in_use),
        )
        for each in found
    ]
    return table([head, *rows])


def _budget_lines(found: Sequence[BudgetInfo], *, now: float) -> list[str]:
    head = ("BUDGET", "SCOPE", "WINDOW", "RESOURCE", "SPENT", "RESERVED", "LIMIT", "RESETS IN")
    rows = [
        (
            printable(each.name),
            printable(each.scope or "-"),
            each.window,
            resource,
            f"{getattr(each.spent, resource) or 0:.6g}",
            f"{getattr(each.reserved, resource) or 0:.6g}",
            f"{limit:.6g}",
            _left(each.ends_at, now),
        )
        for each in found
        for name, resource in LIMITED.items()
        if (limit := getattr(each.limits, name)) is not None
    ]
    return table([head, *rows])


def _left(until: float | None, now: float) -> str:
    return "-" if until is None or until <= now else f"{until - now:.0f} s"


def _worker_lines(workers: Sequence[WorkerInfo], *, now: float) -> list[str]:
    head = ("WORKER", "HOST", "PID", "STATE", "QUEUES", "BUSY", "VERSION", "BACKEND", "SINCE", "PIPELINE")
    rows = [
        (
            printable(worker.name),
            printable(worker.host),
            str(worker.pid),
            worker.state,
            ",".join(map(printable, worker.queues)),
            f"{worker.busy}/{worker.slots}",
            worker.fingerprint[:6],
            worker.backend or "-",
            ago(worker.since, now),
            printable(worker.pipeline),
        )
        for worker in workers
    ]
    refused = [
        f"refused {printable(run_id)}: {printable(why)}" for worker in workers for run_id, why in worker.refused.items()
    ]
    return [*table([head, *rows]), *refused]


def _queue_lines(queues: Sequence[QueueInfo]) -> list[str]:
    head = ("QUEUE", "DEPTH", "OLDEST", "RUNNING", "WORKERS", "SLOTS", "BLOCKED", "SLEEPING", "KEYS")
    rows = [
        (
            printable(queue.name),
            str(queue.depth),
            f"{queue.oldest_s:.0f} s" if queue.depth else "-",
            str(queue.running),
            str(queue.workers),
            str(queue.slots),
            str(queue.blocked),
            str(queue.sleeping),
            str(len(queue.keys)),
        )
        for queue in queues
    ]
    return table([head, *rows])


# --- `flujo-actors store`: the database behind the runs -----------------------------------------------------------


_URL = click.option("--store", "url", metavar="URL", help="The database; else FLUJO_STORE, or store in flujo.toml.")


@click.group()
def store() -> None:
    """Show, check, migrate and vacuum the database of a store."""


@store.command()
@_URL
@_JSON
@pass_call
def status(call: Invocation, /, url: str | None, as_json: bool) -> int:
    """Show versions, tables, indexes and workers; nothing is changed."""
    found: StoreStatus = _maintained(call, url, "status").status()
    if as_json:
        out([document(**attrs.asdict(found), migration_waits=found.migration_waits)])
    else:
        out(_status_lines(found))
    return DONE


@store.command()
@_URL
@pass_call
def check(call: Invocation, /, url: str | None) -> int:
    """Report damaged, missing and newer records, one per line; nothing is changed."""
    count = 0
    for finding in _maintained(call, url, "check").check():
        out([printable(finding)])
        count += 1
    call.print_note(f"{count} defects" if count else "the store has no defects")
    return FAILED if count else DONE


class MigrateOptions(TypedDict):
    """Command line options of a migration."""

    dry_run: bool
    sql: bool
    finalize: bool
    grants: str | None
    engine: str | None


@store.command()
@_URL
@click.option("--dry-run", is_flag=True, help="Name the versions, and change nothing.")
@click.option("--sql", is_flag=True, help="Print the statements, and change nothing.")
@click.option("--finalize", is_flag=True, help="Let writers use the newest record format: no former release reads it.")
@click.option("--grants", metavar="ROLE", help="Print the grants of a Postgres role that executes runs.")
@click.option("--engine", metavar="NAME", help="Create the tables of this engine, too, e.g. postgres.")
@pass_call
def migrate(call: Invocation, /, url: str | None, **options: Unpack[MigrateOptions]) -> int:
    """Create the tables, or migrate them to this version's schema.

    Readers (RunClient, the page, `runs`, `workers`, `queues`) never do that; they read this schema and the former one.
    On Postgres it works next to workers of the former version, and can be repeated after an interruption.
    """
    opened = _maintained(call, url, "migration")
    if options["grants"] is not None:
        return _print_grants(opened, options["grants"])
    plan: Migration = opened.migration()
    if options["sql"]:
        out([f"{statement.strip()};" for statement in plan.statements])
    if options["sql"] or options["dry_run"]:
        call.print_note(f"the store has schema {plan.found}, this version has {plan.needed}")
        return DONE
    engine = engine_of(options["engine"], opened)
    opened.migrate_now()
    if engine is not None:
        engine.prepare()
    if options["finalize"]:
        opened.finalize()
    call.print_note("the store has the schema of this version")
    return DONE


def _print_grants(opened: Any, role: str) -> int:
    if not hasattr(opened, "grants"):
        raise DeclarationError("--grants is for Postgres; a SQLite file has the permissions of its directory")
    out(opened.grants(role))
    return DONE


def _maintained(call: Invocation, url: str | None, method: str) -> Any:
    """Return the store if it has a method; `DeclarationError` names it."""
    opened = open_store(store_url(call, url), reader=True)
    if not hasattr(opened, method):
        raise DeclarationError(f"a {type(opened).__name__} has no method {method!r}, which this command needs")
    return opened


@store.command()
@_URL
@pass_call
def vacuum(call: Invocation, /, url: str | None) -> int:
    """Free the disk space of deleted runs.

    SQLite rewrites its file, and writers wait meanwhile. Postgres reuses the space; its writers continue.
    """
    opened: Any = open_store(store_url(call, url))
    if hasattr(opened, "vacuum_needs"):
        call.print_note(f"this needs up to {opened.vacuum_needs():,} bytes of free disk")
    if hasattr(opened, "vacuum"):
        opened.vacuum()
    call.print_note("the space of deleted runs is free")
    return DONE


def _status_lines(found: StoreStatus) -> list[str]:
    waits = "; a migration waits" if found.migration_waits else ""
    facts = [
        f"{found.kind}, schema {found.schema['store']} (this version: {found.schema['code']}){waits}",
        f"record format {found.record_format}, {found.workers} workers, oldest open run: {found.oldest_open or '-'}",
    ]
    if found.pool_size is not None:
        facts.append(f"at most {found.pool_size} pooled connections of a process")
    facts += [f"missing index {name}" for name in found.missing_indexes]
    facts += [f"invalid index {name}" for name in found.invalid_indexes]
    rows = [(name, str(size.rows), f"{size.bytes:,}") for name, size in found.tables.items()]
    return [*map(printable, facts), *table([("TABLE", "ROWS", "BYTES"), *rows])]


# --- `flujo-actors schedules`: schedules of a store ---------------------------------------------------------------


@click.group()
def schedules() -> None:
    """List, pause, trigger and backfill schedules."""


@schedules.command("list")
@_STORE
@_JSON
@click.option("--pipeline", metavar="NAME", help="Only those of this pipeline.")
@pass_call
def list_schedules(call: Invocation, /, store: str | None, as_json: bool, pipeline: str | None) -> int:
    """List the schedules of a store."""
    found = client_of(call, store).schedules(pipeline)
    if as_json:
        out([document(schedules=[_data(each) for each in found])])
    elif found:
        out(_lines(found))
    else:
        call.print_note("there are no schedules")
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@_JSON
@pass_call
def show(call: Invocation, /, name: str, store: str | None, as_json: bool) -> int:
    """Show one schedule with its next times."""
    found = client_of(call, store).schedule(name)
    if as_json:
        out([document(schedule=_data(found))])
    else:
        rows = [(key, printable(_text(value))) for key, value in attrs.asdict(found).items() if key != "next"]
        times = [("next", each.isoformat()) for each in found.next]
        out(table([*rows, *times]))
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@pass_call
def pause(call: Invocation, /, name: str, store: str | None) -> int:
    """Pause a schedule."""
    client_of(call, store).pause_schedule(name)
    call.print_note(f"schedule {name!r} is paused")
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@pass_call
def resume(call: Invocation, /, name: str, store: str | None) -> int:
    """Resume a paused schedule from now."""
    client_of(call, store).resume_schedule(name)
    call.print_note(f"schedule {name!r} is resumed")
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@pass_call
def delete(call: Invocation, /, name: str, store: str | None) -> int:
    """Delete a schedule; its runs stay."""
    client_of(call, store).delete_schedule(name)
    call.print_note(f"schedule {name!r} is deleted")
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@pass_call
def trigger(call: Invocation, /, name: str, store: str | None) -> int:
    """Request a run now, and print its id."""
    out([client_of(call, store).trigger(name)])
    return DONE


@schedules.command()
@click.argument("name")
@_STORE
@click.option("--from", "start", required=True, metavar="TIME", help="First instant: a date, or an age such as 7d.")
@click.option("--to", "end", metavar="TIME", help="End, exclusive; by default now.")
@click.option("--limit", default=1000, show_default=True, help="Maximum number of instants.")
@pass_call
def backfill(call: Invocation, /, name: str, store: str | None, start: str, end: str | None, limit: int) -> int:
    """Request runs for the instants without one, and print their ids."""
    now = time.time()
    until = now if end is None else epoch_seconds(end, now=now)
    try:
        found = client_of(call, store).backfill(name, epoch_seconds(start, now=now), until, limit=limit)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    out(found)
    return DONE


def _lines(found: Sequence[ScheduleInfo]) -> list[str]:
    head = ("SCHEDULE", "PIPELINE", "TIMES", "ZONE", "NEXT", "LAST", "FIRED", "SKIPPED", "MISSED", "LATE")
    rows = [
        (
            printable(each.name),
            printable(each.pipeline),
            f"every {each.every_s:g} s" if each.cron is None else each.cron,
            each.zone,
            "paused" if each.paused else next((time.isoformat() for time in each.next), "-"),
            each.last_status or "-",
            str(each.fired),
            str(each.skipped),
            str(each.missed),
            f"{each.late_s:.0f} s" if each.late_s else "-",
        )
        for each in found
    ]
    return table([head, *rows])


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else "-" if value is None else str(value)


def _data(found: ScheduleInfo) -> dict[str, Any]:
    return attrs.asdict(found, value_serializer=lambda _, __, value: _json(value))


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else value


# --- `flujo-actors events` ----------------------------------------------------------------------------------------


@click.group()
def events() -> None:
    """Send events to waiting runs, and list them."""


@events.command("send")
@click.argument("name")
@click.option("--key", required=True, help="Key of the wait; by default of steps, the id of the run.")
@click.option("--data", metavar="JSON|@FILE|-", help="Data of the event.")
@click.option("--id", "event_id", metavar="ID", help="Id of the event; a second one with it changes nothing.")
@click.option("--all", "to_all", is_flag=True, help="For every run that waits now; never for a later one.")
@_STORE
@_JSON
@pass_call
def send(
    call: Invocation,
    /,
    name: str,
    key: str,
    data: str | None,
    event_id: str | None,
    to_all: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Send an event to a waiting run, or buffer it."""
    given = None if data is None else from_json_text(content(data), subject="the data")
    client = client_of(call, store)
    sent = client.send(name, key=key, data=given, id=event_id, to="all" if to_all else "one")
    if as_json:
        out([document(**attrs.asdict(sent))])
    else:
        runs = f" to {', '.join(map(printable, sent.delivered_to))}" if sent.delivered_to else ""
        call.print_note(f"event {printable(sent.id)} is {sent.status}{runs}")
    return DONE


@events.command("list")
@click.argument("name", required=False)
@click.option("--key", help="Only events with this key.")
@click.option("--status", type=click.Choice(["buffered", "delivered", "refused"]), help="Only events of this status.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many, latest first.")
@_STORE
@_JSON
@pass_call
def list_events(
    call: Invocation,
    /,
    name: str | None,
    key: str | None,
    status: EventStatus | None,
    limit: int,
    store: str | None,
    as_json: bool,
) -> int:
    """List stored events, latest first."""
    found = client_of(call, store).events(name, key=key, status=status, limit=limit)
    if as_json:
        out([document(events=[attrs.asdict(each) for each in found])])
    elif found:
        out(_event_lines(found, now=time.time()))
    else:
        call.print_note("there are no events")
    return DONE


@events.command("waits")
@click.argument("name", required=False)
@click.option("--key", help="Only waits with this key.")
@_STORE
@_JSON
@pass_call
def list_waits(call: Invocation, /, name: str | None, key: str | None, store: str | None, as_json: bool) -> int:
    """List the runs that wait for events, oldest wait first."""
    found = client_of(call, store).waits(name, key=key)
    if as_json:
        out([document(waits=[attrs.asdict(each) for each in found])])
    elif found:
        out(_wait_lines(found, now=time.time()))
    else:
        call.print_note("no run waits for an event")
    return DONE


def _event_lines(found: Sequence[EventInfo], *, now: float) -> list[str]:
    rows = [
        (each.event, each.key, each.status, ago(each.sent_at, now), each.id, ", ".join(each.delivered_to) or "-")
        for each in found
    ]
    return table([("event", "key", "status", "sent", "id", "runs"), *rows])


def _wait_lines(found: Sequence[Wait], *, now: float) -> list[str]:
    rows = [
        (each.event or "", each.key or "", each.run_id, each.path, "-" if each.since is None else ago(each.since, now))
        for each in found
    ]
    return table([("event", "key", "run", "step", "since"), *rows])
