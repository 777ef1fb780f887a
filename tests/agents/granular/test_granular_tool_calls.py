"""Tools of granular steps that call other tools, or return what pydantic-ai refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, RunContext, ToolReturn
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart

from flujo_actors import Flujo, Step, UsageLimitExceededError, UsageLimits
from flujo_actors.testing import CallTool, scripted_model

each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


def clerk(times: int = 1, *, catches: bool = True) -> Agent[Any, Any]:
    """An agent whose tool `outer`, called so many times at once, calls `pay`, which needs approval."""
    agent: Agent[Any, Any] = Agent(scripted_model([CallTool("outer", {})] * times, "done"))

    @agent.tool(requires_approval=True)
    async def pay(ctx: RunContext[Any]) -> str:
        return "paid"

    @agent.tool
    async def outer(ctx: RunContext[Any]) -> str:
        assert ctx.tool_manager is not None
        try:
            return str(await ctx.tool_manager.handle_call(ToolCallPart("pay", {}, tool_call_id=f"{ctx.tool_call_id}i")))
        except ApprovalRequired:
            if catches:
                return "pay needs approval"
            raise

    return agent


@pytest.mark.parametrize("times", [1, 2], ids=["one", "two at once"])
def test_a_tool_that_calls_one_that_needs_approval_is_told_so(times: int) -> None:
    """The inner call raises `ApprovalRequired` in the tool that made it, as without a step, and the run ends."""
    agent = clerk(times)
    result = Flujo(Step.granular("ask", agent)).run("x")
    assert (result.status, result.output) == ("completed", "done")
    returned = [part.content for part in agent.model.asked[-1].messages[-1].parts]  # type: ignore[union-attr]
    assert returned == ["pay needs approval"] * times


def test_a_tool_that_passes_the_need_for_approval_on_is_asked_about_itself() -> None:
    """The outer call is the one that a person is asked about."""
    result = Flujo(Step.granular("ask", clerk(catches=False))).run("x")
    assert result.status == "paused"
    assert "'outer'" in str(result.feedback)


@each_mode
def test_a_limit_that_refuses_a_call_made_by_a_tool_ends_the_run(make: Any) -> None:
    """The refused call does not wait for the tool that made it."""
    agent: Agent[Any, Any] = Agent(scripted_model(CallTool("outer", {}), "done"))

    @agent.tool_plain
    async def inner() -> str:
        return "in"

    @agent.tool
    async def outer(ctx: RunContext[Any]) -> str:
        assert ctx.tool_manager is not None
        first = await ctx.tool_manager.handle_call(ToolCallPart("inner", {}, tool_call_id="i1"))
        return f"{first} out"

    flujo = Flujo(make("ask", agent), usage_limits=UsageLimits(tool_calls_limit=1))
    if make is Step:
        with pytest.raises(UsageLimitExceededError):
            flujo.run("x")
    else:  # inside a unit, the calls of a tool are part of its own
        assert flujo.run("x").output == "done"


MISUSED = {
    "nested": lambda: [ToolReturn(return_value="done"), "more"],
    "tools": lambda: ToolReturn(return_value="done", tools="search"),  # type: ignore[arg-type]
}


@each_mode
@pytest.mark.parametrize("returned", MISUSED.values(), ids=list(MISUSED))
def test_a_misused_tool_return_fails_the_step(make: Any, returned: Any) -> None:
    """Both kinds of steps refuse what pydantic-ai refuses, and the model is not shown it as data."""
    agent: Agent[Any, Any] = Agent(scripted_model(CallTool("look", {}), "done"))
    agent.tool_plain(name="look")(returned)
    result = Flujo(make("ask", agent)).run("x")
    assert result.status == "failed"
    assert isinstance(result.error, UserError)
    assert "ToolReturn" in str(result.error)
