"""`flujo-actors runs`: inspection and control of stored runs.

Sections:

- `flujo-actors runs tail`.
"""

from __future__ import annotations

import contextlib
import getpass
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import attrs
import click
import trio

from ... import Flujo, RunClient
from ..._core.records.pause_tokens import parse_token
from ..._core.records.records import ENDED
from ..._core.settings_model import RetentionSettings
from ..._durable.pause_lookup import question_data
from ..._durable.retention import deletes_anything
from ...errors import DeclarationError, InvalidAnswer
from ...stores._store_factory import open_store
from ...terminal._watch_view import display_on, show_stored
from . import run_views
from .command_group import Invocation, pass_call
from .output import DONE, FAILED, INTERRUPTED, amount
from .run_command import AS_JSON, given_input, run_options
from .run_filters import (
    DRY,
    STATES,
    STATUSES,
    WHERE_NAMES,
    YES,
    AnswerOptions,
    FilterOptions,
    ListOptions,
    WhereOptions,
    answers,
    assignments,
    confirm,
    either,
    epoch_seconds,
    filter_of,
    filter_options,
    from_json_text,
    in_bulk,
    label_values,
    new_labels,
    seconds,
    where_options,
)
from .run_session import Part, flujo_of, play
from .run_views import BY_STATUS, document, listed, out, run_data, shown, state_data
from .targets import pipeline_of, target_of

if TYPE_CHECKING:
    from ... import BulkReport, RunFilter
    from ..._core.records.sent_events import SteerWhen
    from ..._durable.operations.run_files import IfExists
    from ..._durable.pipeline_diff import ResumeMode
    from .run_command import RunOptions


_STORE = click.option("--store", metavar="URL", help="Where the runs are; else FLUJO_STORE, or store in flujo.toml.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_GROUPS_HELP = "Up to three of pipeline, day, hour, status, queue and label:NAME."


@click.group()
def runs() -> None:
    """Inspect stored runs, answer, resume, cancel and delete them."""


@runs.command("list")
@_STORE
@click.option("--status", type=STATUSES, help="Only runs with this stored status.")
@click.option("--state", type=STATES, help="Only runs in this state.")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--queue", metavar="NAME", help="Only runs of this queue.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only runs with this label; repeatable.")
@click.option(
    "--search",
    metavar="TEXT",
    help="Only runs whose id begins so, else whose pipeline contains it.",
)
@click.option("--since", metavar="WHEN", help="Only runs changed since: 2h, 7d, or a date.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Continue after the page that ended with this cursor.")
@_JSON
@pass_call
def list_runs(
    call: Invocation,
    /,
    store: str | None,
    since: str | None,
    labels: tuple[str, ...],
    as_json: bool,
    **wanted: Unpack[ListOptions],
) -> int:
    """List runs, newest first."""
    now = time.time()
    after = None if since is None else epoch_seconds(since, now=now)
    found = client_of(call, store).list(updated_after=after, order="created", labels=label_values(labels), **wanted)
    if as_json:
        out([document(runs=[run_data(run) for run in found], cursor=found[-1].cursor if found else None)])
    elif found:
        out(listed(found, now=now))
    else:
        call.print_note("there are no such runs")
    return DONE


@runs.command()
@click.argument("target", required=False)
@click.option("--input", "-i", "text", metavar="TEXT|@FILE|-", help="Input of the run, as text.")
@click.option(
    "--input-json", "json_text", is_flag=False, flag_value=AS_JSON, metavar="JSON|@FILE|-", help="The same as JSON."
)
@click.option("--context", "-c", multiple=True, metavar="NAME=VALUE", help="A field of its context.")
@click.option("--run-id", metavar="ID", help="Id of the run.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the run; repeatable.")
@click.option("--queue", default="default", show_default=True, metavar="NAME", help="Queue of the run.")
@click.option("--priority", type=int, default=0, metavar="N", help="Higher ones are claimed first.")
@click.option("--key", metavar="TEXT", help="Key in the queue; keys take turns.")
@click.option("--if-exists", type=click.Choice(["raise", "return", "retry_failed"]), default="raise", show_default=True)
@click.option("--singleton", metavar="KEY", help="At most one open run of the store has this key.")
@click.option("--when-busy", type=click.Choice(["return", "raise", "replace"]), default="return", show_default=True)
@click.option("--allow", multiple=True, metavar="NAME", help="Python names that a blueprint may use.")
@_STORE
@pass_call
def submit(
    call: Invocation,
    /,
    target: str | None,
    text: str | None,
    json_text: str | None,
    context: tuple[str, ...],
    labels: tuple[str, ...],
    allow: tuple[str, ...],
    store: str | None,
    **options: Any,
) -> int:
    """Submit a run of TARGET for workers, and print its id."""
    limits: Any = {"store": store_url(call, store), "allow": allow, "limit_usd": None, "limit_tokens": None}
    flujo = flujo_of(call, target, limits)
    named: dict[str, Any] = {"context": assignments(context) or None, "labels": new_labels(labels)}
    out([flujo.submit_sync(given_input(text, json_text), **named, **options)])
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@click.option("--at", type=click.IntRange(1), metavar="SEQ", help="As it was when this record was written.")
@_JSON
@pass_call
def show(call: Invocation, /, run: str, store: str | None, at: int | None, as_json: bool) -> int:
    """Show one run: steps as a tree, usage and open pauses."""
    client = client_of(call, store)
    out([document(**state_data(client, run, at=at))] if as_json else shown(client, run, at=at))
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@click.option("--progress", type=click.Choice(["auto", "live", "plain", "json", "quiet"]), default="auto")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Begin after this record.")
@click.option("--json", "as_json", is_flag=True, help="The same as --progress json, on standard output.")
@click.option("--answer", "asks", is_flag=True, help="Ask for the answers to its questions, and continue.")
@pass_call
def tail(call: Invocation, /, run: str, store: str | None, asks: bool, **options: Any) -> int:
    """Show a run of any process live; Ctrl-C leaves it running."""
    client = client_of(call, store)
    as_json, after = options["as_json"], options["after"]
    shown_as = "json" if as_json else options["progress"]
    code = follow(call, client, run, progress=shown_as, after=after, out=as_json)
    while asks and (seen := _answer_interactively(call, client, run)) is not None:
        code = follow(call, client, run, progress=shown_as, after=seen, out=as_json)
    return code


@runs.command()
@_STORE
@click.option("--to", metavar="NAME", help="Only questions to this addressee.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only of runs with this label.")
@click.option("--run", "run_id", metavar="ID", help="Only questions of this run.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, newest first.")
@_JSON
@pass_call
def questions(
    call: Invocation,
    /,
    store: str | None,
    to: str | None,
    labels: tuple[str, ...],
    run_id: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """List the questions that wait for an answer, with their tokens."""
    client = client_of(call, store)
    found = client.questions(to=to, labels=label_values(labels), run_id=run_id, limit=limit)
    if as_json:
        run_views.out([run_views.document(questions=[question_data(each) for each in found])])
    elif found:
        run_views.out(run_views.questions(found))
    else:
        call.print_note("nothing waits for an answer")
    return DONE


@runs.command()
@click.argument("token", required=False)
@click.argument("value", required=False)
@click.option("--comment", metavar="TEXT", help="Comment on an approval.")
@click.option("--reason", metavar="TEXT", help="Reason of a denial, for the model.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change an argument of the tool call.")
@click.option("--json", "as_json", metavar="VALUE", help="The whole answer as JSON, instead of VALUE.")
@click.option("--by", metavar="NAME", help="Recorded with the answer; the login name by default.")
@click.option("--to", metavar="NAME", help="With --where: only questions to this addressee.")
@_STORE
@where_options
@pass_call
def answer(
    call: Invocation, /, token: str | None, value: str | None, store: str | None, to: str | None, **options: Any
) -> int:
    """Answer a question with VALUE: an option, JSON, or text if expected.

    With --where, VALUE is the only argument, and all questions that accept it are answered.
    """
    client = client_of(call, store)
    where = cast(WhereOptions, {name: options.pop(name) for name in WHERE_NAMES})
    typed = cast(AnswerOptions, options)
    if where["where"] and value is None:
        token, value = None, token
    act = partial(_answered_all, client, value=value, to=to, options=typed)
    done = in_bulk(call, "answer", token, where, act)
    if done is not None or token is None:
        return DONE if done is None else done
    send_answer(client, token, value, typed)
    call.print_note(
        f"answered; resume with: flujo-actors runs resume {parse_token(token)[0]} TARGET, or let a worker do it"
    )
    return DONE


def _answered_all(
    client: RunClient, where: RunFilter, *, value: str | None, to: str | None, options: AnswerOptions, **more: Any
) -> BulkReport:
    """Answer all questions of a filter with one typed text."""
    if (value is None) is (options["as_json"] is None):
        raise DeclarationError("give either VALUE or --json VALUE")
    parts = {name: text for name in ("comment", "reason") if (text := options[name]) is not None}
    meant = from_json_text(options["as_json"] or "", subject="--json") if value is None else either(value)
    given = {"option": value, **parts} if parts else meant
    return client.bulk_answer(where, given, to=to, by=options["by"] or _login_name(), **more)


def send_answer(client: RunClient, token: str, value: str | None, options: AnswerOptions) -> None:
    """Send a typed text's meaning; `InvalidAnswer` refers to the likeliest."""
    if (value is None) is (options["as_json"] is None):
        raise DeclarationError("give either VALUE or --json VALUE")
    first: InvalidAnswer | None = None
    for meant in _meanings(client, token, value, options):
        try:
            return client.answer(token, meant, by=options["by"] or _login_name())
        except InvalidAnswer as error:
            first = first or error
    assert first is not None
    raise first


def _meanings(client: RunClient, token: str, value: str | None, options: AnswerOptions) -> list[object]:
    if value is None:
        return [from_json_text(options["as_json"] or "", subject="--json")]
    schema = client.schema_of(token)
    known = [each["const"] for each in schema.get("properties", {}).get("option", {}).get("oneOf", ())]
    parts = {name: text for name in ("comment", "reason") if (text := options[name]) is not None}
    if not parts and not options["changes"] and value not in known:
        return answers(value, schema)
    changed = {"arguments": _changed(client, token, options["changes"])} if options["changes"] else {}
    return [{"option": value, **parts, **changed}]


def _changed(client: RunClient, token: str, changes: tuple[str, ...]) -> dict[str, object]:
    """Return the arguments of a tool call with the given ones changed."""
    asked = (each for each in client.questions(run_id=parse_token(token)[0]) if each.state_token == token)
    tool = next((each.tool for each in asked), None)
    if tool is None:
        raise DeclarationError("--set changes the arguments of a tool call, and this question is about none")
    return {**tool.arguments, **assignments(changes, option="--set")}


def _login_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a name for its user
        return None


@runs.command()
@click.argument("run")
@click.argument("target", required=False)
@click.option("--mode", type=click.Choice(["strict", "compat", "force"]), default="strict", show_default=True)
@run_options
@pass_call
def resume(call: Invocation, /, run: str, target: str | None, mode: ResumeMode, **options: Unpack[RunOptions]) -> int:
    """Resume a run; TARGET is its pipeline, as for `run`."""
    return play(call, target, Part(run_id=run, token=run, mode=mode), options)


@runs.command()
@click.argument("run", required=False)
@click.argument("target", required=False)
@click.option("--from-start", is_flag=True, help="Execute all steps again, also those that succeeded.")
@click.option("--mode", type=click.Choice(["strict", "compat", "force"]), default="strict", show_default=True)
@click.option("--reason", help="Recorded with the retry.")
@where_options
@run_options
@pass_call
def retry(
    call: Invocation,
    /,
    run: str | None,
    target: str | None,
    from_start: bool,
    mode: ResumeMode,
    reason: str | None,
    **options: Any,
) -> int:
    """Retry a failed or aborted run: here with TARGET, else by workers."""
    client = client_of(call, options["store"])
    where = cast(WhereOptions, {name: options.pop(name) for name in WHERE_NAMES})
    act = partial(client.bulk_retry, from_start=from_start, mode=mode, reason=reason)
    done = in_bulk(call, "retry", run, where, act)
    if done is not None or run is None:
        return DONE if done is None else done
    client.retry(run, from_start=from_start, mode=mode, reason=reason)
    if target is None:
        call.print_note(f"run {run} is retried; a worker continues it")
        return DONE
    return play(call, target, Part(run_id=run, token=run, mode=mode), cast("RunOptions", options))


@runs.command()
@click.argument("run", required=False)
@_STORE
@click.option("--reason", default="cancelled from the command line", help="Reason recorded in the run.")
@click.option("--undo/--no-undo", default=True, help="Whether the run is compensated, as its pipeline declares.")
@where_options
@pass_call
def cancel(
    call: Invocation, /, run: str | None, store: str | None, reason: str, undo: bool, **where: Unpack[WhereOptions]
) -> int:
    """Cancel a run, with or without an owner; it ends as aborted."""
    client = client_of(call, store)
    done = in_bulk(call, "cancel", run, where, partial(client.bulk_cancel, reason=reason, undo=undo))
    if done is not None or run is None:
        return DONE if done is None else done
    client.cancel(run, reason, undo=undo)
    call.print_note(f"run {run} is asked to end")
    return DONE


@runs.command()
@click.argument("run")
@click.argument("text")
@_STORE
@click.option("--path", metavar="STEP", help="The granular step, if several are open or it has not begun.")
@click.option("--when-done", is_flag=True, help="When the agent would end, in one more turn.")
@_JSON
@pass_call
def steer(
    call: Invocation, /, run: str, text: str, store: str | None, path: str | None, when_done: bool, as_json: bool
) -> int:
    """Send a message to the agent of an open granular step."""
    when: SteerWhen = "when_done" if when_done else "next_turn"
    steered = client_of(call, store).steer(run, text, path=path, when=when, by=_login_name())
    if as_json:
        out([document(run_id=run, **attrs.asdict(steered))])
    else:
        call.print_note(f"message {steered.seq} to run {run} is {steered.status}")
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@click.option("--path", metavar="STEP", help="Only the wait of this step.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@pass_call
def wake(call: Invocation, /, run: str, store: str | None, path: str | None, as_json: bool) -> int:
    """End the sleep or the start delay of a run now."""
    woken = client_of(call, store).wake(run, path)
    if as_json:
        out([document(run_id=run, woken=woken)])
    else:
        call.print_note(f"run {run} {'wakes now' if woken else 'does not sleep'}")
    return DONE


@runs.command()
@click.argument("run", required=False)
@_STORE
@click.option("--cancel-first", is_flag=True, help="With --where: cancel open runs without compensation before.")
@where_options
@pass_call
def delete(
    call: Invocation, /, run: str | None, store: str | None, cancel_first: bool, **where: Unpack[WhereOptions]
) -> int:
    """Forget a run with everything it wrote."""
    client = client_of(call, store)
    done = in_bulk(call, "delete", run, where, partial(client.bulk_delete, cancel_first=cancel_first))
    if done is not None or run is None:
        return DONE if done is None else done
    info = client.get(run)
    if where["dry_run"]:
        call.print_note(f"run {run} ({info.status}, {amount(info.records, 'record')}) would be deleted")
        return DONE
    if not confirm(f"Delete run {run} ({info.status}, {amount(info.records, 'record')})?", yes=where["yes"]):
        return INTERRUPTED
    if not client.delete(run):
        call.print_note(f"run {run} was not deleted: a process owns it")
        return FAILED
    return DONE


@runs.command()
@_STORE
@click.option("--older-than", metavar="SPAN", help="Runs that ended so long ago: 30d, 12h; else the settings.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only runs with this label.")
@YES
@DRY
@pass_call
def prune(
    call: Invocation, /, store: str | None, older_than: str | None, labels: tuple[str, ...], yes: bool, dry_run: bool
) -> int:
    """Delete ended runs by their age, or by the retention settings."""
    wanted = _pruned_by(call, older_than, labels)
    client = client_of(call, store)
    found = client.prune(wanted, dry_run=True).runs
    if dry_run or not found:
        call.print_note(f"would delete {amount(found, 'run')}" if dry_run else "there is nothing to delete")
        return DONE
    if not confirm(f"Delete {amount(found, 'run')}?", yes=yes):
        return INTERRUPTED
    report = client.prune(wanted)
    call.print_note(f"deleted {amount(report.runs, 'run')}, {report.bytes:,} bytes")
    return DONE


def _pruned_by(call: Invocation, older_than: str | None, labels: tuple[str, ...]) -> RetentionSettings:
    """Return the retention of the options, else that of the settings."""
    if older_than is not None:
        seconds(older_than)
        spans: Any = dict.fromkeys(ENDED, older_than)
        return RetentionSettings(rules=[{"labels": label_values(labels), **spans}])
    if labels:
        raise DeclarationError("--label needs --older-than; the retention settings have rules by label")
    settings = call.settings().retention
    if not deletes_anything(settings):
        raise DeclarationError("nothing says what to delete: pass --older-than 30d, or set retention in flujo.toml")
    return settings


@runs.command()
@_STORE
@click.option("--by", default="pipeline,day", show_default=True, metavar="GROUPS", help=_GROUPS_HELP)
@filter_options
@click.option("--until", metavar="WHEN", help="Only runs that ended before then.")
@click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="Time zone of days and hours.")
@_JSON
@pass_call
def totals(
    call: Invocation,
    /,
    store: str | None,
    by: str,
    until: str | None,
    zone: str,
    as_json: bool,
    **wanted: Unpack[FilterOptions],
) -> int:
    """Count runs by group: endings, durations, tokens and cost."""
    now, since = time.time(), wanted["created_after"]
    groups = [each.strip() for each in by.split(",") if each.strip()]
    period = {
        name: epoch_seconds(text, now=now) for name, text in (("since", since), ("until", until)) if text is not None
    }
    where = filter_of({**wanted, "created_after": None})
    found = client_of(call, store).totals(groups, where=where, zone=zone, **period)
    if as_json:
        out([document(totals=[attrs.asdict(row) for row in found])])
    elif found:
        out(run_views.totals(groups, found))
    else:
        call.print_note("there are no such runs")
    return DONE


@runs.command()
@click.argument("run", nargs=-1)
@_STORE
@click.option("--where", is_flag=True, help="Export all runs of the filter options, instead of RUN.")
@filter_options
@click.option("--all", "all_runs", is_flag=True, help="With --where: the filter may match every run.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where the runs are written; - is standard output.")
@click.option("--redact/--no-redact", default=None, help="Whether secrets are hidden; by default in *.flujo.jsonl.")
@click.option("--content/--no-content", default=True, help="Whether inputs, outputs and messages are written.")
@pass_call
def export(
    call: Invocation,
    /,
    run: tuple[str, ...],
    store: str | None,
    where: bool,
    all_runs: bool,
    output: str,
    redact: bool | None,
    content: bool,
    **wanted: Unpack[FilterOptions],
) -> int:
    """Write runs with their records to a file of JSON lines."""
    if where == bool(run):
        raise DeclarationError("no run is selected: pass run ids, or --where and a filter")
    file = sys.stdout.buffer if output == "-" else output
    chosen: Any = filter_of(wanted, all=all_runs) if where else run[0] if len(run) == 1 else run
    report = client_of(call, store).export(chosen, file, redact=redact, content=content)
    sys.stdout.flush()
    if isinstance(report, str):
        call.print_note(f"{run[0]} was written to {report}")
    else:
        call.print_note(f"{amount(report.runs, 'run')}, {amount(report.records, 'record')}, {report.bytes:,} bytes")
    return DONE


@runs.command()
@click.argument("target")
@_STORE
@click.option("--mode", type=click.Choice(["strict", "compat"]), default="strict", show_default=True)
@filter_options
@_JSON
@pass_call
def check(
    call: Invocation,
    /,
    target: str,
    store: str | None,
    mode: ResumeMode,
    as_json: bool,
    **wanted: Unpack[FilterOptions],
) -> int:
    """Check whether TARGET can resume its open runs (exit code).

    Nothing is executed or written. With --mode compat, runs that resume only in that mode are accepted. In a store of
    several pipelines, --pipeline selects the runs of one.
    """
    checks = _reading(call, target, store).check_runs(filter_of(wanted, all=True))
    accepted = ("ok", "compat") if mode == "compat" else ("ok",)
    if as_json:
        out([document(checks=[attrs.asdict(each) for each in checks])])
    else:
        out(run_views.checks(checks))
    refused = [each for each in checks if each.verdict not in accepted]
    call.print_note(f"{len(checks)} open runs, {len(refused)} cannot be resumed with --mode {mode}")
    return FAILED if refused else DONE


def _reading(call: Invocation, target: str, store: str | None) -> Flujo:
    """Return the `Flujo` of a target without migrating its store."""
    found = target_of(target, config=call.config)
    if isinstance(found, Flujo) and store is None and found.store is not None:
        return found
    opened = open_store(store_url(call, store), reader=True)
    return Flujo(pipeline_of(target, config=call.config), store=opened, settings=call.settings())


@runs.command("import")
@click.argument("file")
@_STORE
@click.option("--if-exists", type=click.Choice(["raise", "skip"]), default="raise", show_default=True)
@pass_call
def import_file(call: Invocation, /, file: str, store: str | None, if_exists: IfExists) -> int:
    """Create the runs of an exported FILE; - is standard input."""
    client = RunClient(open_store(store_url(call, store)))
    report = client.import_runs(sys.stdin.buffer if file == "-" else file, if_exists=if_exists)
    call.print_note(f"imported {amount(report.runs, 'run')}, {report.skipped} existed already")
    return DONE


def client_of(call: Invocation, store: str | None) -> RunClient:
    """Return a client of the named or configured store."""
    return RunClient(store_url(call, store))


def store_url(call: Invocation, store: str | None) -> str:
    """Return the store that was named, or that the settings name."""
    url = store or call.settings().store
    if url is None:
        raise DeclarationError('no store is named: pass --store URL, or set FLUJO_STORE or store = "…" in flujo.toml')
    return url


# --- `flujo-actors runs tail` -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """End following on Ctrl-C, even if the parent process ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _answer_interactively(call: Invocation, client: RunClient, run_id: str) -> int | None:
    """Prompt for the answer to a run; return its last record."""
    token = client.get(run_id).state_token
    value = (
        "" if token is None else click.prompt("answer, or nothing to leave", default="", show_default=False, err=True)
    )
    if token is None or not value.strip():
        return None
    try:
        send_answer(client, token, value, AnswerOptions(as_json=None, by=None, comment=None, reason=None, changes=()))
    except InvalidAnswer as error:
        call.print_note(str(error))
    return client.records(run_id)[-1].seq


def follow(call: Invocation, client: RunClient, run_id: str, *, progress: object, after: int, out: bool) -> int:
    """Show a run until it ends or pauses; return its exit code."""
    client.get(run_id)  # before anything is drawn
    wanted: Any = "quiet" if call.quiet else progress
    file = sys.stdout if out else sys.stderr
    with _interrupted(), display_on(file, wanted, color=call.color, title=run_id) as display:
        trio.run(lambda: show_stored(client, run_id, display, after=after))
    run = client.get(run_id)
    if run.state_token is not None:
        call.print_note(f"it asks: {run.message}\nanswer with: flujo-actors runs answer {run.state_token} VALUE")
    return BY_STATUS[run.status]
