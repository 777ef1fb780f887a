"""Tool calls as outcomes, for readers who asked for them."""

from __future__ import annotations

from typing import Any

from .._core.events import ToolEnded, ToolStarted
from .._core.outcomes import ToolCalled, ToolCallStatus
from .._run.messages import Work
from .._run.run import Run


def tells_tools(run: Run) -> bool:
    """Whether somebody reads the run who wants to know of tool calls."""
    return run.outlet is not None and run.outlet.tools


def tell_if_tool(run: Run, work: Work, kind: type[object], facts: dict[str, Any]) -> None:
    """Tell whoever reads the run of an event, if it is one of a tool."""
    if kind in (ToolStarted, ToolEnded) and tells_tools(run):
        _tell_tool(run, work, ended=kind is ToolEnded, **facts)


def _tell_tool(
    run: Run,
    work: Work,
    *,
    tool_name: str,
    tool_call_id: str,
    arguments: object = None,
    result: object = None,
    status: str | None = None,
    feedback: str | None = None,
    ended: bool,
) -> None:
    assert run.outlet is not None
    stands: ToolCallStatus = "started" if not ended else "returned" if status in (None, "success") else "failed"
    told = None if feedback is None else run.redact(feedback)
    run.outlet.squeeze_in(
        ToolCalled(
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            status=stands,
            arguments=arguments,
            result=result,
            feedback=told,
            step_name=work.name,
            attempt=work.attempt,
            path=work.span,
        )
    )
