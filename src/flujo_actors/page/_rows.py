"""What the page is sent of runs: light rows, and how a run stands. Serialization of what a store keeps; pure.

A row is `[seq, at_ms, kind, path, status, latency_ms, tokens, cost, attempts, note, name, of]`; the note of an
admission is the run that it was forked from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .._core.light_records import LightRecord
from .._core.records import OpenPause, StoredRun
from ._form import answer_form

Row: TypeAlias = list[object]
Hide: TypeAlias = Callable[[str], str]
"""What becomes of a text of strangers before it is sent."""


def row_of(record: LightRecord, hide: Hide) -> Row:
    """One record, as the page folds it."""
    return [
        record.seq,
        None if record.at is None else round(record.at * 1000),
        record.kind,
        record.path,
        record.status,
        round(record.latency_s * 1000, 3),
        record.tokens,
        record.cost_usd,
        record.attempts,
        record.origin if record.kind == "admitted" else hide(record.note) if record.note else "",
        record.name,
        record.of,
    ]


def rows_of(records: Iterable[LightRecord], hide: Hide) -> list[Row]:
    """Several records."""
    return [row_of(record, hide) for record in records]


def status_of(run: StoredRun) -> str:
    """How a run stands for somebody who looks: a running one that nobody works on was abandoned."""
    return "abandoned" if run.status == "running" and not run.leased else run.status


def listed(run: StoredRun, hide: Hide) -> dict[str, object]:
    """A run as the list shows it."""
    return {
        "run_id": run.run_id,
        "pipeline": run.pipeline,
        "status": status_of(run),
        "created_ms": round(run.created_at * 1000),
        "ended_ms": round(run.updated_at * 1000) if run.status in ("completed", "failed", "aborted") else None,
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "message": hide(run.pauses[0].message) if run.pauses else None,
    }


def standing(run: StoredRun, hide: Hide, *, can_resume: bool) -> dict[str, object]:
    """A run as its own page shows it, with what it asks."""
    return {
        **listed(run, hide),
        "records": run.records,
        "questions": [question_of(pause, hide) for pause in run.pauses],
        "can_resume": can_resume,
    }


def question_of(pause: OpenPause, hide: Hide) -> dict[str, object]:
    """A question with the form that asks it."""
    body = _object(pause.body)
    question = body.get("question")
    asked: dict[str, Any] = question if isinstance(question, dict) else {}
    facts = asked.get("facts") or {}
    return {
        "token": pause.token,
        "path": pause.path,
        "step_name": body.get("step_name") or pause.path,
        "message": hide(pause.message),
        "to": facts.get("to"),
        "due_ms": None if pause.due_at is None else round(pause.due_at * 1000),
        "form": _options_form(facts) or answer_form(_schema(body, asked)),
    }


def _schema(body: dict[str, object], asked: dict[str, object]) -> dict[str, object] | None:
    schema = body.get("schema") or asked.get("schema")
    return schema if isinstance(schema, dict) else None


def _options_form(facts: dict[str, object]) -> dict[str, object] | None:
    """An approval is asked by its options, each a button."""
    options = facts.get("options")
    if not isinstance(options, list) or not options:
        return None
    buttons = [{"value": each["name"], "label": each.get("label") or each["name"]} for each in options]
    return {"buttons": buttons, "fields": [], "whole": True, "schema": None}


def _object(text: str) -> dict[str, object]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
