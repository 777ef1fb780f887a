"""`flujo-actors replay` and `flujo-actors rehearse`: stored runs on the present code."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ... import Flujo, RunClient
from ..._core.records.json_codec import untagged
from ...errors import DeclarationError
from ...stores._store_factory import open_store
from ..rehearsal.rehearsal import MISSING, RUN_FILE, run_files_in
from ..rehearsal.verdicts import Difference, Replay, difference_data
from .command_group import Invocation, pass_call
from .file_replacement import replace_file
from .output import DONE, FAILED, NOT_FOUND, printable
from .run_filters import epoch_seconds
from .targets import pipeline_of, target_of

if TYPE_CHECKING:
    from ... import Rehearsal
    from ...stores import StoredStatus

_STORE = click.option("--store", metavar="URL", help="Where the runs are; else FLUJO_STORE, or store in flujo.toml.")
_LIVE = click.option("--live-step", "live_steps", multiple=True, metavar="PATH", help="Execute this step; repeatable.")
_CONNECT = click.option("--connect", is_flag=True, help="Let toolsets connect to list their tools.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.command()
@click.argument("target")
@click.argument("runs", nargs=-1, required=True, metavar="RUN|FILE|DIR...")
@_STORE
@_LIVE
@_CONNECT
@_JSON
@pass_call
def replay(
    call: Invocation,
    /,
    target: str,
    runs: tuple[str, ...],
    store: str | None,
    live_steps: tuple[str, ...],
    connect: bool,
    as_json: bool,
) -> int:
    """Run TARGET on recorded runs, without effects.

    The exit code is 1 if one differs. A run is its id in the store, a run file, or a folder with files *.flujo.jsonl.
    """
    flujo = _flujo(call, target, store)
    found = []
    for run in _listed(runs):
        found.append(flujo.replay(run, live_steps=live_steps, connect=connect))
        if not as_json:  # at once: a later run may be missing
            lines = [f"{found[-1].run_id}: {found[-1]}", *(f"  {change}" for change in found[-1].changes)]
            click.echo("\n".join(map(printable, lines)))
    if as_json:
        click.echo(json.dumps({"replays": [_replay_data(each) for each in found]}, ensure_ascii=True))
    same = sum(each.verdict == "same" for each in found)
    call.print_note(f"{same} of {len(found)} runs are the same")
    return DONE if same == len(found) else FAILED


def _replay_data(replay: Replay) -> dict[str, object]:
    facts = {name: getattr(replay, name) for name in ("run_id", "verdict")}
    lists = {name: list(getattr(replay, name)) for name in ("changes", "checked", "taken")}
    return {**facts, "difference": _difference_data(replay.difference), **lists}


def _difference_data(difference: Difference | None) -> object:
    return untagged(difference_data(difference))


@click.command()
@click.argument("target")
@click.argument("runs", nargs=-1, metavar="[RUN|FILE|DIR...]")
@_STORE
@click.option("--status", type=click.Choice(["completed", "failed", "aborted"]), help="Only runs that ended so.")
@click.option("--since", metavar="AGE|DATE", help="Only runs created since then: 7d, 2026-01-31.")
@click.option("--search", metavar="TEXT", help="Only runs whose id begins with this, or whose pipeline contains it.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of found runs.")
@click.option("--at", metavar="PATH", help="Rehearse from this step on.")
@click.option("--models", type=click.Choice(["live", "recorded"]), default="live", show_default=True)
@_LIVE
@click.option("--limit-usd", type=click.FloatRange(0), metavar="N", help="Budget of live models; required for them.")
@click.option("--gate", "gates", multiple=True, metavar="TEXT", help="Condition such as 'same>=0.9'; repeatable.")
@click.option("--into", metavar="URL", help="Store that keeps the rehearsed runs.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write Markdown.")
@_CONNECT
@_JSON
@pass_call
def rehearse(
    call: Invocation,
    /,
    target: str,
    runs: tuple[str, ...],
    store: str | None,
    status: StoredStatus | None,
    since: str | None,
    search: str | None,
    limit: int,
    at: str | None,
    models: Literal["live", "recorded"],
    live_steps: tuple[str, ...],
    limit_usd: float | None,
    gates: tuple[str, ...],
    into: str | None,
    junit: Path | None,
    markdown: Path | None,
    connect: bool,
    as_json: bool,
) -> int:
    """Run stored runs on TARGET from their first changed step.

    Without RUN, the newest ended runs of the store are rehearsed, as the filter options select them. The exit code is 1
    if a gate does not hold, or, without gates, if a run is not the same; it is 5 if a named run does not exist.
    """
    flujo = _flujo(call, target, store)
    wanted = _listed(runs) if runs else _found(flujo, status, since, search, limit)
    done = flujo.rehearse(
        wanted,
        at=at,
        models=models,
        live_steps=live_steps,
        max_cost_usd=limit_usd,
        gates=gates,
        into=into,
        connect=connect,
    )
    _report(done, junit, markdown, as_json=as_json)
    if done.passed:
        return DONE
    return NOT_FOUND if any(run.reason == MISSING for run in done.runs) else FAILED


def _report(done: Rehearsal, junit: Path | None, markdown: Path | None, *, as_json: bool) -> None:
    click.echo(done.to_json() if as_json else done.to_text(), nl=False)
    sys.stdout.flush()
    if junit is not None:
        replace_file(junit, done.to_junit())
    if markdown is not None:
        replace_file(markdown, done.to_markdown())


def _listed(runs: Sequence[str]) -> list[str | os.PathLike[str]]:
    """Return ids and files; a folder has its run files."""
    found: list[str | os.PathLike[str]] = []
    for run in runs:
        if os.path.isdir(run):
            files = run_files_in(run)
            if not files:
                raise DeclarationError(f"there is no *{RUN_FILE} in {run}")
            found += map(Path, files)
        elif os.path.isfile(run):
            found.append(Path(run))
        elif run.endswith(RUN_FILE):
            raise DeclarationError(f"there is no file {run}")
        else:
            found.append(run)
    return found


def _found(
    flujo: Flujo, status: StoredStatus | None, since: str | None, search: str | None, limit: int
) -> list[str | os.PathLike[str]]:
    """Return the newest ended runs of the store."""
    if flujo.store is None:
        raise DeclarationError("no run is selected: pass run ids or files, or --store URL")
    after = None if since is None else epoch_seconds(since, now=time.time())
    state: Any = None if status is not None else ["completed", "failed", "aborted"]
    listed = RunClient(flujo.store).list(
        status, state=state, created_after=after, search=search, order="created", limit=limit
    )
    if not listed:
        raise DeclarationError("no ended run of the store is selected")
    return [run.run_id for run in listed]


def _flujo(call: Invocation, target: str, store: str | None) -> Flujo:
    """Return the `Flujo` of a target on a read-only store."""
    found = target_of(target, config=call.config)
    url = store or call.settings().store
    if isinstance(found, Flujo):
        return found if url is None or (store is None and found.store is not None) else _reading(found, url)
    opened = None if url is None else open_store(url, reader=True)
    return Flujo(pipeline_of(target, config=call.config), store=opened, settings=call.settings())


def _reading(flujo: Flujo, url: str) -> Flujo:
    other = copy.copy(flujo)
    other._store = open_store(url, reader=True)
    return other
