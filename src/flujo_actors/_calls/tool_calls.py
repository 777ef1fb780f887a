"""Tool calls as outcomes, for readers who asked for them."""

from __future__ import annotations

from typing import Any

from .._core.outcomes import ToolCalled, ToolCallStatus
from .._run.run import Run
from .._run.work import Work


def tell_tool(
    run: Run,
    work: Work,
    *,
    tool_name: str,
    tool_call_id: str,
    arguments: Any = None,
    result: Any = None,
    status: str | None = None,
    feedback: str | None = None,
    ended: bool,
) -> None:
    """Tell whoever reads the run that a tool call begins, or how it ended."""
    if run.outlet is None or not run.outlet.tools:
        return
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
