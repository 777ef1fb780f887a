"""What changed: between the contexts before and after a step, and between two runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._core.light_records import LightRecord
from .._core.paths import ROOT, StepPath, is_tried


def context_changes(before: object, after: object) -> list[dict[str, object]]:
    """Each key that was added, changed or removed, with what stood there."""
    old, new = _as_fields(before), _as_fields(after)
    changes = [_change(key, old, new) for key in (*old, *(key for key in new if key not in old))]
    return [each for each in changes if each is not None]


def _change(key: str, old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object] | None:
    if key not in old:
        return {"key": key, "kind": "added", "after": new[key]}
    if key not in new:
        return {"key": key, "kind": "removed", "before": old[key]}
    if old[key] == new[key] and type(old[key]) is type(new[key]):
        return None
    return {"key": key, "kind": "changed", "before": old[key], "after": new[key]}


def _as_fields(context: object) -> Mapping[str, object]:
    """The fields of a stored context: what stands under `value` if it was stored with the name of its class."""
    inner = context.get("value") if isinstance(context, Mapping) and "$" in context else context
    return inner if isinstance(inner, Mapping) else ({} if inner is None else {"(context)": inner})


def compared(one: Iterable[LightRecord], other: Iterable[LightRecord]) -> list[dict[str, Any]]:
    """The steps of two runs side by side, aligned by path: those of the first, then those that only the second has."""
    left, right = _settled(one), _settled(other)
    paths = [*left, *(path for path in right if path not in left)]
    return [{"path": path, "a": _side(left.get(path)), "b": _side(right.get(path))} for path in paths]


def _settled(records: Iterable[LightRecord]) -> dict[StepPath, LightRecord]:
    return {
        each.path: each for each in records if each.kind == "settled" and each.path != ROOT and not is_tried(each.path)
    }


def _side(record: LightRecord | None) -> dict[str, object] | None:
    if record is None:
        return None
    return {
        "seq": record.seq,
        "status": record.status,
        "latency_ms": round(record.latency_s * 1000, 3),
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
        "attempts": record.attempts,
    }
