"""Undoing the tool calls of a granular step, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import attrs

from .._agents.granular.tool_outcomes import Returned, ToolOutcome, name_of, outcome_from_json
from .._core.failures import ToolCall, Undo
from .._core.paths import StepPath, below, compensation
from .._core.pause_tokens import idempotency_key
from .._core.undoing import Undoable
from .._dsl.compensation import Compensate
from .._run.run import Run


def tool_targets(
    run: Run, entry: Undoable, by_tool: Mapping[str, Compensate], undo: Undo
) -> Iterator[tuple[StepPath, Compensate, Undo]]:
    """What undoes each call of the tools that have a compensation, the last call first."""
    for path, call in reversed(tool_calls(run, entry.path)):
        by = by_tool.get(call.name)
        if by is not None and (call.completed or by.when == "started"):
            yield compensation(entry.path, below(entry.path, path)), by, _undo_of(call, undo)


def _undo_of(call: ToolCall, undo: Undo) -> Undo:
    return attrs.evolve(
        undo,
        input=call.arguments,
        output=call.result,
        completed=call.completed,
        forward_key=call.key,
        tool_calls=(call,),
    )


def tool_calls(run: Run, step: StepPath) -> list[tuple[StepPath, ToolCall]]:
    """The tool calls of the granular step, with where each stands, in the order in which they began.

    A call that asked the model for other arguments, or that waits for somebody, has done nothing.
    """
    found = ((path, _read(run, path, intent)) for path, intent in run.journal.intents(step))
    return [(path, call) for path, call in found if call is not None]


def _read(run: Run, path: StepPath, intent: str) -> ToolCall | None:
    intended = json.loads(intent)
    if "tool" not in intended:
        return None  # a model request, or what another capability did
    kept = run.journal.unit(path)
    call = ToolCall(
        name=intended["tool"], arguments=intended.get("arguments") or {}, key=_key(run, path), completed=False
    )
    return call if kept is None else _ended(call, outcome_from_json(kept.result))


def _ended(call: ToolCall, outcome: ToolOutcome) -> ToolCall | None:
    if isinstance(outcome, Returned):
        value = outcome.value
        return attrs.evolve(call, result=getattr(value, "return_value", value), completed=True)
    return call if name_of(outcome) in ("failed", "timed_out", "cancelled") else None


def _key(run: Run, path: StepPath) -> str:
    """The idempotency key that the call was made with."""
    around, _, unit = path.partition("/~u")
    return f"{idempotency_key(run.run_id, StepPath(around))}:{unit}"
