"""`flujo-actors runs`: stored runs, looked at and handled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from ..errors import DeclarationError, InvalidAnswer
from .call import Call, pass_call
from .exits import DONE, FAILED, INTERRUPTED
from .run import run_options

if TYPE_CHECKING:
    from .. import RunClient
    from .._durable.changes import ResumeMode
    from ..stores import StoredStatus
    from .run import RunOptions


class _Wanted(TypedDict):
    """Which runs to list."""

    status: StoredStatus | None
    pipeline: str | None
    search: str | None
    limit: int
    cursor: str | None


_STATUSES = click.Choice(["running", "paused", "completed", "failed", "aborted"])
_STORE = click.option("--store", metavar="URL", help="Where the runs are; else FLUJO_STORE, or store in flujo.toml.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_DRY = click.option("--dry-run", is_flag=True, help="Say what would be done.")


@click.group()
def runs() -> None:
    """Look at stored runs, answer, resume, cancel and delete them."""


@runs.command("list")
@_STORE
@click.option("--status", type=_STATUSES, help="Only runs that stand so.")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--search", metavar="TEXT", help="Only runs whose id begins so, or whose pipeline has it in its name.")
@click.option("--since", metavar="WHEN", help="Only what has changed since: 2h, 7d, or a date.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Go on after the page that ended with this cursor.")
@_JSON
@pass_call
def list_runs(call: Call, /, store: str | None, since: str | None, as_json: bool, **wanted: Unpack[_Wanted]) -> int:
    """List runs, latest change first."""
    from .stored import document, listed, out, run_data
    from .values import moment

    now = time.time()
    after = None if since is None else moment(since, now=now)
    found = _client(call, store).list(updated_after=after, **wanted)
    if as_json:
        out([document(runs=[run_data(run) for run in found], cursor=found[-1].cursor if found else None)])
    elif found:
        out(listed(found, now=now))
    else:
        call.say("there are no such runs")
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@click.option("--at", type=click.IntRange(1), metavar="SEQ", help="As it was when this record was written.")
@_JSON
@pass_call
def show(call: Call, /, run: str, store: str | None, at: int | None, as_json: bool) -> int:
    """Show one run: its steps as a tree, what it used, what it asks."""
    from .stored import document, out, shown, state_data

    client = _client(call, store)
    out([document(**state_data(client, run, at=at))] if as_json else shown(client, run, at=at))
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@click.option("--progress", type=click.Choice(["auto", "live", "plain", "json", "quiet"]), default="auto")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Begin after this record.")
@click.option("--json", "as_json", is_flag=True, help="The same as --progress json, on standard output.")
@pass_call
def tail(call: Call, /, run: str, store: str | None, progress: str, after: int, as_json: bool) -> int:
    """Show a run of any process while it runs; Ctrl-C leaves it running."""
    from .tailing import follow

    return follow(call, _client(call, store), run, progress="json" if as_json else progress, after=after, out=as_json)


@runs.command()
@_STORE
@_JSON
@pass_call
def questions(call: Call, /, store: str | None, as_json: bool) -> int:
    """List the questions that wait for an answer, with their tokens."""
    import attrs

    from . import stored

    prompts = _client(call, store).prompts()
    if as_json:
        stored.out([stored.document(questions=[attrs.asdict(prompt) for prompt in prompts])])
    elif prompts:
        stored.out(stored.questions(prompts))
    else:
        call.say("nothing waits for an answer")
    return DONE


@runs.command()
@click.argument("token")
@click.argument("value")
@_STORE
@pass_call
def answer(call: Call, /, token: str, value: str, store: str | None) -> int:
    """Answer a question: VALUE is JSON, or a text where the question wants text."""
    from .._core.pause_tokens import parse_token

    client = _client(call, store)
    give(client, token, value)
    call.say(f"answered; go on with: flujo-actors runs resume {parse_token(token)[0]} TARGET, or let a worker do it")
    return DONE


def give(client: RunClient, token: str, value: str) -> None:
    """Answer with what a typed text means; `InvalidAnswer` says what is wrong with the likeliest meaning."""
    from .values import answers

    first: InvalidAnswer | None = None
    for meant in answers(value, client.schema_of(token)):
        try:
            return client.answer(token, meant)
        except InvalidAnswer as error:
            first = first or error
    assert first is not None
    raise first


@runs.command()
@click.argument("run")
@click.argument("target", required=False)
@click.option("--mode", type=click.Choice(["strict", "compat", "force"]), default="strict", show_default=True)
@run_options
@pass_call
def resume(call: Call, /, run: str, target: str | None, mode: ResumeMode, **options: Unpack[RunOptions]) -> int:
    """Go on with a run that was left or answered; TARGET is its pipeline, as for `run`."""
    from .playing import Part, play  # trio, and the user's own modules

    return play(call, target, Part(run_id=run, token=run, mode=mode), options)


@runs.command()
@click.argument("run")
@_STORE
@click.option("--reason", default="cancelled from the command line", help="What the run is told.")
@click.option("--undo/--no-undo", default=True, help="Whether what the run did is undone, as its pipeline says.")
@pass_call
def cancel(call: Call, /, run: str, store: str | None, reason: str, undo: bool) -> int:
    """End a run as aborted, whoever works on it."""
    _client(call, store).cancel(run, reason, undo=undo)
    call.say(f"run {run} is asked to end")
    return DONE


@runs.command()
@click.argument("run")
@_STORE
@_YES
@_DRY
@pass_call
def delete(call: Call, /, run: str, store: str | None, yes: bool, dry_run: bool) -> int:
    """Forget a run with everything it wrote."""
    client = _client(call, store)
    info = client.get(run)
    if dry_run:
        call.say(f"run {run} ({info.status}, {info.records} records) would be deleted")
        return DONE
    if not _sure(f"Delete run {run} ({info.status}, {info.records} records)?", yes=yes):
        return INTERRUPTED
    if not client.delete(run):
        call.say(f"run {run} was left as it is: somebody works on it")
        return FAILED
    return DONE


@runs.command()
@_STORE
@click.option("--older-than", required=True, metavar="SPAN", help="What has not changed for so long: 30d, 12h.")
@_YES
@_DRY
@pass_call
def prune(call: Call, /, store: str | None, older_than: str, yes: bool, dry_run: bool) -> int:
    """Forget runs that ended long ago."""
    from .values import seconds

    client, span = _client(call, store), seconds(older_than)
    before = time.time() - span
    found = [run for status in ("completed", "failed", "aborted") for run in client.list(status, updated_before=before)]
    if dry_run or not found:
        call.say(f"{len(found)} runs would be deleted" if dry_run else "there is nothing to delete")
        return DONE
    if not _sure(f"Delete {len(found)} runs that ended before then?", yes=yes):
        return INTERRUPTED
    call.say(f"{client.forget(older_than_s=span)} runs were deleted")
    return DONE


def _sure(question: str, *, yes: bool) -> bool:
    """Whether to go on; somebody who cannot be asked has to say so beforehand."""
    import sys

    if yes:
        return True
    if not sys.stdin.isatty():
        raise DeclarationError(f"{question} Say --yes where nobody can be asked")
    return click.confirm(question, err=True)


def _client(call: Call, store: str | None) -> RunClient:
    from .. import RunClient

    return RunClient(store_url(call, store))


def store_url(call: Call, store: str | None) -> str:
    """The store that was named, or that the settings name."""
    url = store or call.settings().store
    if url is None:
        raise DeclarationError('where are the runs? Say --store URL, FLUJO_STORE, or store = "…" in flujo.toml')
    return url
