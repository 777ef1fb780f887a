"""Agents without tools: their calls carry no capability of ours, whoever listens; all others do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from flujo_actors import Flujo, Settings, Step, UsageLimitExceededError, UsageLimits
from flujo_actors._agents import agent_request
from flujo_actors._agents.agent_request import has_no_tools
from flujo_actors._core.settings_model import TelemetrySettings
from flujo_actors.telemetry._sinks import MemorySink


def look(number: int) -> int:
    """Look something up."""
    return number


class Brings(AbstractCapability[Any]):
    """A capability that may do anything, also bring tools."""

    def get_toolset(self) -> FunctionToolset[Any]:
        return FunctionToolset([look])


class Adds(Agent[None, str]):
    """An agent that adds tools to its runs by itself."""

    async def run(self, *asked: Any, **more: Any) -> Any:
        return await super().run(*asked, **more, toolsets=[FunctionToolset([look])])


def _dynamic() -> Agent[None, str]:
    agent = Agent(TestModel())
    agent.toolset(lambda ctx: FunctionToolset([look]))
    return agent


def _later() -> Agent[None, str]:
    agent = Agent(TestModel())
    has_no_tools(agent)
    agent.tool_plain(look)
    return agent


WITH_TOOLS: dict[str, Callable[[], Agent[None, str]]] = {
    "a tool": lambda: Agent(TestModel(), tools=[look]),
    "a tool that came later": _later,
    "a toolset": lambda: Agent(TestModel(), toolsets=[FunctionToolset([look])]),
    "a toolset that a function makes": _dynamic,
    "a capability": lambda: Agent(TestModel(), capabilities=[Brings()]),
    "a run of its own": lambda: Adds(TestModel()),
}


@pytest.mark.parametrize("tools", WITH_TOOLS)
def test_tool_calls_are_limited_wherever_the_tools_come_from(tools: str) -> None:
    """The limit refuses the call of a tool before it begins."""
    flujo = Flujo(Step("ask", WITH_TOOLS[tools]()), usage_limits=UsageLimits(tool_calls_limit=0))
    with pytest.raises(UsageLimitExceededError):
        flujo.run("Hello", backend="asyncio")


def test_tools_of_an_override_are_limited() -> None:
    """Whoever tests an agent may give it other tools, or other capabilities, for a while."""
    agent: Agent[None, str] = Agent(TestModel())
    flujo = Flujo(Step("ask", agent), usage_limits=UsageLimits(tool_calls_limit=0))
    with agent.override(tools=[look]), pytest.raises(UsageLimitExceededError):
        flujo.run("Hello", backend="asyncio")
    assert flujo.run("Hello", backend="asyncio").success


def test_calls_of_an_agent_without_tools_carry_no_capability_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry hears of its requests, and limits hold for them, for which the wrapped model is enough."""
    made: list[object] = []
    begin = agent_request.ToolCallCounter.__init__
    monkeypatch.setattr(
        agent_request.ToolCallCounter, "__init__", lambda self, call: (made.append(call), begin(self, call))[1]
    )
    sink, agent = MemorySink(), Agent(TestModel())
    settings = Settings(telemetry=TelemetrySettings(sinks=(sink,)))
    flujo = Flujo(Step("ask", agent), settings=settings, usage_limits=UsageLimits(request_limit=1))
    assert flujo.run("Hello", backend="asyncio").success
    assert made == []
    assert {"agent.usage", "model.started", "model.ended"} <= {event.kind for event in sink.events}
    with pytest.raises(UsageLimitExceededError):
        Flujo(Step("ask", agent), usage_limits=UsageLimits(request_limit=0)).run("Hello", backend="asyncio")
