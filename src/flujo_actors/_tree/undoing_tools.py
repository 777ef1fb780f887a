"""Undoing the tool calls of a granular step, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from .._core.failures import ToolCall, Undo
from .._core.paths import StepPath, below, compensation
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


def tool_calls(run: Run, path: StepPath) -> list[tuple[StepPath, ToolCall]]:
    """The tool calls of the granular step at `path`, with where each stands, in the order in which they began."""
    return []
