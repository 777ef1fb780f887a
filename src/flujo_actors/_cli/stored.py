"""Stored runs for people and programs: lines, tables and JSON documents."""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from .._core.live_rows import all_rows
from .._core.outline import Outline
from .._core.result_tree import shown_cost
from .exits import DONE, FAILED, PAUSED
from .printing import printable

if TYPE_CHECKING:
    from .._client import Prompt, RunClient, RunInfo
    from .._core.run_state import RunState

SCHEMA_VERSION = 1

BY_STATUS = {"completed": DONE, "failed": FAILED, "aborted": FAILED, "paused": PAUSED, "running": DONE}
"""How a command ends that shows a run."""


def document(**parts: object) -> str:
    """A JSON document for programs."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **parts}, ensure_ascii=False, indent=2)


def run_data(run: RunInfo) -> dict[str, object]:
    """A run as JSON data."""
    return attrs.asdict(run)


def listed(runs: Sequence[RunInfo], *, now: float) -> list[str]:
    """A table of runs, one line each."""
    rows = [("RUN", "STATUS", "CHANGED", "TOKENS", "COST", "PIPELINE"), *(_listed(run, now) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    ]


def _listed(run: RunInfo, now: float) -> tuple[str, ...]:
    status = "abandoned" if run.abandoned else run.status
    tokens = f"{run.tokens:,}" if run.tokens else "-"
    cost = shown_cost(run.cost_usd) if run.cost_usd else "-"
    return printable(run.run_id), status, ago(run.updated_at, now), tokens, cost, printable(run.pipeline)


def ago(at: float, now: float) -> str:
    """How long ago something was, as people say it."""
    seconds = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def questions(prompts: Iterable[Prompt]) -> list[str]:
    """What waits for an answer: where to send it, and what is asked."""
    return [f"{printable(prompt.state_token)}  {printable(prompt.message)}" for prompt in prompts]


def shown(client: RunClient, run_id: str, *, at: int | None) -> list[str]:
    """One run: how it stands, its steps as a tree, and what it asks."""
    run, outline = client.get(run_id), outline_of(client, run_id, at=at)
    lines = [f"{printable(run.run_id)}  {printable(run.pipeline)}", f"started {_when(run.created_at)}"]
    if outline.origin:
        lines.append(f"forked from {printable(outline.origin)} at record {outline.origin_seq}")
    rows = all_rows(outline, now=time.time())
    lines += [row.text for row in rows[:-1]]
    foot = rows[-1].text if at is not None or not run.abandoned else rows[-1].text.replace("running", "abandoned", 1)
    lines.append(f"{foot}  at record {outline.seq}")
    if at is None and run.state_token is not None:
        lines.append(f"asks: {printable(run.message or '')}")
        lines.append(f"answer with: flujo-actors runs answer {printable(run.state_token)} VALUE")
    return lines


def _when(at: float) -> str:
    return f"{dt.datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %z}"


def outline_of(client: RunClient, run_id: str, *, at: int | None) -> Outline:
    """The tree of a run, now or when a record was written."""
    return Outline(record for record in client.records(run_id) if at is None or record.seq <= at)


def state_data(client: RunClient, run_id: str, *, at: int | None) -> dict[str, object]:
    """What is known of a run, as JSON data."""
    from .._json_text import to_json

    state: RunState = client.state(run_id) if at is None else client.state_at(run_id, at)
    steps = [
        {
            "path": path,
            "name": node.name,
            "status": node.status,
            "latency_s": node.latency_s,
            "attempts": node.attempts,
            "tokens": node.tokens,
            "cost_usd": node.cost_usd,
            "note": node.note,
        }
        for path, node in outline_of(client, run_id, at=at).nodes.items()
        if path
    ]
    told = {"output": state.output, "input": state.input, "context": state.context, "answers": dict(state.answers)}
    return {
        "run": run_data(client.get(run_id)),
        "seq": state.seq,
        "status": state.status,
        "feedback": state.feedback,
        "tokens": state.usage.tokens,
        "cost_usd": state.usage.cost_usd,
        "questions": dict(state.pauses),
        "origin": None if state.origin is None else attrs.asdict(state.origin),
        "steps": steps,
        **json.loads(to_json(told, plain=True)),
    }


def out(lines: Iterable[str]) -> None:
    """Lines of a result, on standard output."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
