"""Rewards reported after a selection has ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .._core.outcomes import RunId
from .._core.policies.selection import Evidence, Selection, is_reward, read_statistics
from .._core.records import record_bodies
from .._core.records.records import Record
from .._core.step_paths import StepPath, at_or_below
from ..errors import NoRewardDue, StoreError
from ..stores._store_port import Store


def reward(store: Store, run_id: RunId, path: StepPath, value: float) -> None:
    """Report the reward of the last choice at `path`, once. Blocks."""
    if not is_reward(value):
        raise ValueError(f"a reward is a number from 0 to 1, not {value!r}")
    if not hasattr(store, "reward"):
        raise StoreError(f"{type(store).__name__} keeps no beliefs: it has no `beliefs` and `reward`")
    chosen, cost_usd = _due(store.read(run_id), run_id, path)
    record = Record(kind="rewarded", path=path, body=record_bodies.make_body(reward=value))
    evidence = Evidence(
        name=chosen["name"],
        category=chosen["category"],
        arm=chosen["arm"],
        reward=float(value),
        cost_usd=cost_usd,
        memory=chosen["memory"],
    )
    store.reward(run_id, path, record=record, evidence=evidence)


def _due(records: Iterable[Record], run_id: RunId, path: StepPath) -> tuple[dict[str, Any], float]:
    """Return the choice that awaits its reward, and its cost."""
    chosen: dict[str, Any] | None = None
    settled: Record | None = None
    for record in records:
        if record.kind == "chosen" and at_or_below(path, [record.path]):
            chosen = _choice_in(record)
        elif record.kind == "settled" and record.path == path:
            settled = record
    if chosen is None or not chosen.get("later"):
        raise NoRewardDue(
            f'nothing in run {run_id!r} waits for a reward at {path!r}: it is no selection with reward="later"'
        )
    if settled is None:
        raise NoRewardDue(f"the selection at {path!r} in run {run_id!r} has not ended: report its reward afterwards")
    return chosen, _cost_in(settled)


def _cost_in(settled: Record) -> float:
    body = record_bodies.read_body(settled.body, where="a settled step")
    result = body.get("success") or (body.get("failure") or {}).get("step_result") or {}
    return float(result.get("cost_usd") or 0.0)


def _choice_in(record: Record) -> dict[str, Any]:
    body = record_bodies.read_body(record.body, where=f"the choice at {record.path!r}")
    found: dict[str, Any] = json.loads(record_bodies.text_in(body, "choice"))
    return found


def choices_in(records: Iterable[Record]) -> dict[StepPath, Selection]:
    """Return a run's choices with their statistics, by path."""
    return {record.path: _as_choice(_choice_in(record)) for record in records if record.kind == "chosen"}


def _as_choice(data: dict[str, Any]) -> Selection:
    beliefs = read_statistics(data["beliefs"])
    return Selection(arm=data["arm"], theta=data["theta"], category=data["category"], beliefs=beliefs)
