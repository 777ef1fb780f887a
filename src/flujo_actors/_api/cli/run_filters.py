"""Filters of runs on the command line, and bulk actions."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, cast

import click

from ... import RunFilter
from ..._core.validators import span_seconds
from ...errors import DeclarationError
from .command_group import Invocation
from .output import DONE, INTERRUPTED, amount, printable
from .run_views import out

if TYPE_CHECKING:
    from ..._durable.operations.bulk_actions import BulkReport
    from ..._durable.run_states import RunStateName
    from ...stores import StoredStatus

_NUMBER = re.compile(r"\d{1,12}(?:\.\d+)?")


seconds = span_seconds


def option_seconds(text: str) -> float:
    """Return the seconds of an option: a number or a span."""
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        return seconds(text)
    except DeclarationError:
        raise click.BadParameter(f"{text!r} is no number of seconds: write 30, 30s or 5m") from None


def epoch_seconds(text: str, *, now: float) -> float:
    """Return an age or a date as seconds since the epoch."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        return now - seconds(text)
    return (when if when.tzinfo else when.astimezone()).timestamp()


def content(text: str) -> str:
    """Return a text; `@file` reads the file, `-` standard input."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeclarationError(f"{text[1:]} cannot be read: {reason}") from error


def from_json_text(text: str, *, subject: str) -> object:
    """Return a JSON value, or refuse the text with the error position."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"{subject} is not JSON: {error}") from error


def assignments(pairs: Iterable[str], *, option: str = "--context") -> dict[str, object]:
    """Return `name=value` pairs; a value is JSON if possible, else a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise DeclarationError(f"{option} takes name=value, not {pair!r}")
        found[name] = either(value)
    return found


def label_values(pairs: Iterable[str]) -> dict[str, str | None]:
    """Return labels by name; a name without `=` matches every value."""
    parts = [pair.partition("=") for pair in pairs]
    return {name: value if equals else None for name, equals, value in parts}


def new_labels(pairs: Iterable[str]) -> dict[str, str]:
    """Return the labels of a new run."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise DeclarationError(f"--label takes name=value, not {pair!r}")
        found[name] = value
    return found


def either(text: str) -> object:
    """Return the value of a JSON text, or any other text unchanged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def answers(text: str, schema: object) -> list[object]:
    """Return a typed answer's possible meanings, likeliest first: JSON or text."""
    value = either(text)
    wants_text = isinstance(schema, dict) and schema.get("type") == "string"
    meanings = [text, value] if wants_text else [*_yes_or_no(text, schema), value, text]
    return [each for place, each in enumerate(meanings) if not any(_same(each, other) for other in meanings[:place])]


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)


def _yes_or_no(text: str, schema: object) -> list[bool]:
    if not isinstance(schema, dict) or schema.get("type") != "boolean":
        return []
    said = text.strip().lower()
    return [True] if said in ("y", "yes") else [False] if said in ("n", "no") else []


C = TypeVar("C", bound=Callable[..., object] | click.Command)

STATUSES = click.Choice(["running", "paused", "sleeping", "completed", "failed", "aborted"])
STATES = click.Choice(
    ["completed", "failed", "aborted", "cancelling", "running", "waiting", "sleeping", "abandoned", "blocked", "queued"]
)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY = click.option("--dry-run", is_flag=True, help="Say what would be done.")


class ListOptions(TypedDict):
    """Filter of listed runs."""

    status: StoredStatus | None
    state: RunStateName | None
    pipeline: str | None
    queue: str | None
    search: str | None
    limit: int
    cursor: str | None


class AnswerOptions(TypedDict):
    """Parts of a typed answer."""

    comment: str | None
    reason: str | None
    changes: tuple[str, ...]
    as_json: str | None
    by: str | None


class FilterOptions(TypedDict):
    """Options parsed by `filter_options`."""

    status: StoredStatus | None
    state: RunStateName | None
    labels: tuple[str, ...]
    pipeline: str | None
    queue: str | None
    search: str | None
    created_after: str | None
    created_before: str | None
    ended_before: str | None


class WhereOptions(FilterOptions):
    """Options parsed by `where_options`."""

    where: bool
    all_runs: bool
    limit: int | None
    yes: bool
    dry_run: bool


class Act(Protocol):
    """A bulk action of the client, with its other arguments."""

    def __call__(self, where: RunFilter, *, dry_run: bool = False, limit: int | None = None) -> BulkReport: ...


_FILTER = (
    click.option("--status", type=STATUSES, help="Only runs with this stored status."),
    click.option("--state", type=STATES, help="Only runs in this state."),
    click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only runs with this label."),
    click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline."),
    click.option("--queue", metavar="NAME", help="Only runs of this queue."),
    click.option("--search", metavar="TEXT", help="Only runs whose id begins so, else whose pipeline contains it."),
    click.option("--since", "created_after", metavar="WHEN", help="Only runs created since: 2h, 7d, or a date."),
    click.option("--created-before", metavar="WHEN", help="Only runs created before then."),
    click.option("--ended-before", metavar="WHEN", help="Only runs that ended before then."),
)

_WHERE = (
    click.option("--where", is_flag=True, help="Act on all runs of the filter options, instead of RUN."),
    *_FILTER,
    click.option("--all", "all_runs", is_flag=True, help="With --where: the filter may match every run."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="With --where: at most so many."),
    YES,
    DRY,
)


WHERE_NAMES = tuple(WhereOptions.__annotations__)
"""Names of the options that `where_options` adds."""


def filter_options(command: C) -> C:
    """Add the options of a filter."""
    for option in reversed(_FILTER):
        command = option(command)
    return command


def where_options(command: C) -> C:
    """Add the options of an action on many runs."""
    for option in reversed(_WHERE):
        command = option(command)
    return command


def filter_of(options: FilterOptions, **more: Any) -> RunFilter:
    """Return the filter of the options."""
    now = time.time()
    times = ("created_after", "created_before", "ended_before")
    given = cast(dict[str, Any], options)
    read: dict[str, Any] = {
        name: None if given[name] is None else epoch_seconds(given[name], now=now) for name in times
    }
    texts = {name: given[name] for name in ("status", "state", "pipeline", "queue", "search")}
    return RunFilter(labels=label_values(options["labels"]), **texts, **read, **more)


def in_bulk(call: Invocation, verb: str, run: str | None, options: WhereOptions, act: Act) -> int | None:
    """Act on all runs of a filter; `None` without `--where`.

    The first line of the output is the number of runs.
    """
    if not options["where"]:
        _refuse_filter(options)
        if run is None:
            raise DeclarationError(f"there is no run to {verb}: name a run, or pass --where and a filter")
        return None
    if run is not None:
        raise DeclarationError(f"--where selects runs by a filter, and {run!r} names one: pass one of both")
    where, limit = filter_of(options, all=options["all_runs"]), options["limit"]
    found = act(where, dry_run=True, limit=limit).matched
    out([f"would {verb} {found} runs"])  # scripts read this line, so it has one form
    if options["dry_run"] or not found:
        return DONE
    if not confirm(f"{verb.capitalize()} {amount(found, 'run')}?", yes=options["yes"]):
        return INTERRUPTED
    report = act(where, limit=limit)
    call.print_note(f"{amount(report.done, 'run')} done, {report.skipped_count} skipped")
    for run_id, reason in report.skipped.items():
        call.print_note(f"skipped {printable(run_id)}: {printable(reason)}")
    return DONE


def _refuse_filter(options: WhereOptions) -> None:
    given = cast(dict[str, Any], options)
    named = [name for name in (*FilterOptions.__annotations__, "limit", "all_runs") if given[name]]
    if named:
        raise DeclarationError("a filter selects runs with --where only: pass --where, or no filter")


def confirm(question: str, *, yes: bool) -> bool:
    """Ask for confirmation; without a terminal it must be given beforehand."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise DeclarationError(f"{question} Pass --yes without a terminal")
    return click.confirm(question, err=True)
